"""Threads of one store hang without harm to any other."""

import asyncio
import logging
import threading
from pathlib import Path

import pytest

from evac.store.local import LocalStore
from evac.store.threads import LIMIT, Threads, in_thread


async def test_a_store_whose_threads_all_hang_takes_none_from_another(tmp_path: Path) -> None:
    """As on a mount whose server is gone: neither a signal nor a cancel ends such a call."""
    gone, told = threading.Event(), threading.Semaphore(0)

    def hang(_: int) -> None:
        told.release()
        gone.wait()

    dead, good = LocalStore(f"{tmp_path}/dead"), LocalStore(f"{tmp_path}/good")
    body = memoryview(bytes(4096))
    async with asyncio.TaskGroup() as tasks:
        hung = [
            tasks.create_task(dead.put(f"a/{number}", body, progress=hang))
            for number in range(LIMIT)
        ]
        try:
            for _ in hung:
                assert await asyncio.to_thread(told.acquire, timeout=60)
            for task in hung:
                task.cancel()
            async with asyncio.timeout(60):
                await good.put("a/b", body)
        finally:
            gone.set()

    assert await good.get("a/b") == bytes(body)


async def test_threads_that_cannot_be_stopped_are_told(caplog: pytest.LogCaptureFixture) -> None:
    gone, began = threading.Event(), threading.Event()

    class Mount(Threads):
        def hangs(self) -> None:
            super().hangs()
            gone.set()

    threads = Mount("file:///mnt/dead", patience=0.05)

    def hang(_: threading.Event) -> None:
        began.set()
        gone.wait()

    with caplog.at_level(logging.WARNING, "evac"):
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(in_thread(hang, threads))
            await asyncio.to_thread(began.wait, 60)
            task.cancel()

    assert threads.stuck == 0
    assert f"file:///mnt/dead: 1 of {LIMIT} threads hang" in caplog.text
