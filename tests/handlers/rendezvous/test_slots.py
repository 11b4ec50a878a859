"""Ten times 3 -> 2 -> 3 with an evacd on each node and staged state: what stays on a node stays as little.

Real daemons that are given orders, real agents, and workers that stage each step. One node sees it all: its
slots, and the open files and threads of its daemon and of its agent, are as few at the end as early on; so
are the job's keys in the store, of which none is left once the job has ended.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from evac.wire import Accepted
from tests.agent.daemon.nodes import Node as Daemon
from tests.handlers.rendezvous.agents import Job, Machine, now, resources
from tests.handlers.rendezvous.cells import KINDS
from tests.handlers.rendezvous.meeting import Meeting, meeting
from tests.services.skipping import or_skip

pytestmark = pytest.mark.skipif(
    os.environ.get("EVAC_NIGHTLY") != "1", reason="takes minutes: EVAC_NIGHTLY=1 runs it"
)
CYCLES, WARM = 10, 2
SCRIPT = Path(__file__).parent / "train_staged.py"
BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
PATIENCE_SECONDS = 240.0


@pytest.fixture
def place(kind: str, tmp_path: Path) -> Iterator[Meeting]:
    with or_skip(), meeting(kind, tmp_path) as made:
        yield made


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Mapping[str, Daemon]]:
    """All that are needed by and by; none is started yet."""
    names = [*"abc", *(f"n{number}" for number in range(CYCLES))]
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(closing(Daemon(tmp_path / name, tmp_path / "store")))
            for name in names
        }


def join(job: Job, daemon: Daemon, node: str, *, endpoint: str = "", is_host: int = 0) -> None:
    """A node with its daemon."""
    daemon.start("--state-node", node)
    job.start(node, boot=BOOT, endpoint=endpoint, is_host=is_host)


def figures(place: Meeting, job: Job, daemon: Daemon, node: str) -> dict[str, int]:
    """What may leak, of one node and of the store."""
    assert daemon.process is not None
    pid = daemon.process.pid
    files, threads = len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))
    agents_files, agents_threads = resources(job.agents[node])
    return {
        "slots": slots(daemon),
        "files of evacd": files,
        "threads of evacd": threads,
        "files of the agent": agents_files,
        "threads of the agent": agents_threads,
        "keys": place.count_keys(),
    }


def slots(daemon: Daemon) -> int:
    """Memory that the daemon holds."""
    assert daemon.process is not None
    folder, found = f"/proc/{daemon.process.pid}/fd", 0
    for one in os.listdir(folder):
        try:
            found += "/memfd:" in os.readlink(f"{folder}/{one}")
        except FileNotFoundError:
            continue
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_ten_times_leave_no_slot_no_file_no_thread_and_no_key(
    place: Meeting, daemons: Mapping[str, Daemon], tmp_path: Path, kind: str
) -> None:
    before_all = place.count_keys()
    machines = {
        name: Machine(enter=("env", f"EVAC_SOCKET={daemon.socket}"))
        for name, daemon in daemons.items()
    }
    job = place.job(
        tmp_path / "job", script=SCRIPT, pause=0.02, machines=machines, env={"EVAC_JOB": "slots"}
    )
    nodes, early = list("abc"), {"": 0}
    try:
        for node in nodes:
            join(job, daemons[node], node, is_host=int(place.hosted and node == "a"))
        job.trains(nodes, seconds=PATIENCE_SECONDS)
        for number in range(CYCLES):
            leaver, new = nodes.pop(1), f"n{number}"
            before = now()
            assert daemons[leaver].drain() == Accepted()
            job.trains(nodes, after=before, seconds=PATIENCE_SECONDS)
            assert job.ended(leaver, PATIENCE_SECONDS) == 0
            daemons[leaver].close()
            before, nodes = now(), [*nodes, new]
            join(job, daemons[new], new, endpoint=job.address().endpoint)
            job.trains(nodes, after=before, seconds=PATIENCE_SECONDS)
            if number == WARM:
                early = figures(place, job, daemons["a"], "a")

        def flat() -> bool:
            late = figures(place, job, daemons["a"], "a")
            # As elsewhere, a file or a key that is under way is none that leaks.
            return all(
                late[name] <= few + 3 for name, few in early.items() if name != "slots"
            ) and (late["slots"] <= early["slots"])

        job.wait(f"as few as {early}", flat)
        job.finish()
        assert [job.ended(node, PATIENCE_SECONDS) for node in nodes] == [0, 0, 0]
        assert job.restarts() == 0
        done = set(job.steps_in_order())
        assert done == set(range(1, len(done) + 1))
        assert place.count_keys() == before_all
    finally:
        job.close()
