"""How a body is cut for an object store, and the slices on their way there."""

from collections.abc import Callable, Iterator, Mapping
from threading import Lock

MIB = 1024 * 1024
# Up to here one request carries it all: two more round trips would cost more than they bring.
SINGLE = 16 * MIB
# S3 takes at most 10,000 parts, of at least 5 MiB each.
MAX_PARTS = 10_000
SMALLEST = 8 * MIB
# Larger parts than this gain nothing in speed, and lose more when one must be sent again.
LARGEST = 32 * MIB


def unbroken(got: Mapping[int, int], nbytes: int) -> int:
    """How many bytes are there from the first on, where single ranges of *nbytes* were asked for.

    Args:
        got: How many came of each, by where it begins.
    """
    total = 0
    for start in sorted(got):
        total += got[start]
        if total < start + nbytes:
            break
    return total


def part_nbytes(nbytes: int, *, most: int = MAX_PARTS) -> int:
    """The size of each part but the last of a body, in bytes: whole MiB.

    Args:
        most: Number of parts that may not be exceeded.
    """
    wished = min(max(-(-nbytes // 16), SMALLEST), LARGEST)
    needed = max(wished, -(-nbytes // most))
    return -(-needed // MIB) * MIB


class Stopped(Exception):
    """The put was given up: nobody may have any more of its memory."""


class Slices(Iterator[memoryview]):
    """A body part by part, without a copy, for a reader in another thread.

    It knows each slice that it handed out, so that its owner can tell when the last has been
    let go. When a part is asked for, the one *window* places before it has been written.

    Args:
        data: 1-D, contiguous, uint8.
        window: Parts that are on their way at once, at most.
        progress: Called in the reader's thread with the number of further bytes written.
    """

    def __init__(
        self, data: memoryview, size: int, *, window: int, progress: Callable[[int], None] | None
    ) -> None:
        self.reported = 0
        self._data = data
        self._size = size
        self._window = window
        self._progress = progress
        self._lock = Lock()
        self._handed: list[memoryview] = []
        self._next = 0
        self._stopped = False

    def __iter__(self) -> "Slices":
        return self

    def __next__(self) -> memoryview:
        """The next part.

        Raises:
            Stopped: Not StopIteration, which would make a short body look whole.
        """
        written = self._next - self._window * self._size
        if self._progress is not None and written > self.reported:
            step, self.reported = written - self.reported, written
            self._progress(step)
        with self._lock:
            if self._stopped:
                raise Stopped
            if self._next >= self._data.nbytes:
                raise StopIteration
            part = self._data[self._next : self._next + self._size]
            self._next += part.nbytes
            self._handed.append(part)
            return part

    def stop(self) -> None:
        """Hand out no more."""
        with self._lock:
            self._stopped = True

    def let_go(self) -> bool:
        """Whether nobody holds any slice any more."""
        with self._lock:
            try:
                while self._handed:
                    self._handed[-1].release()
                    self._handed.pop()
            except BufferError:
                return False
            return True
