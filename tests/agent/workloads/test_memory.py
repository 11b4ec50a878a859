import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Generator
from pathlib import Path

import pytest
from crc32c import crc32c

from evac.segment import PAGE
from evacd.workloads.checksums import Summer, Sums
from evacd.workloads.memory import Answer, Region, Stopped, available, build
from tests.agent.busy import no_thread_left
from tests.open_files import open_files

MIB = 1024 * 1024


def test_a_region_is_warm_zeroed_and_sealed() -> None:
    before = open_files()
    region = build(40 * MIB, lambda: False)

    # Every page is there: st_blocks counts 512-byte units.
    assert os.fstat(region.fd).st_blocks * 512 == 40 * MIB
    seals = fcntl.fcntl(region.fd, fcntl.F_GET_SEALS)
    assert seals == fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    with region.view(39 * MIB, MIB) as view:
        assert bytes(view) == bytes(MIB)
        assert view.readonly
    assert region.let_go()
    region.close()
    assert open_files() <= before


def test_pages_are_huge_where_the_kernel_gives_them_and_warm_where_not() -> None:
    setting = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    told = setting.read_text() if setting.exists() else ""
    nbytes = 8 * MIB + mmap.PAGESIZE

    region = build(nbytes, lambda: False)
    with region.view(0, nbytes) as view:
        assert not any(view[:: mmap.PAGESIZE])  # looked at: so it is mapped as it lies there
        mapped = Path("/proc/self/smaps").read_text().partition("evac-slot")[2]

    huge = next(line for line in mapped.splitlines() if line.startswith("ShmemPmdMapped:"))
    assert int(huge.split()[1]) == 0 or "[never]" not in told
    # No more than was asked for, the last page's huge neighbour included.
    assert os.fstat(region.fd).st_blocks * 512 == nbytes
    region.close()


def test_nothing_is_kept_of_a_region_that_nobody_wants_any_more() -> None:
    before, asked = open_files(), 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked == 2

    with pytest.raises(Stopped):
        build(64 * MIB, stop)
    assert open_files() <= before


def test_more_than_the_machine_has_is_refused_at_once() -> None:
    assert available() > 0
    with pytest.raises(OSError, match=os.strerror(errno.ENOMEM)):
        build(2**46, lambda: False)


def test_the_last_user_closes_and_a_forgotten_view_stays_readable() -> None:
    region = build(PAGE, lambda: False)
    region.keep()
    view = region.view(0, PAGE)

    assert not region.let_go()
    assert region.let_go()
    region.close()
    assert bytes(view[:4]) == bytes(4)


def test_an_answer_cannot_be_changed_by_who_gets_it() -> None:
    answer = Answer(b"answer")
    fd = answer.fd
    try:
        assert os.pread(fd, 100, 0) == b"answer"
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.pwrite(fd, b"x", 0)
        with pytest.raises(PermissionError):
            mmap.mmap(fd, 6)
        answer.give_back()
        # Whoever keeps it keeps no memory, and meets no SIGBUS.
        assert os.pread(fd, 100, 0) == bytes(6)
        assert os.fstat(fd).st_blocks == 0
    finally:
        answer.sent()


@pytest.fixture
def region() -> Generator[Region, None, None]:
    made = build(17 * MIB, lambda: False)
    os.pwrite(made.fd, os.urandom(10 * MIB), PAGE)
    yield made
    made.close()


def expected(region: Region, nbytes: int) -> tuple[int, ...]:
    body = os.pread(region.fd, nbytes, PAGE)
    return tuple(crc32c(body[at : at + 4 * MIB]) for at in range(0, nbytes, 4 * MIB))


async def test_missing_sums_are_made_on_demand(region: Region) -> None:
    sums = Sums(region, 9 * MIB + 1)
    assert sums.step()
    assert (sums.ready, sums.total) == (1, 3)

    assert await sums.of(0) == expected(region, 9 * MIB + 1)
    assert not sums.step()


async def test_missing_sums_wait_for_nobody_else_s_work(region: Region) -> None:
    async with no_thread_left():
        assert await Sums(region, 9 * MIB).of(0) == expected(region, 9 * MIB)


async def test_cancelled_sums_are_still_made_for_who_asks(region: Region) -> None:
    sums = Sums(region, 9 * MIB)
    sums.cancel()
    assert not sums.step()

    assert await sums.of(0) == expected(region, 9 * MIB)


def test_the_background_sums_everything_and_says_when_it_is_through(region: Region) -> None:
    summer, through = Summer(), [threading.Event(), threading.Event()]
    both = Sums(region, 8 * MIB), Sums(region, 16 * MIB)
    for sums, event in zip(both, through, strict=True):
        summer.add(sums, finished=event.set)
    assert all(event.wait(30) for event in through)
    assert [(sums.ready, sums.total) for sums in both] == [(2, 2), (4, 4)]
    summer.close()


def test_the_background_stops_when_it_is_told(region: Region) -> None:
    summer, through = Summer(), threading.Event()
    for _ in range(200):
        summer.add(Sums(region, 16 * MIB), finished=through.set)
    summer.close()
    assert through.is_set()
