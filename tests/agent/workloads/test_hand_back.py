"""Slots that come back from the hand of their process, and what does not pass for one."""

import array
import fcntl
import os
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from evac.wire import (
    Accepted,
    Acquire,
    Adopt,
    HandBack,
    Message,
    Refuse,
    Register,
    Registered,
    encode,
)
from evacd.workloads import Keeper
from evacd.workloads.inspection import Inspection, inspect
from evacd.workloads.job import Process, Shape, SlotState
from evacd.workloads.keeping import Given, Table
from evacd.workloads.record import SlotRecord
from evacd.workloads.record import encode as encode_record
from tests.agent.workloads.peers import MIB, Peer, Running, serving, settings, write

NBYTES = 64 * 1024


def kept(folder: Path) -> Keeper:
    keeper = Keeper(folder / "slots.table", boot="boot")
    keeper.open()
    return keeper


async def come_back(peer: Peer, **more: Any) -> None:
    await peer.hello()
    answer = await peer.ask(Register(job="train", rank=0, world=1, resume=True, **more))
    assert isinstance(answer, Registered)


async def hand(
    peer: Peer, slot: int, fd: int, *, held: bool = False, last: bool = False
) -> Message:
    peer._id += 1
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))
    packet = encode(HandBack(slot=slot, held=held, last=last), id=peer._id)
    peer.sock.sendmsg([packet], [rights])
    return (await peer.answer(peer._id))[0]


def states(running: Running) -> list[tuple[int, str, int | None]]:
    return [(s["slot"], s["state"], s["step"]) for s in running.slots()]


def memfd(nbytes: int, seals: int = 0) -> int:
    fd = os.memfd_create("evac-slot", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, nbytes)
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


ALL = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@pytest.fixture
async def left(tmp_path: Path) -> Any:
    """A peer whose daemon has gone; with two generations and a slot that is being written."""
    peer = Peer.__new__(Peer)
    async with serving(settings(tmp_path), keeper=kept(tmp_path)) as running:
        peer.__init__(running.settings.workload_path)  # type: ignore[misc]  # outlives its daemon
        await peer.register()
        await peer.reserve(NBYTES)
        await peer.stage(1)
        await peer.stage(2)
        await peer.acquire()
    peer.sock.close()
    yield peer
    peer.close()


async def test_all_is_as_it_was(tmp_path: Path, left: Peer) -> None:
    async with serving(settings(tmp_path), keeper=kept(tmp_path)) as running:
        # Its memory is nobody's until it comes back.
        assert running.snapshot()["workloads"] == []
        with Peer(running.settings.workload_path) as peer:
            await come_back(peer)
            for number in (0, 1, 2):
                held, last = number == 2, number == 2
                answer = await hand(peer, number, left.fds[number], held=held, last=last)
                assert answer == Accepted()
            assert states(running) == [(0, "complete", 1), (1, "complete", 2), (2, "writing", None)]
            assert running.used() == 3 * NBYTES
            assert await peer.acquire() == 2
            write(left.slots[2], 3, b"x" * 5000)
            peer.slots = {2: left.slots[2]}
            assert (await peer.stage(3, b"y" * 5000)) == Accepted()
            peer.slots = {}


async def test_what_is_not_handed_back_and_not_complete_is_freed(
    tmp_path: Path, left: Peer
) -> None:
    async with serving(settings(tmp_path), keeper=kept(tmp_path)) as running:
        with Peer(running.settings.workload_path) as peer:
            await come_back(peer)
            assert await hand(peer, 1, left.fds[1], last=True) == Accepted()
            assert states(running) == [(1, "complete", 2)]
    table = Table(tmp_path / "slots.table", boot="boot")
    assert sum(b'"number"' in row for row in table.rows.values()) == 1
    table.close()


async def test_nothing_is_granted_before_the_last_one_is_back(tmp_path: Path, left: Peer) -> None:
    async with serving(settings(tmp_path), keeper=kept(tmp_path)) as running:
        with Peer(running.settings.workload_path) as peer:
            await come_back(peer)
            assert await hand(peer, 2, left.fds[2]) == Accepted()
            answer = await peer.ask(Acquire())
            assert isinstance(answer, Refuse)
            assert "handed back" in answer.reason


async def test_nothing_is_lent_before_the_last_one_is_back(tmp_path: Path, left: Peer) -> None:
    async with serving(settings(tmp_path), keeper=kept(tmp_path)) as running:
        with Peer(running.settings.workload_path) as peer:
            await come_back(peer)
            assert await hand(peer, 0, left.fds[0]) == Accepted()
            answer = await peer.ask(Adopt())
            # Step 1 is there, and step 2 is the newest.
            assert isinstance(answer, Refuse)
            assert "handed back" in answer.reason


async def test_a_daemon_that_dies_while_it_looks_leaves_the_record_of_a_whole_slot(
    tmp_path: Path, left: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("died", "next"):
        (tmp_path / folder).mkdir()
    looks: list[int] = []

    def look(*args: Any) -> Inspection:
        if not looks:
            shutil.copy(tmp_path / "slots.table", tmp_path / "died")
        looks.append(1)
        return inspect(*args)

    monkeypatch.setattr("evacd.workloads.returns.inspect", look)
    async with serving(settings(tmp_path), keeper=kept(tmp_path)) as running:
        with Peer(running.settings.workload_path) as peer:
            await come_back(peer)
            assert await hand(peer, 1, left.fds[1], last=True) == Accepted()
    assert looks
    async with serving(settings(tmp_path / "next"), keeper=kept(tmp_path / "died")) as running:
        with Peer(running.settings.workload_path) as peer:
            await come_back(peer)
            assert await hand(peer, 1, left.fds[1], last=True) == Accepted()
            assert states(running) == [(1, "complete", 2)]


async def test_a_foreign_memfd_is_not_taken(tmp_path: Path, left: Peer) -> None:
    async with serving(settings(tmp_path), keeper=kept(tmp_path)) as running:
        with Peer(running.settings.workload_path) as peer:
            await come_back(peer)
            read_only = os.open(f"/proc/self/fd/{left.fds[0]}", os.O_RDONLY)
            others = {
                memfd(NBYTES, ALL): "not the memory of this slot",
                memfd(NBYTES): "not the memory of this slot",
                memfd(64 * MIB, ALL): "not the memory of this slot",
                os.open("/dev/null", os.O_RDWR): "no memfd",
                left.fds[1]: "not the memory of this slot",
                read_only: "cannot be read and written",
            }
            for fd, why in others.items():
                answer = await hand(peer, 0, fd)
                assert isinstance(answer, Refuse)
                assert why in answer.reason
                if fd != left.fds[1]:
                    os.close(fd)
            assert running.used() == 0
            # And the right one is still welcome.
            assert await hand(peer, 0, left.fds[0], last=True) == Accepted()


async def test_nobody_hands_back_what_was_never_his(tmp_path: Path, left: Peer) -> None:
    async with serving(settings(tmp_path), keeper=kept(tmp_path)) as running:
        with Peer(running.settings.workload_path) as peer:
            await peer.register("train", 0, 1)
            answer = await hand(peer, 0, left.fds[0])
            assert isinstance(answer, Refuse)
            assert "register with resume" in answer.reason
        with Peer(running.settings.workload_path) as peer:
            await peer.hello()
            await peer.ask(Register(job="other", rank=0, world=1, resume=True))
            answer = await hand(peer, 0, left.fds[0], last=True)
            assert isinstance(answer, Refuse)
            assert "not known here" in answer.reason
        assert running.used() == 0


async def test_no_more_comes_back_than_the_budget_takes(tmp_path: Path, left: Peer) -> None:
    small = settings(tmp_path, memory_bytes=2 * NBYTES)
    async with serving(small, keeper=kept(tmp_path)) as running:
        with Peer(running.settings.workload_path) as peer:
            await come_back(peer)
            assert await hand(peer, 1, left.fds[1]) == Accepted()
            assert await hand(peer, 0, left.fds[0]) == Accepted()
            answer = await hand(peer, 2, left.fds[2], last=True)
            assert isinstance(answer, Refuse)
            assert "budget" in answer.reason
            assert running.used() == 2 * NBYTES


async def test_hand_back_without_an_fd_is_no_packet_of_ours(tmp_path: Path) -> None:
    async with serving(settings(tmp_path)) as running:
        with Peer(running.settings.workload_path) as peer:
            await peer.hello()
            await peer.send(encode(HandBack(slot=0, held=False, last=True)))
            (word,) = await peer.last_words()
            assert isinstance(word, Refuse)
            assert "without its fd" in word.reason


async def test_a_lost_connection_alone_costs_no_slot(tmp_path: Path) -> None:
    async with serving(settings(tmp_path)) as running:
        with Peer(running.settings.workload_path) as peer:
            await peer.register()
            await peer.reserve(NBYTES)
            await peer.stage(1)
            await peer.acquire()
            with Peer(running.settings.workload_path) as again:
                await come_back(again)
                for number in (0, 1, 2):
                    answer = await hand(again, number, peer.fds[number], last=number == 2)
                    assert answer == Accepted()
                assert states(running) == [(0, "complete", 1), (1, "free", None), (2, "free", None)]
                assert await again.acquire() in (1, 2)


@pytest.mark.parametrize(("started", "waits"), [(77, True), (-1, False)])
async def test_an_owner_that_cannot_be_seen_is_waited_for_where_it_could_be_known_again(
    tmp_path: Path, started: int, waits: bool
) -> None:
    fd = memfd(NBYTES, ALL)
    stat = os.fstat(fd)
    table = Table(tmp_path / "slots.table", boot="boot")
    record = SlotRecord(
        inode=(stat.st_dev, stat.st_ino), unit="root/train", job="train", rank=0, world=1, priority=0,
        run="", process=Process(0, started, 0, 0), share=1 << 40, arrived=0.0, died=None, newest=None,
        current=1, numbers=1, number=0, nbytes=NBYTES, shape=Shape("a.bin", "", 0, "", 1), reservation=1,
        state=SlotState.FREE, generation=None,
    )  # fmt: skip
    table.put(0, encode_record(record))
    table.close()
    keeper = Keeper(tmp_path / "slots.table", boot="boot", given=[Given("m1", fd)])
    keeper.open()
    async with serving(settings(tmp_path, orphan_seconds=0.5), keeper=keeper) as running:
        if waits:
            assert [one["alive"] for one in running.snapshot()["workloads"]] == [True]
            assert running.used() == NBYTES
        # But not for ever.
        await running.until(lambda: running.used() == 0)
