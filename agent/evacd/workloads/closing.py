"""Closes what peers have made, where it holds nobody up: they say how long that takes.

The last close(2) of a TCP socket that lingers (socket(7), SO_LINGER) waits for hours, that of a file system in
user space for its maker, and that of a large memfd a tenth of a second per GiB; a packet that carries such a file
and is let go unread closes it, too. So whatever came from a peer is closed in threads, and its connection with it.
"""

import array
import os
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

# Each that hangs holds one; what comes while all of them hang waits.
_MOST_THREADS = 64
_INT = array.array("i").itemsize
# unix(7): no packet carries more; of what there is no room for, the kernel closes the rest by itself.
ROOM = socket.CMSG_SPACE(253 * _INT)
_AT_ONCE = struct.pack("ii", 0, 0)
# An empty packet looks like the end of all; a connection holds fewer of them.
_MOST_EMPTY = 4096


class Closing:
    """One for all connections of a daemon. Any thread may ask; only `settle` blocks."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], None]] = deque()
        self._threads = 0

    def fds(self, fds: Sequence[int]) -> None:
        """Close what a packet has brought; nothing of it is the caller's any more."""
        if fds:
            self._ask(lambda: _close(fds))

    def connection(self, sock: socket.socket) -> None:
        """Hang up now, and close it with all that was not read."""
        with suppress(OSError):  # the other end was quicker
            sock.shutdown(socket.SHUT_RDWR)
        self._ask(lambda: _close_unread(sock))

    def settle(self, seconds: float) -> bool:
        """Wait until all is closed; False where that takes longer than *seconds*."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._threads, seconds)

    def _ask(self, work: Callable[[], None]) -> None:
        with self._changed:
            self._waiting.append(work)
            if self._threads >= _MOST_THREADS:
                return
            # No end of the process waits for one that hangs.
            thread = threading.Thread(target=self._work, name="evacd-close", daemon=True)
            with suppress(RuntimeError):  # there are no more; those that work go on with it
                thread.start()
                self._threads += 1

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._threads -= 1
                    self._changed.notify_all()
                    return
                work = self._waiting.popleft()
            work()
            # It would hold on to a connection for as long as the next one takes.
            del work


def fds_of(rights: list[tuple[int, int, bytes]]) -> list[int]:
    """What came with a packet; each is the caller's now."""
    found = array.array("i")
    for level, kind, data in rights:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(data[: len(data) - len(data) % _INT])
    return found.tolist()


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        with suppress(OSError):  # it is no socket, or one that knows no such thing
            sock = socket.socket(fileno=fd)
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
            finally:
                sock.detach()
        with suppress(OSError):  # a network file system tells so late that it has failed
            os.close(fd)


def _close_unread(sock: socket.socket) -> None:
    """What is closed unread would turn our last words into ECONNRESET, and close what it carries in its own time."""
    empty = 0
    with sock, suppress(OSError):
        while empty < _MOST_EMPTY:
            packet, rights, _, _ = sock.recvmsg(1, ROOM, socket.MSG_CMSG_CLOEXEC)
            empty = 0 if packet else empty + 1
            _close(fds_of(rights))
