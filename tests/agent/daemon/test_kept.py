"""A restart of the daemon loses nothing: with an fd store, and without one."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from evac.errors import SegmentError
from evac.segment import HEADER_BYTES, Header, SlotState
from tests.agent.daemon.fdstore import Manager
from tests.agent.daemon.nodes import Node, Workload, node_at, until
from tests.agent.daemon.worker import body_of


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    one = Manager(tmp_path)
    yield one
    one.close()


def slots(node: Node, job: str = "job", rank: int = 0) -> list[dict[str, Any]]:
    """Of the last that came for a rank."""
    members = [w for w in node.status()["workloads"] if (w["job"], w["rank"]) == (job, rank)]
    return list(members[-1]["slots"]) if members else []


def steps(node: Node, job: str = "job", rank: int = 0) -> list[int]:
    return sorted(one["step"] for one in slots(node, job, rank) if one["state"] == "complete")


def memfds(node: Node) -> int:
    """How many fds of slots the daemon has."""
    assert node.process
    links = []
    for fd in os.listdir(f"/proc/{node.process.pid}/fd"):
        with suppress(FileNotFoundError):
            links.append(os.readlink(f"/proc/{node.process.pid}/fd/{fd}"))
    return sum("memfd:evac-slot" in link for link in links)


def back(node: Node, workload: Workload) -> None:
    """Wait until the daemon has all of a workload's slots, and it is on board."""
    until("it is on board", lambda: workload.do("connect")["connected"])
    until("its slots are back", lambda: "memory.handed_back" in node.log.read_text())


def test_a_workload_goes_on_with_its_slots_when_the_daemon_was_killed(node: Node) -> None:
    node.start()
    worker = node.staged(1)
    worker.do("stage", step=2)
    node.knows("job", 2)
    before = worker.do("state")
    node.kill()

    node.start()

    back(node, worker)
    assert steps(node) == [1, 2]
    assert worker.do("state") == before
    # Nothing was reserved anew: the next one goes into the third of the same slots.
    assert worker.do("stage", step=3) == {}
    node.knows("job", 3)
    assert len(slots(node)) == 3


def test_a_slot_that_is_being_written_is_written_on(node: Node) -> None:
    node.start()
    worker = node.staged(1)
    worker.do("begin", step=2)
    node.kill()
    node.start()
    back(node, worker)
    assert [one["state"] for one in slots(node)].count("writing") == 1

    assert worker.do("finish", step=2) == {}

    node.knows("job", 2)


def test_what_was_staged_while_there_was_no_daemon_counts(node: Node) -> None:
    node.start()
    worker = node.staged(1)
    worker.do("begin", step=2)
    node.kill()
    assert worker.do("finish", step=2) == {}

    node.start()

    back(node, worker)
    node.knows("job", 2)
    assert worker.do("state")["refusals"] == 0


def test_a_stage_that_nobody_read_before_the_daemon_died_counts(node: Node) -> None:
    node.start()
    worker = node.staged(1)
    assert node.process
    # Granted before, so that one word alone waits unread.
    worker.do("begin", step=2)
    node.process.send_signal(signal.SIGSTOP)
    worker.do("finish", step=2)
    node.kill()

    node.start()

    back(node, worker)
    node.knows("job", 2)


def test_without_an_fd_store_memory_ends_with_its_process(node: Node) -> None:
    node.start()
    worker = node.staged(1)
    node.kill()
    worker.kill()

    node.start()

    assert node.status()["memory"]["used"] == 0
    assert node.status()["workloads"] == []


@pytest.mark.parametrize("dies", [False, True])
def test_with_an_fd_store_the_memory_is_there_before_anybody_comes_back(
    node: Node, manager: Manager, dies: bool
) -> None:
    manager.start(node)
    worker = node.staged(7)
    until("the store has them", lambda: len(manager.names()) == 3)
    node.kill()
    if dies:
        worker.kill()

    manager.start(node)

    assert steps(node) == [7]
    if dies:
        # Saved at once, and its empty slots are gone from the store, too.
        until("it is saved", lambda: any(f.endswith(".manifest.json") for f in node.files()))
        saved = next(node.store.rglob("part0.bin"))
        assert saved.read_bytes() == body_of(0, 7, 1 << 20)
        until("the store has let go", lambda: len(manager.names()) == 1)
    else:
        back(node, worker)
        assert worker.do("stage", step=8) == {}
        node.knows("job", 8)
        assert len(manager.names()) == 3


def test_a_torn_slot_of_a_dead_owner_is_freed(node: Node, manager: Manager) -> None:
    manager.start(node)
    worker = node.staged(1)
    worker.do("begin", step=2)
    until("the store has them", lambda: len(manager.names()) == 3)
    node.kill()
    worker.kill()

    manager.start(node)

    assert steps(node) == [1]
    assert len(slots(node)) == 1


def test_a_whole_slot_that_was_not_told_of_is_saved_when_both_died(
    node: Node, manager: Manager
) -> None:
    manager.start(node)
    worker = node.staged(1)
    worker.do("begin", step=2)
    until("the store has them", lambda: len(manager.names()) == 3)
    assert node.process
    node.process.send_signal(signal.SIGSTOP)
    worker.do("finish", step=2)
    node.kill()
    worker.kill()

    manager.start(node)

    assert steps(node) == [1, 2]


def test_a_clean_stop_keeps_as_much_as_a_kill(node: Node, manager: Manager) -> None:
    manager.start(node)
    worker = node.staged(1)
    assert node.terminate() == 0
    assert manager.words[-1] == "BARRIER=1"
    assert len(manager.names()) == 3

    manager.start(node)

    assert steps(node) == [1]
    back(node, worker)


def test_where_the_sockets_lie_in_memory_so_does_what_is_known_of_slots() -> None:
    # What a disk that hangs would hold up with a page fault: nothing of it is on one.
    home = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        for node in node_at(home / "node"):
            disk = home / "disk"
            node.start("--state-dir", str(disk))
            worker = node.staged(1)
            assert (node.home / "run" / "slots.table").exists()
            assert not (disk / "slots.table").exists()
            node.kill()
            node.start("--state-dir", str(disk))
            back(node, worker)
            assert steps(node) == [1]
    finally:
        shutil.rmtree(home)


def test_memory_of_another_boot_or_of_nobody_is_let_go(
    node: Node, manager: Manager, tmp_path: Path
) -> None:
    manager.start(node)
    worker = node.staged(1)
    until("the store has them", lambda: len(manager.names()) == 3)
    node.kill()
    worker.kill()
    for folder in ("run", "state"):  # where it lies goes by what is in memory
        (node.home / folder / "slots.table").unlink(missing_ok=True)

    manager.start(node)

    assert node.status()["workloads"] == []
    until("the store has let go", lambda: not manager.names())


@pytest.mark.parametrize("elsewhere", [False, True])
def test_what_lies_in_a_store_of_before_only_is_saved_where_its_job_will_look_now(
    node: Node, elsewhere: bool
) -> None:
    node.start()
    worker = node.staged(1)
    node.drain()
    (saved,) = node.settled().values()
    assert saved["nbytes"] > 0
    node.cancel()
    node.kill()
    if elsewhere:
        node.store = node.home / "another"

    node.start()
    back(node, worker)
    node.drain()

    (found,) = node.settled().values()
    assert (found["nbytes"] > 0) == elsewhere
    assert found["store"] == f"file://{node.store}"
    assert any(path.endswith("part0.bin") for path in node.files())


def test_leaving_and_superseding_empty_the_store(node: Node, manager: Manager) -> None:
    manager.start(node)
    worker = node.staged(1)
    until("the store has them", lambda: len(manager.names()) == 3)
    worker.do("reserve")
    worker.do("stage", step=2)
    node.knows("job", 2)
    until("the former reservation is gone", lambda: len(manager.names()) == 3)

    worker.do("leave")

    until("the store has let go", lambda: not manager.names())


def test_a_successor_adopts_all_that_its_job_left_over_a_restart_of_the_daemon(
    node: Node, manager: Manager
) -> None:
    manager.start(node)
    for rank in (0, 1):
        worker = node.staged(1, rank=rank, world=2)
        worker.do("stage", step=2)
        node.knows("job", 2, rank=rank)
        worker.kill()
    node.kill()
    manager.start(node)

    # Ranks move: it gets what all of them had.
    successor = node.workload(rank=1, world=2)
    assert successor.do("connect")["connected"]
    adopted = [[1, 2, True], [0, 2, True], [1, 1, True], [0, 1, True]]
    assert successor.do("adopt") == {"adopted": adopted}
    # Given back, it can be had again.
    assert successor.do("adopt") == {"adopted": adopted}
    stranger = node.workload(run="another", rank=0, world=2)
    assert stranger.do("connect")["connected"]
    assert "another run" in stranger.do("adopt")["error"]


def test_restarts_leak_nothing(node: Node, manager: Manager) -> None:
    manager.start(node)
    workers = [node.staged(1, job=f"job-{n}") for n in range(4)]
    counts = []
    for step in range(2, 5):
        node.kill()
        manager.start(node)
        for n, worker in enumerate(workers):
            assert worker.do("connect")["connected"]
            assert worker.do("stage", step=step) == {}
            node.knows(f"job-{n}", step)
        counts.append((memfds(node), node.status()["memory"]["used"]))
        assert len(manager.names()) == 12
    # Of each one its own, and one of its mapping.
    assert set(counts) == {(24, 12 * ((1 << 20) + 2 * 4096))}


def test_a_slot_that_was_completed_without_a_daemon_is_saved_when_its_owner_never_comes_back(
    node: Node, manager: Manager
) -> None:
    manager.start(node)
    worker = node.staged(1)
    worker.do("begin", step=2)
    until("the store has them", lambda: len(manager.names()) == 3)
    node.kill()
    worker.stop()
    manager.start(node)
    assert steps(node) == [1]

    # It wakes up with its slot all but whole, and no daemon has heard of it since.
    complete(node)
    worker.kill()

    until("it counts", lambda: steps(node) == [1, 2])


def complete(node: Node) -> None:
    """Put into the slot that is being written what its owner would have put there."""
    assert node.process
    for link in Path(f"/proc/{node.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError, SegmentError):
            if "memfd:evac-slot" not in os.readlink(link):
                continue
            with os.fdopen(os.open(link, os.O_RDWR), "r+b", buffering=0) as slot:
                page, nbytes = slot.read(HEADER_BYTES), os.fstat(slot.fileno()).st_size
                if Header.unpack(page, slot_nbytes=nbytes).state is SlotState.WRITING:
                    os.pwrite(slot.fileno(), Header(SlotState.COMPLETE, 1, 2, 1 << 20).pack(), 0)
