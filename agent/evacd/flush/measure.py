"""Learns a lane's rate before it matters: write a probe object, time it, forget it."""

import mmap
import re
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress

from evac.errors import StoreError
from evac.store import Store
from evacd.clock import Clock

PROBES = "evac-probe"
# What a slow link takes in a second or two; a fast one is asked for more.
FIRST_NBYTES = 4 * 1024 * 1024
# The whole buffer: the daemon is to stay small, also at its start.
PROBE_NBYTES = 8 * 1024 * 1024
# What takes longer than this was long enough to be timed.
_LONG_SECONDS = 0.05
_ENOUGH_SECONDS = 0.25
_MOST_PUTS = 16
_LEAST_SHARE = 0.25
_PAGE = 4096
# Longer than the records that file systems compress one by one.
_RANDOM_NBYTES = 256 * 1024


def is_probe(key: str, node: str) -> bool:
    """Whether *key* is a probe that some daemon of *node* has written."""
    return re.fullmatch(rf"{PROBES}/{re.escape(node)}-[0-9a-f]{{8}}\.bin", key) is not None


async def measure(
    store: Store, *, clock: Clock, node: str, stop: Callable[[], bool]
) -> tuple[int, float] | StoreError | None:
    """Bytes and seconds of some durable puts, or why there was none.

    The first, tiny object pays for what is paid once: folders, connections, name look-ups.
    The second, as tiny, tells what every object costs beside its bytes. That is taken off the
    larger ones: a flush is large, and its commits are planned for apart.

    Args:
        stop: Asked before every put: whether the link is wanted for something better.

    Returns:
        None where *stop* said so before anything was timed.
        Seconds are those that the bytes alone took.
    """
    key = f"{PROBES}/{node}-{secrets.token_hex(4)}.bin"
    # Page-aligned like a slot. Not closed by hand: a put that was cancelled may read on.
    view = memoryview(_filled(PROBE_NBYTES))
    timed: list[tuple[int, float]] = []
    try:
        if stop():
            return None
        await store.put(key, view[:_PAGE])
        began = clock.monotonic()
        await store.put(key, view[:_PAGE])
        fixed = clock.monotonic() - began
        while not (stop() or _enough(timed)):
            nbytes = PROBE_NBYTES if timed else FIRST_NBYTES
            began = clock.monotonic()
            await store.put(key, view[:nbytes])
            timed.append((nbytes, clock.monotonic() - began))
    except StoreError as error:
        return error
    finally:
        # One that stays is found by `tidy` at the next start.
        with suppress(StoreError):
            await store.delete(key)
    # The first, smaller one only found out whether more is of use.
    counted = timed[1:] or timed
    if not counted:
        return None
    # One slow tiny object must not make a link endless: so much is always the bytes' own.
    own = sum(max(took - fixed, took * _LEAST_SHARE) for _, took in counted)
    return sum(nbytes for nbytes, _ in counted), own


def _enough(timed: Sequence[tuple[int, float]]) -> bool:
    if not timed:
        return False
    took = sum(seconds for _, seconds in timed)
    return timed[-1][1] >= _LONG_SECONDS or took >= _ENOUGH_SECONDS or len(timed) > _MOST_PUTS


def _filled(nbytes: int) -> mmap.mmap:
    """With what no disk compresses, and without a second buffer of its size."""
    memory = mmap.mmap(-1, nbytes)
    block = secrets.token_bytes(_RANDOM_NBYTES)
    for _ in range(nbytes // _RANDOM_NBYTES):
        memory.write(block)
    return memory
