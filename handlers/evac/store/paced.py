"""A store that writes bodies no faster than it may: for quiet time, beside training.

Stores say after each part that it is written, from the thread that writes it; made to wait there,
that thread starts no further part. So one body is slowed down from within, still as one object, where
a pause between bodies would let each of them fill the link for as long as it lasts.
"""

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Condition

from evac.errors import EvacError
from evac.store import Entry, Store
from evac.store.direct import Stopped


class Pace:
    """How long to wait for a steady rate. Pure.

    Raises:
        ValueError: The rate is not positive.
    """

    def __init__(self, bytes_per_second: float) -> None:
        if not bytes_per_second > 0:
            raise ValueError(f"{bytes_per_second} bytes per second, expected more than 0")
        self._rate = bytes_per_second
        self._paid_until = -math.inf

    def due(self, nbytes: int, now: float) -> float:
        """When the next bytes may begin, after *nbytes* more; unused time is not saved up."""
        self._paid_until = max(self._paid_until, now) + nbytes / self._rate
        return self._paid_until


class Paced:
    """A `Store` around a store. Only `put` is slowed down: what else there is, is small.

    Args:
        store: The one that is too fast.
        bytes_per_second: Of all puts together; parts in flight come on top, once.
        clock: Monotonic seconds.

    Raises:
        ValueError: The rate is not positive.
    """

    def __init__(
        self, store: Store, bytes_per_second: float, *, clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._pace = Pace(bytes_per_second)
        self._clock = clock
        self._changed = Condition()
        self._unleashed = False

    @property
    def url(self) -> str:
        """That of the store within."""
        return self._store.url

    def unleash(self) -> None:
        """Slow nothing down any more, and let go whoever waits: the bytes must leave now."""
        with self._changed:
            self._unleashed = True
            self._changed.notify_all()

    @contextmanager
    def _pausing(self) -> Iterator[None]:
        """Around each time that a writing thread is made to wait; for whoever counts that."""
        yield

    async def put(
        self, key: str, data: memoryview, *, progress: Callable[[int], None] | None = None
    ) -> None:
        """See `Store.put`."""
        ended = False
        failures: list[EvacError] = []

        def pace(nbytes: int) -> None:
            if progress is not None:
                progress(nbytes)
            with self._changed:
                due = self._pace.due(nbytes, self._clock())
                with self._pausing():
                    while not (ended or self._unleashed) and (left := due - self._clock()) > 0:
                        self._changed.wait(left)
                if ended:
                    raise Stopped  # it must not run on to its end before it hears that it is cancelled

        async def work() -> None:
            try:
                await self._store.put(key, data, progress=pace)
            except Stopped:
                pass  # ours, from above: whoever cancelled us knows
            except EvacError as error:
                failures.append(error)

        # A task of its own: when we are cancelled, its threads must be woken before it can end.
        async with asyncio.TaskGroup() as tasks:
            putting = tasks.create_task(work())
            try:
                await asyncio.wait([putting])
            finally:
                with self._changed:
                    ended = True
                    self._changed.notify_all()
        if failures:
            raise failures.pop()

    async def create(self, key: str, data: bytes) -> bool:
        """See `Store.create`."""
        return await self._store.create(key, data)

    async def get(self, key: str) -> bytes:
        """See `Store.get`."""
        return await self._store.get(key)

    async def read(self, key: str, offset: int, into: memoryview) -> int:
        """See `Store.read`."""
        return await self._store.read(key, offset, into)

    async def list(self, prefix: str) -> Sequence[Entry]:
        """See `Store.list`."""
        return await self._store.list(prefix)

    async def delete(self, key: str) -> None:
        """See `Store.delete`."""
        await self._store.delete(key)

    async def prepare(self, prefix: str) -> None:
        """See `Store.prepare`."""
        await self._store.prepare(prefix)

    async def clean(self, *, older_than: float = 60.0) -> int:
        """See `Store.clean`."""
        return await self._store.clean(older_than=older_than)
