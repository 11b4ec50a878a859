"""Where logs go out: a stream that never waits for whoever reads it.

Behind stderr is a journal or a container's runtime, and behind that a disk. Where that hangs nobody reads, and a write to
a full pipe would hold up the event loop, with it everything else. So only what goes in at once is written; the rest waits
for a thread, up to a bound, and what is beyond that is counted and told later.
"""

import atexit
import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress

# Some thousands of lines.
_MOST_WAITING = 1024 * 1024
# A pipe that can be written to takes so much at once, a socket more: pipe(7), PIPE_BUF.
_PIECE = 4096
_END_SECONDS = 1.0


class Outlet:
    """As much of a text stream as loggers use. Any thread may write.

    Args:
        fd: Stays the caller's, and open for as long as this is used.
        lost: The line that tells how many were dropped.
    """

    def __init__(self, fd: int, lost: Callable[[int], str]) -> None:
        self._fd = fd
        self._tell = lost
        self._changed = threading.Condition()
        self._left = bytearray()
        self._lost = 0
        self._waits = False
        self._ready = select.poll()
        self._ready.register(fd, select.POLLOUT)
        atexit.register(self.settle, _END_SECONDS)

    def write(self, text: str) -> int:
        """Write it now, or soon, or never; never blocks."""
        with self._changed:
            if len(self._left) > _MOST_WAITING:
                self._lost += 1
                return len(text)
            if self._lost:
                self._left += self._tell(self._lost).encode()
                self._lost = 0
            self._left += text.encode(errors="backslashreplace")
            self._push()
            if self._left and not self._waits:
                thread = threading.Thread(target=self._push_on, name="evacd-log", daemon=True)
                with suppress(RuntimeError):  # there are no more; the next line takes it along
                    thread.start()
                    self._waits = True
        return len(text)

    def flush(self) -> None:
        """Nothing waits here that could go."""

    def settle(self, seconds: float) -> bool:
        """Wait until all is out; False where that takes longer than *seconds*."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._left, seconds)

    def _push(self) -> None:
        while self._left and self._ready.poll(0):
            try:
                del self._left[: os.write(self._fd, self._left[:_PIECE])]
            except BlockingIOError:
                return
            except OSError:
                # Nobody will ever read it.
                self._left.clear()

    def _push_on(self) -> None:
        ready = select.poll()
        ready.register(self._fd, select.POLLOUT)
        while True:
            # Not under the lock, for which whoever logs would wait.
            ready.poll()
            with self._changed:
                self._push()
                if not self._left:
                    self._waits = False
                    self._changed.notify_all()
                    return
