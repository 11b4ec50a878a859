"""A restarted job gets its state back out of this node's memory, to the bit, or from the store."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from evac.segment import HEADER_BYTES, PAGE, Header, SlotState
from tests.agent.daemon.fdstore import Manager
from tests.agent.daemon.nodes import Node, node_at, until
from tests.handlers.torch import scenes
from tests.handlers.torch.test_daemon import ended_well, staged, start

STEPS = 3


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    yield from node_at(tmp_path / "node")


def killed(node: Node, folder: Path, world: int) -> None:
    """A job that has staged and was killed."""
    jobs = start(
        world, scenes.stage_and_hang, str(folder), str(node.socket), STEPS, f"{folder}/left"
    )
    until("all is staged", lambda: staged(node, world) == STEPS)
    for job in jobs:
        job.kill()
        job.join()
    until("both are dead", lambda: not any(w["alive"] for w in node.status()["workloads"]))


def again(node: Node, folder: Path, world: int) -> str:
    """The job once more; what rank 0 logged."""
    jobs = start(world, scenes.adopt, str(folder), str(node.socket), STEPS, f"{folder}/left")
    assert ended_well(jobs)
    return (folder / "heard.0").read_text()


@pytest.mark.parametrize("world", [1, 2])
def test_it_comes_back_to_the_bit_out_of_memory(node: Node, tmp_path: Path, world: int) -> None:
    node.start()
    killed(node, tmp_path, world)

    heard = again(node, tmp_path, world)

    assert re.search(
        rf"step {STEPS} .* restored from this node's memory: [1-9][0-9,]* bytes", heard
    )
    # The next launch goes on above it, and supersedes it.
    until("the new launch is all that is left", lambda: launches(node) == {2})


def launches(node: Node) -> set[int]:
    return {
        slot["incarnation"]
        for one in node.status()["workloads"]
        for slot in one["slots"]
        if slot["state"] == "complete"
    }


def test_it_comes_back_after_the_daemon_was_killed_too(node: Node, tmp_path: Path) -> None:
    manager = Manager(tmp_path)
    try:
        manager.start(node)
        jobs = start(1, scenes.stage_and_hang, str(tmp_path), str(node.socket), STEPS,
                     f"{tmp_path}/left")  # fmt: skip
        until("all is staged", lambda: staged(node, 1) == STEPS)
        until("the store has them", lambda: len(manager.names()) == 3)
        node.kill()
        for job in jobs:
            job.kill()
            job.join()
        manager.start(node)

        heard = again(node, tmp_path, 1)

        assert "restored from this node's memory" in heard
    finally:
        manager.close()


def test_what_is_damaged_in_memory_comes_from_the_store(node: Node, tmp_path: Path) -> None:
    node.start()
    killed(node, tmp_path, 1)
    until(
        "it is in the store, too", lambda: list(node.store.glob(f"*/run/step-{STEPS}.1/.metadata"))
    )
    scribble(node)

    heard = again(node, tmp_path, 1)

    assert "CRC-32C differs in chunk 1 of 1, from byte 0, in memory" in heard
    assert re.search(rf"step {STEPS} .* restored from \w+/run/step-{STEPS}.1 in file://", heard)


def scribble(node: Node) -> None:
    """Damage the newest generation in the daemon's memory."""
    assert node.process
    folder = Path(f"/proc/{node.process.pid}/fd")
    for link in folder.iterdir():
        try:
            if "memfd:evac-slot" not in os.readlink(link):
                continue
            fd = os.open(link, os.O_RDWR)
        except FileNotFoundError:
            continue  # closed meanwhile
        header = Header.unpack(os.pread(fd, HEADER_BYTES, 0), slot_nbytes=os.fstat(fd).st_size)
        if header.state is SlotState.COMPLETE and header.step == STEPS:
            os.pwrite(fd, b"\xff" * header.body_nbytes, PAGE)
        os.close(fd)
