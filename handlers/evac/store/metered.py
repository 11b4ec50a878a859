"""A store that tells what it did and how long it took: for metrics and for a lane's rate."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TypeVar

from evac.errors import StoreError, StoreMissing
from evac.store import Entry, Store

T = TypeVar("T")


@dataclass(frozen=True)
class Observation:
    """One call that has ended.

    Attributes:
        verb: The method's name.
        nbytes: Of a body or object that was moved; of a failed put, those that were written.
        seconds: From call to answer.
        reason: Why it failed; "" where it did not. A missing object is a failure here, too.
        missing: It failed because the object is not there, which callers often only ask for.
    """

    verb: str
    key: str
    nbytes: int
    seconds: float
    reason: str = ""
    missing: bool = False

    @property
    def result(self) -> str:
        """``ok``, ``missing`` or ``failed``."""
        return "missing" if self.missing else "failed" if self.reason else "ok"


class Metered:
    """A `Store` around a store.

    Args:
        store: The one that is watched.
        observe: Called on the event loop after each call that was not cancelled.
        clock: Monotonic seconds.
    """

    def __init__(
        self, store: Store, observe: Callable[[Observation], None], *, clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._observe = observe
        self._clock = clock

    @property
    def url(self) -> str:
        """That of the store within."""
        return self._store.url

    async def put(
        self, key: str, data: memoryview, *, progress: Callable[[int], None] | None = None
    ) -> None:
        """See `Store.put`."""
        written = 0
        lock = Lock()  # several threads write one body

        def further(nbytes: int) -> None:
            nonlocal written
            with lock:
                written += nbytes
            if progress is not None:
                progress(nbytes)

        work = self._store.put(key, data, progress=further)
        await self._watched("put", key, work, lambda _: data.nbytes, lambda: written)

    async def create(self, key: str, data: bytes) -> bool:
        """See `Store.create`."""
        work = self._store.create(key, data)
        return await self._watched("create", key, work, lambda made: len(data) if made else 0)

    async def get(self, key: str) -> bytes:
        """See `Store.get`."""
        return await self._watched("get", key, self._store.get(key), len)

    async def read(self, key: str, offset: int, into: memoryview) -> int:
        """See `Store.read`."""
        return await self._watched("read", key, self._store.read(key, offset, into), int)

    async def list(self, prefix: str) -> Sequence[Entry]:
        """See `Store.list`."""
        return await self._watched("list", prefix, self._store.list(prefix), lambda _: 0)

    async def delete(self, key: str) -> None:
        """See `Store.delete`."""
        await self._watched("delete", key, self._store.delete(key), lambda _: 0)

    async def prepare(self, prefix: str) -> None:
        """See `Store.prepare`."""
        await self._watched("prepare", prefix, self._store.prepare(prefix), lambda _: 0)

    async def clean(self, *, older_than: float = 60.0) -> int:
        """See `Store.clean`."""
        work = self._store.clean(older_than=older_than)
        return await self._watched("clean", "", work, lambda _: 0)

    async def _watched(
        self,
        verb: str,
        key: str,
        work: Awaitable[T],
        nbytes: Callable[[T], int],
        on_failure: Callable[[], int] = lambda: 0,
    ) -> T:
        began = self._clock()
        try:
            answer = await work
        except StoreError as error:
            took = self._clock() - began
            missing = isinstance(error, StoreMissing)
            self._observe(Observation(verb, key, on_failure(), took, error.reason, missing))
            raise
        self._observe(Observation(verb, key, nbytes(answer), self._clock() - began))
        return answer
