"""Blocking work off the loop, in a few threads that all stores of a process share."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from threading import Event
from typing import TypeVar

T = TypeVar("T")
# A put takes up to four, and only those that are idle; more would not make a disk faster.
LIMIT = 16


def pool() -> ThreadPoolExecutor:
    """The threads of this process."""
    return _pool(os.getpid())


async def in_thread(work: Callable[[Event], T]) -> T:
    """Run *work* in a thread; when cancelled, ask it to stop and wait until it has.

    It reads or fills the caller's memory, which must not be freed under it.

    Args:
        work: Takes the event that asks it to stop, and looks at it every few milliseconds.
    """
    stop = Event()
    submitted = pool().submit(work, stop)
    running = asyncio.wrap_future(submitted)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        stop.set()
        submitted.cancel()
        while not running.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # looked at, so that asyncio does not complain: it is moot
        raise
    finally:
        # A failed future holds its error, that this frame, and it the caller's memory: in a circle.
        del running, submitted


@lru_cache(maxsize=1)
def _pool(pid: int) -> ThreadPoolExecutor:
    # By pid, because a fork inherits the object and none of its threads.
    return ThreadPoolExecutor(max_workers=LIMIT, thread_name_prefix=f"evac-store-{pid}")
