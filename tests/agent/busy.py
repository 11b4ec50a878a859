"""A loop whose threads are all busy, as they are behind names that nobody resolves any more."""

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager


@asynccontextmanager
async def no_thread_left() -> AsyncIterator[None]:
    """While the block runs, what is given to `asyncio.to_thread` does not begin."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    over = threading.Event()
    busy = loop.run_in_executor(None, over.wait)
    try:
        # What waits for a thread is ended: it would for ever.
        async with asyncio.timeout(20):
            yield
    finally:
        over.set()
        await busy
