"""Work that may block, in a thread of its own.

Not in the loop's, as `asyncio.to_thread` has it: there are few, and names that nobody resolves any
more may hold all of them for half a minute, just when a node leaves.
"""

from asyncio import Future, get_running_loop
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


async def apart(work: Callable[[], T]) -> T:
    """What *work* returns or raises. A cancel does not end it, and does not wait for it."""
    return await begun_apart(work)


def begun_apart(work: Callable[[], T]) -> Future[T]:
    """The same, for whoever waits for it after a cancel, too: begun at once, and no task of the loop's."""
    own = ThreadPoolExecutor(1, "evacd-apart")
    try:
        return get_running_loop().run_in_executor(own, work)
    finally:
        # Its thread ends with what it has to do.
        own.shutdown(wait=False)
