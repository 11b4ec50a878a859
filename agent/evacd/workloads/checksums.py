"""CRC-32C of what was staged, taken in the background so that a flush finds it ready.

They are the guard against a workload that goes on writing after it said `staged`: what
reaches a store is compared with what was summed.
"""

import threading
from collections.abc import Callable
from functools import partial

from crc32c import crc32c

from evac.manifest import CHUNK
from evac.segment import PAGE
from evacd.apart import apart
from evacd.workloads.memory import Region


class Sums:
    """The checksums of one generation's files, per 4 MiB. Any thread may call.

    Args:
        region: Whoever gives it keeps it until the last step has ended.
        files: Bytes of each file; they follow each other, the first starts after the header page.
    """

    def __init__(self, region: Region, *files: int) -> None:
        self._region = region
        self._chunks: list[tuple[int, int]] = []
        self._files: list[range] = []
        start = PAGE
        for nbytes in files:
            first = len(self._chunks)
            self._chunks += [
                (start + at, min(CHUNK, nbytes - at)) for at in range(0, nbytes, CHUNK)
            ]
            self._files.append(range(first, len(self._chunks)))
            start += nbytes
        self._found: list[int | None] = [None] * len(self._chunks)
        self._next = 0
        self._cancelled = False

    @property
    def ready(self) -> int:
        """How many chunks are summed."""
        return sum(one is not None for one in self._found)

    @property
    def total(self) -> int:
        """How many there are."""
        return len(self._found)

    def known(self) -> list[int | None]:
        """What there is by now; None for a chunk that is not summed yet."""
        return list(self._found)

    def cancel(self) -> None:
        """Nobody wants them any more."""
        self._cancelled = True

    def step(self) -> bool:
        """Sum the next chunk; False when there is none left to sum, or it was cancelled."""
        while not self._cancelled and self._next < len(self._found):
            index = self._next
            self._next += 1
            # A race with another thread costs one chunk summed twice, nothing else.
            if self._found[index] is None:
                self._found[index] = self._sum(index)
                return True
        return False

    async def all(self) -> tuple[int, ...]:
        """Those of all files, one after the other."""
        return tuple([one for file in range(len(self._files)) for one in await self.of(file)])

    async def of(self, file: int) -> tuple[int, ...]:
        """All of one file's; what is missing is summed in a thread, now.

        Args:
            file: Its place among the files.
        """
        wanted = self._files[file]
        if any(self._found[index] is None for index in wanted):
            await apart(partial(self._finish, wanted))
        return tuple(one for index in wanted if (one := self._found[index]) is not None)

    def _finish(self, wanted: range) -> None:
        for index in wanted:
            if self._found[index] is None:
                self._found[index] = self._sum(index)

    def _sum(self, index: int) -> int:
        offset, nbytes = self._chunks[index]
        with self._region.view(offset, nbytes) as chunk:
            return crc32c(chunk)


class Summer:
    """One thread that sums, the newest generation first, a chunk at a time."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Sums, Callable[[], None]]] = []
        self._wake = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def add(self, sums: Sums, *, finished: Callable[[], None]) -> None:
        """Sum these before all others.

        Args:
            finished: Called once, from the thread, when *sums* is touched no more.
        """
        with self._wake:
            self._waiting.append((sums, finished))
            self._wake.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="evacd-sums", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Stop after the chunk in hand."""
        with self._wake:
            self._stopping = True
            for sums, _ in self._waiting:
                sums.cancel()
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._waiting or self._stopping)
                if not self._waiting:
                    return
                one = self._waiting[-1]
            if not one[0].step():
                with self._wake:
                    self._waiting.remove(one)
                one[1]()
                # Not kept until the next one comes: it holds on to memory.
                del one
