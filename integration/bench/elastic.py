"""A node leaves and another comes: how long until the others train on, beside stock torchrun.

Three torchrun agents on loopback with one gloo worker each and a store that no node serves. For evac a
departure is written to the store, as evacd does at a notice; stock hears of it by the SIGTERM that
reaches its agent, which is the most it can. ``leave_s``: until both survivors have done a step in a
world of two. ``join_s``: from the start of a replacement's agent until all three have done one.
``restarts``: how many restarts of ``--max-restarts`` it cost. What does not come within the time limit
counts as that limit, and is a lower bound.

``stock_unshared`` is stock with ``TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1``: by default, torch 2.9 to 2.14
reuse one store over all rounds, and whether they come together again at all is a matter of luck.

``torchft`` (`pip install --group peers`; named and left out where it is not there) is another thing: no
agent, its training loop forms a quorum at each step and its processes go on. It knows no departure, only
that a process has ended or is silent, and so its node is told by the same SIGTERM, which ends it.
"""

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from harness import Ratio, Variant, main

from evac.rendezvous.address import Address
from tests.handlers.rendezvous.agents import Job, Machine, now
from tests.handlers.rendezvous.nodes import HOST, depart

_LIMIT_SECONDS = 100.0
_TORCHFT = Path(__file__).parent / "leaving" / "torchft_train.py"
# torch's store asks DNS for the name of each client: let no slow answer decide, for nobody.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")


@contextmanager
def rendezvous_store() -> Iterator[int]:
    """`evac store`: a plain TCPStore, for all variants alike."""
    command = [sys.executable, "-m", "evac", "store", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as store:
        assert store.stdout is not None
        yield int(store.stdout.readline().split()[-1])
        store.send_signal(signal.SIGTERM)


def measure(backend: str, env: Mapping[str, str], victim: str) -> dict[str, float]:
    """One job, one departure, one replacement."""
    with tempfile.TemporaryDirectory() as folder, rendezvous_store() as port:
        job = Job(
            Path(folder),
            backend=backend,
            port=port,
            max_restarts=3,
            conf={"is_host": 0},
            env=env,
            run="bench",
        )

        def leave() -> None:
            if backend == "evac":
                depart(Address("tcpstore", HOST, port, "evac/bench"), victim)
            else:
                job.agents[victim].send_signal(signal.SIGTERM)

        return timed(job, leave, victim)


def timed(job: Job, leave: Callable[[], None], victim: str) -> dict[str, float]:
    """Three train, one leaves, another comes."""
    try:
        for node in "abc":
            job.start(node)
        job.trains("abc")
        began = now()
        leave()
        rest = sorted(set("abc") - {victim})
        left = until(job, rest, began)
        began = now()
        job.start("d")
        joined = until(job, [*rest, "d"], began)
        return {"leave_s": left, "join_s": joined, "restarts": float(job.restarts())}
    finally:
        job.close()


class Replicas(Job):
    """The same run under torchft."""

    def command(
        self, node: str, machine: Machine, endpoint: str, options: Mapping[str, object]
    ) -> list[str]:
        """A process that trains, and no agent."""
        return [sys.executable, str(_TORCHFT), str(self.folder), node, str(self.pause)]


def measure_torchft(victim: str) -> dict[str, float]:
    """One run of it, with a Lighthouse of its own."""
    command = [sys.executable, str(_TORCHFT), "lighthouse"]
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as lighthouse,
    ):
        assert lighthouse.stdout is not None
        try:
            address = lighthouse.stdout.readline().decode().strip()
            job = Replicas(Path(folder), env={"TORCHFT_LIGHTHOUSE": address})
            return timed(job, lambda: job.agents[victim].send_signal(signal.SIGTERM), victim)
        finally:
            lighthouse.kill()


def until(job: Job, nodes: list[str], began: float) -> float:
    """Seconds until *nodes* train, or the limit."""
    try:
        return job.trains(nodes, after=began, seconds=_LIMIT_SECONDS) - began
    except TimeoutError:
        return _LIMIT_SECONDS


def variants(_size: int) -> list[Variant]:
    """Ours, stock as it is and as it can be set, and torchft where it is installed."""
    unshared = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    made = [
        Variant("evac", lambda: measure("evac", {}, "b")),
        Variant("stock_unshared", lambda: measure("c10d", unshared, "b")),
        Variant("stock", lambda: measure("c10d", {}, "b")),
    ]
    if importlib.util.find_spec("torchft") is None:
        sys.stderr.write("torchft is left out: not installed\n")
    else:
        made.append(Variant("torchft", lambda: measure_torchft("b")))
    return made


if __name__ == "__main__":
    sys.exit(
        main(
            "elastic",
            variants,
            [
                Ratio("leave", "leave_s", "evac", None, 5.0, at_least=False),
                Ratio("join", "join_s", "evac", None, 8.0, at_least=False),
                Ratio("restarts", "restarts", "evac", None, 0.0, at_least=False),
                Ratio("leave_vs_stock", "leave_s", "evac", "stock_unshared", 0.2, at_least=False),
            ],
            rounds=3,
        )
    )
