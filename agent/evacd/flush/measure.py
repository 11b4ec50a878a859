"""Learns a lane's rate before it matters: write a probe object, time it, forget it."""

import mmap
import secrets

from evac.errors import StoreError
from evac.store import Store
from evacd.clock import Clock

PROBE_NBYTES = 32 * 1024 * 1024
# A fast disk is timed over more than one put, a slow one does not have to take more.
_ENOUGH_SECONDS = 0.25
_MOST_PUTS = 8


async def measure(store: Store, *, clock: Clock, node: str) -> tuple[int, float] | StoreError:
    """Bytes and seconds of some durable puts, or why there was none.

    The first, tiny object pays for what is paid once: folders, connections, name look-ups.
    """
    # Page-aligned like a slot, and never all zeros, which some disks do not store.
    memory = mmap.mmap(-1, PROBE_NBYTES)
    memory.write(secrets.token_bytes(4096) * (PROBE_NBYTES // 4096))
    key = f"evac-probe/{node}-{secrets.token_hex(4)}.bin"
    view = memoryview(memory)
    try:
        await store.put(key, view[:4096])
        began = clock.monotonic()
        puts, took = 0, 0.0
        while puts < _MOST_PUTS and took < _ENOUGH_SECONDS:
            await store.put(key, view)
            puts, took = puts + 1, clock.monotonic() - began
        await store.delete(key)
    except StoreError as error:
        return error
    return puts * PROBE_NBYTES, took
