"""Stores that are slow together until somebody is in a hurry, and count what they moved.

A paced put takes as long as its pace wants, which says nothing of the link. But between its pauses
it moves its parts at full speed: bytes through the time in which not everybody was made to wait are a
rate that the link has shown, and so the least that it can do. More it may well do, with all its
threads at work at once; so this only ever raises what is believed of a lane. Where a put could not
even keep its pace, the link was the reason, and the whole of it is a measurement like any other.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock, get_ident
from typing import TypeAlias

from evac.store import Owner, Store
from evac.store.paced import Paced

Progress: TypeAlias = Callable[[int], None]

# Below so much of its pace, it was not the pace that held it up.
_KEPT_PACE = 0.8


@dataclass(frozen=True)
class Seen:
    """What a paced transfer has shown of its link.

    Attributes:
        seconds: In which *nbytes* moved.
        least: The link may do more; else it does just that.
    """

    nbytes: int
    seconds: float
    least: bool


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
        self._tell: Progress | None = None

    def open(self, url: str, owner: Owner) -> Store:
        """The store behind *url*, slowed down."""
        store = self._stores.get((url, owner))
        if store is None:
            store = _Counted(self._open_store(url, owner), self._rate, clock=self._clock)
            if self._unleashed:
                store.hurry(self._tell)
            self._stores[url, owner] = store
        return store

    @property
    def moved(self) -> int:
        """Bytes of bodies that were written so far."""
        return sum(store.moved for store in self._stores.values())

    def hurry(self, tell: Progress | None) -> None:
        """From now on as fast as the link goes; *tell* hears of further bytes, from any thread."""
        self._unleashed = True
        self._tell = tell
        for store in self._stores.values():
            store.hurry(tell)

    def seen(self) -> Seen | None:
        """What this has shown of the link; None where it was hurried, or nothing moved."""
        moved = self.moved
        taken = sum(store.seconds for store in self._stores.values())
        busy = sum(store.busy for store in self._stores.values())
        if self._unleashed or not moved or taken <= 0 or busy <= 0:
            return None
        if moved < _KEPT_PACE * self._rate * taken:
            return Seen(moved, taken, least=False)
        return Seen(moved, busy, least=True)


class _Counted(Paced):
    """Knows at any moment how much of its bodies is written, and in which time.

    Attributes:
        seconds: Of all its puts.
        busy: Of these, less those in which every thread that writes was made to wait.
    """

    def __init__(
        self, store: Store, bytes_per_second: float, *, clock: Callable[[], float]
    ) -> None:
        super().__init__(store, bytes_per_second, clock=clock)
        self.moved = 0
        self.seconds = 0.0
        self.busy = 0.0
        self._now = clock
        self._tell: Progress | None = None
        self._lock = Lock()
        self._writers: set[int] = set()
        self._waiting: set[int] = set()
        self._since = 0.0

    def hurry(self, tell: Progress | None) -> None:
        """Slow nothing down any more, and tell of what is written from now on."""
        self._tell = tell
        self.unleash()

    async def put(self, key: str, data: memoryview, *, progress: Progress | None = None) -> None:
        """See `Store.put`."""

        def further(nbytes: int) -> None:
            with self._lock:  # several threads write one body
                self.moved += nbytes
            for tell in (progress, self._tell):
                if tell is not None:
                    tell(nbytes)

        began = self._since = self._now()
        self._writers.clear()
        try:
            await super().put(key, data, progress=further)
        finally:
            now = self._now()
            self.seconds += now - began
            self._count_busy(now)

    @contextmanager
    def _pausing(self) -> Iterator[None]:
        """One writer is made to wait; when all are, nothing moves. Called with a lock held."""
        who = get_ident()
        self._writers.add(who)
        self._waiting.add(who)
        if self._waiting == self._writers:
            self._count_busy(self._now())
        try:
            yield
        finally:
            if self._waiting == self._writers:
                self._since = self._now()
            self._waiting.discard(who)

    def _count_busy(self, now: float) -> None:
        self.busy += max(now - self._since, 0.0)
        self._since = now
