"""Stores that are slow together until somebody is in a hurry, and count what they moved."""

from collections.abc import Callable
from threading import Lock

from evac.store import Owner, Store
from evac.store.paced import Paced


class Slow:
    """Opens stores for one generation, at one rate.

    Args:
        open_store: Gives the store behind a URL, whose files will be the owner's.
        bytes_per_second: Of each store; ranks go one after the other, so it is that of all.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        open_store: Callable[[str, Owner], Store],
        bytes_per_second: float,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._open_store = open_store
        self._rate = bytes_per_second
        self._clock = clock
        self._stores: dict[tuple[str, Owner], _Counted] = {}
        self._unleashed = False

    def open(self, url: str, owner: Owner) -> Store:
        """The store behind *url*, slowed down."""
        store = self._stores.get((url, owner))
        if store is None:
            store = _Counted(self._open_store(url, owner), self._rate, clock=self._clock)
            if self._unleashed:
                store.unleash()
            self._stores[url, owner] = store
        return store

    @property
    def moved(self) -> int:
        """Bytes of bodies that were written so far."""
        return sum(store.moved for store in self._stores.values())

    def unleash(self) -> None:
        """From now on as fast as the link goes."""
        self._unleashed = True
        for store in self._stores.values():
            store.unleash()


class _Counted(Paced):
    """Knows at any moment how much of its bodies is written."""

    def __init__(
        self, store: Store, bytes_per_second: float, *, clock: Callable[[], float]
    ) -> None:
        super().__init__(store, bytes_per_second, clock=clock)
        self.moved = 0
        self._lock = Lock()

    async def put(
        self, key: str, data: memoryview, *, progress: Callable[[int], None] | None = None
    ) -> None:
        """See `Store.put`."""

        def further(nbytes: int) -> None:
            with self._lock:  # several threads write one body
                self.moved += nbytes
            if progress is not None:
                progress(nbytes)

        await super().put(key, data, progress=further)
