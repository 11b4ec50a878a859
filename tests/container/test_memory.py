"""The pod's memory limit, put upon a real evacd: all that the chart lets it hold is saved below it."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.agent.daemon.nodes import Node
from tests.container.cgroup import Limited, NoLimit
from tests.container.test_chart import pod, rendered
from tests.services.s3 import S3Server, seaweed

MIB = 2**20
GIB = 2**30
BUCKET = "memory"
# Makes a slot as evacd does, reads all of it as a flush does, and says what the kernel keeps of it.
_SLOT = """
import sys
from pathlib import Path
from crc32c import crc32c
from evacd.workloads.memory import build

def kernel():
    return sum(int(line.split()[-1]) for line in Path(sys.argv[2]).read_text().splitlines()
               if line.split()[0] == "kernel" or " " not in line)

before = kernel()
region = build(int(sys.argv[1]), lambda: False)
with region.view(0, region.nbytes) as view:
    crc32c(view)
print(kernel() - before)
"""

Limit = Callable[[int], Limited]


@pytest.fixture
def limit() -> Iterator[Limit]:
    """Makes cgroups that are gone at the end; skips by name where none can be had."""
    with ExitStack() as ends:

        def make(nbytes: int) -> Limited:
            try:
                made = Limited(nbytes)
            except NoLimit as error:
                pytest.skip(f"nobody's memory can be limited here: {error}")
            ends.callback(made.close)
            return made

        yield make


class Pod(Node):
    """A node whose daemon is limited as its pod."""

    def __init__(self, home: Path, limited: Limited) -> None:
        super().__init__(home)
        self._prefix = limited.prefix

    def command(self, *flags: str) -> list[str]:
        return [*self._prefix, *super().command(*flags)]


@pytest.fixture
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[S3Server | None]:
    """A real S3 where the test's parameter wants one."""
    if request.param != "s3":
        yield None
        return
    with seaweed(tmp_path / "s3") as server:
        server.call("create_bucket", Bucket=BUCKET)
        yield server


@dataclass(frozen=True)
class Arithmetic:
    """How the chart makes a pod's limit out of its budget; in bytes.

    Attributes:
        per_gib: Of each GiB of slots.
        rest: Beside them.
    """

    per_gib: int
    rest: int

    def limit(self, budget: int) -> int:
        """What it comes to for so many bytes of slots, also where they are no whole GiB."""
        return self.rest + budget * self.per_gib // GIB


def arithmetic(*values: str) -> Arithmetic:
    def limit(gib: int) -> int:
        (container,) = pod(rendered(f"memory.budgetGiB={gib}", *values))["containers"]
        return int(container["resources"]["limits"]["memory"].removesuffix("Mi")) * MIB

    one, two = limit(1), limit(2)
    return Arithmetic(per_gib=two - one, rest=2 * one - two)


@pytest.mark.parametrize(
    "bucket",
    [
        "file",
        pytest.param(
            "s3",
            marks=pytest.mark.skipif(
                os.environ.get("EVAC_NIGHTLY") != "1",
                reason="half a minute: EVAC_NIGHTLY=1 runs it",
            ),
        ),
    ],
    indirect=True,
)
def test_a_full_budget_is_flushed_below_the_least_limit_that_the_chart_takes(
    binaries: None, limit: Limit, tmp_path: Path, bucket: S3Server | None
) -> None:
    budget, taken, staged = 256 * MIB, 180 * MIB, 70 * MIB
    nbytes = arithmetic("memory.overheadMiB=128").limit(budget)
    limited = limit(nbytes)
    node, store = Pod(tmp_path / "node", limited), list[str]()
    if bucket is not None:
        store = ["--store", f"s3://{BUCKET}/x?endpoint={bucket.endpoint}"]
    try:
        node.start(
            "--memory-budget", str(budget), *store, environ=bucket.environment if bucket else None
        )
        # Its pages are there as soon as it has its slot, whatever it does with that.
        node.workload("idle", nbytes=taken).ready(slots=1)
        workload = node.workload("job", nbytes=staged).ready(slots=1)
        assert workload.do("stage", step=1) == {}
        node.knows("job", 1)
        assert limited.slots >= taken + staged
        node.drain(120.0)
        outcomes = node.settled()
        used = limited.unreclaimable
    finally:
        node.close()

    assert outcomes["root/job"]["kept"]
    assert limited.killed == 0
    assert used < nbytes


def test_what_the_kernel_keeps_of_each_gib_is_in_the_limit(binaries: None, limit: Limit) -> None:
    """Some MiB, which no fixed overhead holds on a node with a terabyte."""
    slot, per_gib = GIB // 2, arithmetic().per_gib
    limited = limit(GIB)
    done = subprocess.run(
        [*limited.prefix, sys.executable, "-c", _SLOT, str(slot), str(limited.kernel)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )

    assert 0 < int(done.stdout) <= (per_gib - GIB) * slot // GIB
