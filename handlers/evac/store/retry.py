"""A store that tries again what may help: throttled, reset, timed out.

It knows no deadline: who calls it decides how long to wait, and cancels.
"""

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from evac.errors import StoreUnavailable
from evac.store import Entry, Store
from evac.store.progress import Told

T = TypeVar("T")
# Not out of the program's own numbers: a training run would be another one after a wait, and its ranks, which are
# all seeded alike, would wait alike.
_CHANCE = random.SystemRandom().random


class Retry:
    """A `Store` around a store.

    Args:
        store: The one that fails.
        sleep: Waits that many seconds; `asyncio.sleep` outside of tests.
        attempts: Of one call, the first included; at least 1.
        first: Longest wait before the second attempt, in seconds; it doubles each time.
        longest: No wait is longer, in seconds.
        chance: A number from 0 to 1: each wait is that share of its longest, so that nodes which
            failed together do not come back together.
    """

    def __init__(
        self,
        store: Store,
        *,
        sleep: Callable[[float], Awaitable[None]],
        attempts: int = 5,
        first: float = 0.2,
        longest: float = 5.0,
        chance: Callable[[], float] = _CHANCE,
    ) -> None:
        self._store = store
        self._sleep = sleep
        self._attempts = attempts
        self._first = first
        self._longest = longest
        self._chance = chance

    @property
    def url(self) -> str:
        """That of the store within."""
        return self._store.url

    async def put(
        self, key: str, data: memoryview, *, progress: Callable[[int], None] | None = None
    ) -> None:
        """See `Store.put`; *progress* hears of no byte twice."""
        told = Told(progress)
        await self._tried(lambda: self._store.put(key, data, progress=told.attempt()))

    async def create(self, key: str, data: bytes) -> bool:
        """See `Store.create`; False may speak of an attempt of ours whose answer was lost."""
        return await self._tried(lambda: self._store.create(key, data))

    async def get(self, key: str) -> bytes:
        """See `Store.get`."""
        return await self._tried(lambda: self._store.get(key))

    async def read(self, key: str, offset: int, into: memoryview) -> int:
        """See `Store.read`."""
        return await self._tried(lambda: self._store.read(key, offset, into))

    async def list(self, prefix: str) -> Sequence[Entry]:
        """See `Store.list`."""
        return await self._tried(lambda: self._store.list(prefix))

    async def delete(self, key: str) -> None:
        """See `Store.delete`."""
        await self._tried(lambda: self._store.delete(key))

    async def prepare(self, prefix: str) -> None:
        """See `Store.prepare`."""
        await self._tried(lambda: self._store.prepare(prefix))

    async def clean(self, *, older_than: float = 60.0) -> int:
        """See `Store.clean`."""
        return await self._tried(lambda: self._store.clean(older_than=older_than))

    async def _tried(self, work: Callable[[], Awaitable[T]]) -> T:
        for attempt in range(self._attempts - 1):
            try:
                return await work()
            except StoreUnavailable:
                longest = min(self._longest, self._first * 2.0**attempt)
            await self._sleep(longest * self._chance())
        return await work()
