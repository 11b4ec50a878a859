"""Learns a lane's rate before it matters: write a probe object, time it, forget it."""

import mmap
import secrets

from evac.errors import StoreError
from evac.store import Store
from evacd.clock import Clock

PROBE_NBYTES = 32 * 1024 * 1024


async def measure(store: Store, *, clock: Clock, node: str) -> tuple[int, float] | StoreError:
    """Bytes and seconds of one durable put, or why there was none.

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
        await store.put(key, view)
        took = clock.monotonic() - began
        await store.delete(key)
    except StoreError as error:
        return error
    return PROBE_NBYTES, took
