import asyncio
import threading

import pytest

from evacd.apart import apart
from tests.agent.busy import no_thread_left


async def test_it_waits_for_no_other_s_work() -> None:
    async with no_thread_left():
        assert await apart(lambda: 7) == 7


async def test_what_it_raises_is_raised() -> None:
    def broken() -> int:
        raise OSError("no disk")

    with pytest.raises(OSError, match="no disk"):
        await apart(broken)


async def test_a_cancel_does_not_wait_for_it() -> None:
    begun, over = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def hang() -> None:
        loop.call_soon_threadsafe(begun.set)
        over.wait()

    try:
        async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
            task = tasks.create_task(apart(hang))
            await begun.wait()
            task.cancel()
        assert task.cancelled()
    finally:
        over.set()
