"""Blocking work off the loop, in a few threads of each store: one that hangs takes them from no other."""

import asyncio
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event, Lock
from typing import TypeVar

T = TypeVar("T")
# A put takes up to four, and only those that are idle; more would not make a disk faster.
LIMIT = 16
# What was told to stop looks every few milliseconds; what has not by then hangs in the kernel.
STUCK_SECONDS = 5.0

log = logging.getLogger("evac")


class Threads:
    """The threads of one store; they end with it.

    Args:
        name: For whoever is told that some hang.
        patience: Seconds after which one that was told to stop is said to hang.
    """

    def __init__(self, name: str, *, patience: float = STUCK_SECONDS) -> None:
        self.patience = patience
        self._name = name
        self._lock = Lock()
        self._pid = 0
        self._pool: ThreadPoolExecutor | None = None
        self._stuck = 0

    @property
    def stuck(self) -> int:
        """How many do not end though they were told to: on a mount whose server is gone, say."""
        return self._stuck

    def pool(self) -> ThreadPoolExecutor:
        """Those of this process."""
        with self._lock:
            # A fork inherits the object and none of its threads.
            if self._pool is None or self._pid != os.getpid():
                self._pid = os.getpid()
                self._pool = ThreadPoolExecutor(LIMIT, thread_name_prefix=f"evac-store-{self._pid}")
            return self._pool

    def hangs(self) -> None:
        """One does not end."""
        with self._lock:
            self._stuck += 1
            stuck = self._stuck
        log.warning("%s: %d of %d threads hang and cannot be stopped", self._name, stuck, LIMIT)

    def ended(self) -> None:
        """One that hung has ended."""
        with self._lock:
            self._stuck -= 1


# For what belongs to no store, and what no cancel leaves behind.
SHARED = Threads("evac")


async def in_thread(work: Callable[[Event], T], threads: Threads = SHARED) -> T:
    """Run *work* in a thread; when cancelled, ask it to stop and wait until it has.

    It reads or fills the caller's memory, which must not be freed under it.

    Args:
        work: Takes the event that asks it to stop, and looks at it every few milliseconds.
        threads: Whose.
    """
    stop = Event()
    submitted = threads.pool().submit(work, stop)
    running = asyncio.wrap_future(submitted)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        stop.set()
        submitted.cancel()
        await _ended(running, threads)
        if not running.cancelled():
            running.exception()  # looked at, so that asyncio does not complain: it is moot
        raise
    finally:
        # A failed future holds its error, that this frame, and it the caller's memory: in a circle.
        del running, submitted


async def _ended(running: "asyncio.Future[T]", threads: Threads) -> None:
    """Wait for it, whoever cancels us meanwhile."""
    loop = asyncio.get_running_loop()
    late = loop.time() + threads.patience
    told = False
    try:
        while not running.done():
            left = None if told else max(0.0, late - loop.time())
            with suppress(asyncio.CancelledError):
                await asyncio.wait([running], timeout=left)
            if not (told or running.done()) and loop.time() >= late:
                told = True
                threads.hangs()
    finally:
        if told:
            threads.ended()
