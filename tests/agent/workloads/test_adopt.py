"""What a job's processes left here, lent to one that has begun again, and to nobody else."""

import json
import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from evac.generation import Generation
from evac.segment import PAGE
from evac.wire import Acquire, Adopt, Adopted, Lent, Message, Refuse, Release, encode
from tests.agent.workloads.peers import Peer, Process, Running, serving, settings


class Loan:
    """What came of an `adopt`."""

    def __init__(self) -> None:
        self.fds: dict[int, int] = {}
        self.told: list[dict[str, Any]] = []
        self.end: Message | None = None

    def body(self, rank: int, step: int) -> bytes:
        (one,) = (t for t in self.told if (t["rank"], t["step"]) == (rank, step))
        return os.pread(self.fds[one["slot"]], one["body_nbytes"], PAGE)

    def close(self) -> None:
        for fd in self.fds.values():
            os.close(fd)


async def adopt(peer: Peer) -> Loan:
    peer._id += 1
    await peer.send(encode(Adopt(), id=peer._id))
    loan = Loan()
    while True:
        answer, fd = await peer.answer(peer._id)
        if isinstance(answer, Lent):
            assert fd is not None
            loan.fds[answer.slot] = fd
            continue
        loan.end = answer
        if isinstance(answer, Adopted):
            assert fd is not None
            loan.told = json.loads(os.pread(fd, answer.nbytes, 0))["slots"]
            os.close(fd)
        return loan


async def dead(running: Running, *ranks: int, steps: tuple[int, ...] = (1, 2)) -> None:
    """A job whose processes staged and were killed."""
    world = len(ranks)
    processes = []
    for rank in ranks:
        process = await Process(running.settings.workload_path).aboard("train", rank, world)
        processes.append(process)
    for step in steps:
        for process in processes:
            await process.stage(step)
    for process in processes:
        process.running.kill()
    await running.until(lambda: all(not w["alive"] for w in running.snapshot()["workloads"]))
    for process in processes:
        process.__exit__()


async def test_a_restarted_job_gets_the_slots_of_all_ranks_to_read(tmp_path: Path) -> None:
    async with serving(settings(tmp_path)) as running:
        await dead(running, 0, 1)
        with Peer(running.settings.workload_path) as peer:
            # Ranks move: it was none of those.
            await peer.register("train", 1, 2)

            loan = await adopt(peer)

            assert isinstance(loan.end, Adopted)
            assert loan.end.slots == 4
            assert [(t["step"], t["rank"]) for t in loan.told] == [(2, 1), (2, 0), (1, 1), (1, 0)]
            for told in loan.told:
                body = loan.body(told["rank"], told["step"])
                assert body == bytes([told["step"]]) * 5000
                assert told["crc32c"] == [crc32c(body)]
                assert (told["world"], told["incarnation"], told["body"]) == (2, 0, "__0_0.distcp")
            loan.close()


async def test_what_is_lent_cannot_be_written(tmp_path: Path) -> None:
    async with serving(settings(tmp_path)) as running:
        await dead(running, 0)
        with Peer(running.settings.workload_path) as peer:
            await peer.register()
            loan = await adopt(peer)
            for fd in loan.fds.values():
                nbytes = os.fstat(fd).st_size
                with pytest.raises(PermissionError):
                    mmap.mmap(fd, nbytes)
                with pytest.raises(OSError, match="Bad file descriptor"):
                    os.pwrite(fd, b"x", PAGE)
                mmap.mmap(fd, nbytes, prot=mmap.PROT_READ).close()
            loan.close()


async def test_what_is_lent_stays_until_it_is_released_or_its_borrower_is_gone(
    tmp_path: Path,
) -> None:
    async with serving(settings(tmp_path, orphan_seconds=0.5)) as running:
        await dead(running, 0, steps=(1, 2))
        with Peer(running.settings.workload_path) as peer:
            await peer.register()
            loan = await adopt(peer)
            # Long over: the owner is forgotten, what is lent is not.
            await running.until(lambda: len(running.snapshot()["workloads"]) == 1)
            assert running.used() == 2 * (1 << 20)
            assert loan.body(0, 1) == bytes([1]) * 5000

            await peer.send(encode(Release(slot=loan.told[0]["slot"])))

            await running.until(lambda: running.used() == 1 << 20)
            loan.close()
        await running.until(lambda: running.used() == 0)


async def test_a_new_generation_supersedes_what_was_left_but_not_while_it_is_lent(
    tmp_path: Path,
) -> None:
    async with serving(settings(tmp_path)) as running:
        await dead(running, 0, steps=(1,))
        with Peer(running.settings.workload_path) as peer:
            await peer.register()
            loan = await adopt(peer)
            await peer.reserve(1 << 20, incarnation=1)
            await peer.stage(2, incarnation=1)
            assert loan.body(0, 1) == bytes([1]) * 5000
            assert running.used() == 4 * (1 << 20)

            await peer.send(encode(Release(slot=loan.told[0]["slot"])))

            await running.until(lambda: running.used() == 3 * (1 << 20))
            loan.close()


async def test_a_live_owner_gets_no_slot_to_write_that_is_lent(tmp_path: Path) -> None:
    async with serving(settings(tmp_path)) as running:
        with Peer(running.settings.workload_path) as owner:
            await owner.register("train", 0, 2)
            await owner.reserve(1 << 20, slots=1)
            await owner.stage(1)
            with Peer(running.settings.workload_path) as peer:
                await peer.register("train", 1, 2)
                loan = await adopt(peer)
                assert loan.body(0, 1) == bytes([1]) * 5000
                await peer.reserve(1 << 20, slots=1)
                await peer.stage(1)
                running.board.mark_durable("root/train", Generation(0, 1), "s3://a")
                refused = await owner.ask_fd(Acquire())
                assert isinstance(refused[0], Refuse)
                loan.close()
            await running.until(lambda: not any(slot["held"] for slot in running.slots(0)))
            assert await owner.acquire() in owner.slots


async def test_nothing_left_is_nothing_adopted(tmp_path: Path) -> None:
    async with serving(settings(tmp_path)) as running:
        with Peer(running.settings.workload_path) as peer:
            await peer.register()
            loan = await adopt(peer)
            assert isinstance(loan.end, Adopted)
            assert loan.end.slots == 0
            assert loan.told == []


async def test_another_run_or_job_gets_nothing(tmp_path: Path) -> None:
    async with serving(settings(tmp_path)) as running:
        await dead(running, 0)
        with Peer(running.settings.workload_path) as peer:
            await peer.register(run="another")
            loan = await adopt(peer)
            assert isinstance(loan.end, Refuse)
            assert "another run" in loan.end.reason
        with Peer(running.settings.workload_path) as peer:
            await peer.register("other")
            loan = await adopt(peer)
            assert isinstance(loan.end, Adopted)
            assert loan.end.slots == 0


@pytest.fixture
def open_path(tmp_path: Path) -> Path:
    """A folder that every user may pass to."""
    for one in (tmp_path, *tmp_path.parents):
        with suppress(PermissionError):
            one.chmod(one.stat().st_mode | 0o011)
    return tmp_path


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
async def test_another_user_gets_nothing_whatever_the_job_is_called(open_path: Path) -> None:
    tmp_path = open_path
    async with serving(settings(tmp_path)) as running:
        await dead(running, 0)
        os.seteuid(65534)
        try:
            peer = Peer(running.settings.workload_path)
        finally:
            os.seteuid(0)
        with peer:
            registered = await peer.register()
            assert registered.prefix != "root/train"
            loan = await adopt(peer)
            assert isinstance(loan.end, Adopted)
            assert loan.end.slots == 0


async def test_a_borrower_that_does_not_read_is_waited_for(tmp_path: Path) -> None:
    async with serving(settings(tmp_path, slots=16)) as running:
        with Peer(running.settings.workload_path) as peer:
            await peer.register()
            await peer.reserve(64 * 1024, slots=16)
            for step in range(1, 16):
                await peer.stage(step)
            # 40 questions of 15 answers with an fd each: more than any outbox takes.
            for number in range(1000, 1040):
                await peer.send(encode(Adopt(), id=number))
            lent = 0
            for number in range(1000, 1040):
                while True:
                    answer, fd = await peer.answer(number)
                    assert fd is not None
                    os.close(fd)
                    if isinstance(answer, Adopted):
                        break
                    lent += 1
            assert lent == 40 * 15
