"""A body on its way to Google Cloud Storage: in one request, or as part objects side by side."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from random import uniform
from threading import Event
from typing import TypeVar

from crc32c import crc32c

from evac.errors import StoreError, StoreUnavailable
from evac.store.direct import Stopped
from evac.store.errands import Errands
from evac.store.gcs_calls import Body, Calls, Made
from evac.store.threads import SHARED, Threads

T = TypeVar("T")
# Of one call; a lost one must not cost the body.
TRIES = 4
# The longest wait before the second try, in seconds; it doubles each time.
PAUSE = 0.2


class Upload:
    """A body on its way, shared by the threads that send it.

    Args:
        key: What an error is about.
        size: Of each part but the last, in bytes.
        stop: Looked at before each MiB.
        pause: See `tried`.
        lender: Whose threads send parts.
    """

    def __init__(
        self,
        calls: Calls,
        key: str,
        data: memoryview,
        size: int,
        stop: Event,
        progress: Callable[[int], None] | None,
        pause: float = PAUSE,
        lender: Threads = SHARED,
    ) -> None:
        self.stop = stop
        self._pause = pause
        self._lender = lender
        self._calls = calls
        self._key = key
        self._data = data
        self._progress = progress
        self._size = size
        self._made: dict[int, Made] = {}
        self._errands = Errands((), lambda _: None)

    def whole(self, name: str) -> None:
        """Send it in one request, under its own name."""
        self._send(name, 0, self._data.nbytes)

    def parts(self, folder: str, *, threads: int) -> None:
        """Send it as objects in *folder*; the calling thread works, too."""

        def send(start: int) -> None:
            end = min(start + self._size, self._data.nbytes)
            self._made[start] = self._send(f"{folder}/{start // self._size:05}", start, end)

        self._errands = Errands(range(0, self._data.nbytes, self._size), send, self._lender)
        self._errands.run(threads)

    def made(self) -> Sequence[Made]:
        """The parts, in order."""
        return [self._made[start] for start in sorted(self._made)]

    def _send(self, name: str, start: int, end: int) -> Made:
        with self._data[start:end] as part:
            crc = crc32c(part)

            def insert() -> Made:
                body = Body(part, alive=self._alive)
                made = self._calls.insert(name, body, key=self._key)
                if made.nbytes != part.nbytes or made.crc32c not in (None, crc):
                    with suppress(StoreError):
                        self._calls.delete(name, key=self._key)
                    raise StoreUnavailable(self._key, "damaged on its way: checksums differ")
                return Made(name, part.nbytes, crc, made.created)

            made = tried(insert, self.stop, pause=self._pause)
            if self._progress is not None and part.nbytes:
                self._progress(part.nbytes)
            return made

    def _alive(self) -> None:
        if self.stop.is_set() or self._errands.failed:
            raise Stopped


def tried(work: Callable[[], T], stop: Event, *, pause: float = PAUSE) -> T:
    """Do it again while that may help, a few times.

    Args:
        pause: The longest wait before the second try, in seconds; it doubles each time.

    Raises:
        Stopped: *stop* was set.
    """
    for attempt in range(TRIES):
        if stop.is_set():
            raise Stopped
        try:
            return work()
        except StoreUnavailable:
            if attempt == TRIES - 1:
                raise
            stop.wait(uniform(0, pause * 2**attempt))
    raise AssertionError("unreachable")
