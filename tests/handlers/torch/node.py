"""A real board, on a loop of its own, that commits what it holds as the flush does."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue

from evac.generation import Generation
from evac.store import open_store
from evac.wire import Accepted
from evacd.clock import SystemClock
from evacd.flush.save import Saved, Saver
from evacd.workloads import Board, BoardSettings, Happening, StagedOne

LIMIT = 120.0


class Node:
    """What a test asks of the daemon's side."""

    def __init__(self, folder: Path, store: str) -> None:
        self.socket = folder / "evacd.sock"
        self.happened: SimpleQueue[Happening] = SimpleQueue()
        self._store = store
        self._settings = BoardSettings(
            workload_path=self.socket,
            admin_path=folder / "admin.sock",
            workload_mode=0o666,
            admin_group="",
            memory_bytes=64 * 2**20,
            user_bytes=1 << 62,
            slots=3,
            orphan_seconds=3600.0,
            max_priority=100,
            allow_users=(),
            node="node",
            boot="boot",
            version="0",
            stores=(store,),
        )
        self._started = threading.Event()

    async def serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        self._board = Board(
            self._settings,
            clock=SystemClock(),
            happened=self.happened.put,
            status=dict,
            admin=lambda _: Accepted(),
        )
        with suppress(asyncio.CancelledError):
            async with asyncio.TaskGroup() as tasks:
                serving = tasks.create_task(self._board.serve())
                await self._board.ready.wait()
                self._started.set()
                await self._over.wait()
                serving.cancel()

    def wait_ready(self) -> None:
        assert self._started.wait(LIMIT)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)

    def wait_staged(self, generation: Generation, ranks: int) -> str:
        """Wait until *ranks* ranks hold it; the unit's name."""
        there: set[int] = set()
        while True:
            happening = self.happened.get(timeout=LIMIT)
            if isinstance(happening, StagedOne) and happening.generation == generation:
                there.add(happening.rank)
                if len(there) == ranks:
                    return happening.unit

    def flush(self, unit: str, generation: Generation) -> bool:
        """Write it to the store; whether it is whole there."""
        done = asyncio.run_coroutine_threadsafe(self._flush(unit, generation), self._loop)
        return done.result(LIMIT)

    async def _flush(self, unit: str, generation: Generation) -> bool:
        saver = Saver(lambda url, _: open_store(url), node="node")
        with self._board.hold(unit, generation) as parts:
            saved = await saver.save(parts, lane=self._store, order="")
        assert isinstance(saved, Saved), saved
        return saved.whole


@contextmanager
def node(folder: Path, store: str) -> Iterator[Node]:
    """A node whose daemon listens."""
    made = Node(folder, store)
    thread = threading.Thread(target=lambda: asyncio.run(made.serve()))
    thread.start()
    made.wait_ready()
    try:
        yield made
    finally:
        made.stop()
        thread.join(LIMIT)
