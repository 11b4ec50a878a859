"""A pipe that a program writes into, read as it comes, of which little is kept.

Not an asyncio pipe: those are read to their end, which a child that outlives the program may
put off for ever.
"""

import asyncio
import os
from types import TracebackType

from evacd.notice.user.schema import MOST_BYTES

_MOST_TAIL = 4096


class Pipe:
    """Keeps the first `MOST_BYTES` and one, and the last few; drops what is between.

    Attributes:
        overflowed: More than `MOST_BYTES` was written.
    """

    def __init__(self) -> None:
        """Open it; it is read once it was entered."""
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._head = bytearray()
        self._tail = b""
        self._reading = False
        self._has_writer = True
        self.overflowed = asyncio.Event()

    def __enter__(self) -> "Pipe":
        asyncio.get_running_loop().add_reader(self._read_end, self._read)
        self._reading = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Forget it; a program that still writes gets SIGPIPE."""
        self.started()
        self._stop()
        os.close(self._read_end)

    def started(self) -> None:
        """The program has its copy of the write end, or will never need one."""
        if self._has_writer:
            self._has_writer = False
            os.close(self.write_end)

    def head(self) -> bytes:
        """What was written first; longer than `MOST_BYTES` where that was too much."""
        self._drain()
        return bytes(self._head)

    def last_line(self) -> str:
        """What was written last."""
        self._drain()
        lines = self._tail.decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def _drain(self) -> None:
        # A pipe's buffer is one read; more would only follow a child that never stops.
        for _ in range(2):
            if self._reading:
                self._read()

    def _read(self) -> None:
        try:
            piece = os.read(self._read_end, 65536)
        except BlockingIOError:
            return
        if not piece:
            self._stop()
        self._head += piece[: MOST_BYTES + 1 - len(self._head)]
        if len(self._head) > MOST_BYTES:
            self.overflowed.set()
        self._tail = (self._tail + piece)[-_MOST_TAIL:]

    def _stop(self) -> None:
        if self._reading:
            self._reading = False
            asyncio.get_running_loop().remove_reader(self._read_end)
