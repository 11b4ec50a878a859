"""Learns a lane's rate before it matters: write a probe object, time it, forget it.

A small object goes over one connection and a body over all that its store has: to a bucket that is far away, that is
eight times as fast. So the last probes of a link are as large as a body with a part for each of them; where so much would
hold the link up for long, one connection's rate has to do. A disk has one rate.

What disturbs a probe, a machine that starts much else beside its daemon say, only ever makes it slower. So what decides
whether a large one is of use is asked for more than once, and of the large ones the faster counts. The first of them
also opens the connections, which a flush of many gigabytes does not feel.
"""

import ctypes
import mmap
import os
import re
import secrets
from asyncio import TaskGroup, wait
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from evac.errors import StoreError
from evac.groups import one_error
from evac.store import Store
from evacd.clock import Clock

PROBES = "evac-probe"
# What a slow link takes in a second or two; a fast one is asked for more.
FIRST_NBYTES = 4 * 1024 * 1024
# All that the buffer has: the daemon is to stay small, also at its start.
PROBE_NBYTES = 8 * 1024 * 1024
# A part for each connection, of every kind of store that has such: the buffer over and over again.
WIDE_NBYTES = 8 * PROBE_NBYTES
# Of a slower link some parts; below that a body goes in one.
LEAST_WIDE_NBYTES = 3 * PROBE_NBYTES
# What each of them may take, going by what one connection does; and how many there are.
WIDE_SECONDS = 4.0
WIDE_TIMES = 2
# A link whose first object says that it is too slow for that is asked again, so often at most.
_MOST_SMALL = 4
# What one rank's commit asks of a store beside its body: objects that are written or deleted, and looks.
COMMIT_WRITES = 5
COMMIT_LOOKS = 5
# What takes longer than this was long enough to be timed.
_LONG_SECONDS = 0.05
_ENOUGH_SECONDS = 0.25
_MOST_PUTS = 16
_LEAST_SHARE = 0.25
_LOOK_SECONDS = 0.1
_PAGE = 4096
# Longer than the records that file systems compress one by one.
_RANDOM_NBYTES = 256 * 1024
_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
_MAP_FIXED = 0x10  # mmap(2); the module does not name it

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
)  # fmt: skip


def is_probe(key: str, node: str) -> bool:
    """Whether *key* is a probe that some daemon of *node* has written."""
    return re.fullmatch(rf"{PROBES}/{re.escape(node)}-[0-9a-f]{{8}}\.bin", key) is not None


class Measured(NamedTuple):
    """What some durable puts have shown.

    Attributes:
        seconds: Those that the bytes alone took.
        commit_seconds: What a commit will take, from what single small calls took.
    """

    nbytes: int
    seconds: float
    commit_seconds: float


async def measure(
    store: Store, *, clock: Clock, node: str, stop: Callable[[], bool], wide: bool = False
) -> Measured | StoreError | None:
    """What the link does, or why nobody knows.

    The first, tiny object pays for what is paid once: folders, connections, name look-ups.
    The second, as tiny, tells what every object costs beside its bytes. That is taken off the
    larger ones: a flush is large, and its commits are planned for apart.

    Args:
        stop: Asked before every put, and while one lasts: whether the link is wanted for something better.
        wide: Bodies go over several connections at once.

    Returns:
        None where *stop* said so before anything was timed.
    """
    key = f"{PROBES}/{node}-{secrets.token_hex(4)}.bin"
    # Page-aligned like a slot. Not closed by hand: a put that was cancelled may read on.
    view = memoryview(_filled(PROBE_NBYTES, WIDE_NBYTES // PROBE_NBYTES if wide else 1))
    timed: list[tuple[int, float]] = []

    async def put(nbytes: int) -> float | None:
        """Seconds that it took; None where the link was wanted before it was through."""
        began = clock.monotonic()
        whole = await _unless(stop, store.put(key, view[:nbytes]))
        return clock.monotonic() - began if whole else None

    async def looked() -> float:
        """Seconds that it takes to see what is there."""
        began = clock.monotonic()
        await store.get(key)
        return clock.monotonic() - began

    try:
        if stop() or await put(_PAGE) is None or (fixed := await put(_PAGE)) is None:
            return None
        # As with the tiny objects, the first one pays for what is paid once.
        look = min([await looked() for _ in range(2)])
        commit = COMMIT_WRITES * fixed + COMMIT_LOOKS * look
        while not (stop() or _enough(timed)):
            nbytes = PROBE_NBYTES if timed else FIRST_NBYTES
            if (took := await put(nbytes)) is not None:
                timed.append((nbytes, took))
        # The first, smaller one only found out whether more is of use.
        counted = timed[1:] or timed
        while wide and not stop() and _asks_again(counted, fixed):
            if (took := await put(FIRST_NBYTES)) is not None:
                counted.append((FIRST_NBYTES, took))
        single = _counted(counted, fixed)
        if single is None:
            return None
        nbytes, large = _most_wide(counted, fixed) if wide else 0, list[float]()
        # Whoever has no room for that much, a peer's memory say, takes what is smaller all the same.
        with suppress(StoreError):
            while nbytes and len(large) < WIDE_TIMES and not stop():
                if (took := await put(nbytes)) is not None:
                    large.append(took)
    except StoreError as error:
        return error
    finally:
        # One that stays is found by `tidy` at the next start.
        with suppress(StoreError):
            await store.delete(key)
    best = _counted([(nbytes, min(large))], fixed) if large else None
    return Measured(*(best or single), commit)


def _asks_again(timed: Sequence[tuple[int, float]], fixed: float) -> bool:
    """Whether one more small object is worth its time: those so far say that the link is too slow for a large one."""
    took = sum(seconds for _, seconds in timed)
    return 0 < len(timed) < _MOST_SMALL and took < WIDE_SECONDS and not _most_wide(timed, fixed)


def _most_wide(timed: Sequence[tuple[int, float]], fixed: float) -> int:
    """How large a body is of use where small ones took so long, by the one that nothing has disturbed; 0 for none."""
    return max((_wide(*one) for each in timed if (one := _counted([each], fixed))), default=0)


def _wide(nbytes: int, seconds: float) -> int:
    """How large a body is of use on a link of which one connection has taken so long; 0 for none."""
    fits = int(nbytes / seconds * WIDE_SECONDS) // PROBE_NBYTES * PROBE_NBYTES
    return min(fits, WIDE_NBYTES) if fits >= LEAST_WIDE_NBYTES else 0


def _counted(timed: Sequence[tuple[int, float]], fixed: float) -> tuple[int, float] | None:
    """Bytes, and the seconds that they took without what every object costs; None where there are none."""
    if not timed:
        return None
    # One slow tiny object must not make a link endless: so much is always the bytes' own.
    own = sum(max(took - fixed, took * _LEAST_SHARE) for _, took in timed)
    return sum(nbytes for nbytes, _ in timed), own


async def _unless(stop: Callable[[], bool], work: Coroutine[Any, Any, None]) -> bool:
    """Do it, and give it up as soon as *stop* says so; whether it was done."""
    with one_error():
        async with TaskGroup() as tasks:
            doing = tasks.create_task(work)
            while not (await wait([doing], timeout=_LOOK_SECONDS))[0]:
                if stop():
                    doing.cancel()
                    return False
    return True


def _enough(timed: Sequence[tuple[int, float]]) -> bool:
    if not timed:
        return False
    took = sum(seconds for _, seconds in timed)
    return timed[-1][1] >= _LONG_SECONDS or took >= _ENOUGH_SECONDS or len(timed) > _MOST_PUTS


def _filled(nbytes: int, times: int) -> mmap.mmap:
    """With what no disk compresses: *nbytes* of it, which are there *times* times, one behind the other."""
    fd = os.memfd_create("evac-probe")
    try:
        block = secrets.token_bytes(_RANDOM_NBYTES)
        for _ in range(nbytes // _RANDOM_NBYTES):
            os.write(fd, block)
        # The room for all of them, over which the same pages are laid again and again.
        memory = mmap.mmap(-1, nbytes * times)
        begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for at in range(begin, begin + nbytes * times, nbytes):
            if _libc.mmap(at, nbytes, _READ_WRITE, mmap.MAP_SHARED | _MAP_FIXED, fd, 0) != at:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code))
    finally:
        os.close(fd)
    return memory
