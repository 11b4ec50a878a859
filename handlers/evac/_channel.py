"""One connected SEQPACKET socket: whole packets in and out, never blocking.

Any thread may send, and a packet is in the kernel when `send` returns unless the daemon has
fallen behind: a workload that is stopped right afterwards has still said it.
"""

import array
import fcntl
import os
import socket
from collections import deque
from contextlib import suppress
from threading import RLock

from evac._trust import impostor
from evac.wire import MAX_FDS, MAX_PACKET

# The daemon reads at once; who is this far behind is hung, and is reconnected to.
MAX_OUTBOX = 256
_RECEIVE = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC


class ChannelError(Exception):
    """This connection is of no more use; the text says why."""


class Channel:
    """A connected socket, a bounded outbox, and the eventfd that wakes the reader."""

    def __init__(self, path: str, wake: int) -> None:
        """Connect.

        Raises:
            OSError: Nobody listens at *path*, or we may not.
            ChannelError: Whoever listens is not the daemon.
        """
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._wake = wake
        # A signal handler may send while its own thread is in here.
        self._lock = RLock()
        self._outbox: deque[tuple[bytes, int | None]] = deque()
        self._closed = False
        self._why = "evacd closed the connection"
        try:
            self.socket.setblocking(False)
            self.socket.connect(path)
            if wrong := impostor(self.socket, os.environ):
                raise ChannelError(f"{path}: {wrong}")
        except BaseException:
            self.socket.close()
            raise

    @property
    def behind(self) -> bool:
        """Whether packets wait for the socket to take them."""
        return bool(self._outbox)

    def send(self, packet: bytes, fd: int | None = None) -> None:
        """Send now, or line up behind what waits; a dead socket is the reader's to notice.

        Args:
            fd: Travels with the packet; stays the caller's.
        """
        with self._lock:
            if self._closed:
                return
            if not self._outbox and self._try(packet, fd):
                return
            # A copy, because the caller may close its own before it is sent.
            mine = None if fd is None else fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 0)
            self._outbox.append((packet, mine))
            if len(self._outbox) > MAX_OUTBOX:
                self._give_up(f"evacd left {MAX_OUTBOX} packets unread")
            # Inside the lock: after `close` the number may belong to another file.
            os.eventfd_write(self._wake, 1)

    def flush(self) -> None:
        """Send what waits, as far as the socket takes it."""
        with self._lock:
            while not self._closed and self._outbox and self._try(*self._outbox[0]):
                # Empty where the try found the socket dead.
                if self._outbox:
                    _close(self._outbox.popleft()[1])

    def receive(self) -> tuple[bytes, list[int]] | None:
        """One packet and its fds, which are the caller's to close; None where none waits.

        Raises:
            ChannelError: The other end is gone, or a packet came in pieces.
        """
        try:
            packet, fds, flags, _ = socket.recv_fds(
                self.socket, MAX_PACKET + 1, MAX_FDS, flags=_RECEIVE
            )
        except BlockingIOError:
            return None
        except OSError as error:
            raise ChannelError(error.strerror or "socket failed") from error
        reason = ""
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            reason = "evacd sent a packet that is too long, or too many fds"
        elif not packet:
            reason = self._why
        if reason:
            for fd in fds:
                os.close(fd)
            raise ChannelError(reason)
        return packet, fds

    def close(self) -> None:
        """Close; packets that wait are lost."""
        with self._lock:
            self._closed = True
            self._forget()
            self.socket.close()

    def forget(self) -> None:
        """In a forked child: let go of all; whoever held the lock is not here to give it back."""
        self._closed = True
        self._forget()
        self.socket.close()

    def _try(self, packet: bytes, fd: int | None) -> bool:
        rights = [] if fd is None else [_rights(fd)]
        try:
            self.socket.sendmsg([packet], rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        except OSError as error:
            self._give_up(error.strerror or "socket failed")
        return True

    def _give_up(self, why: str) -> None:
        """Make the reader see an end, and say *why* once."""
        self._why = why
        self._forget()
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def _forget(self) -> None:
        while self._outbox:
            _close(self._outbox.popleft()[1])


def _rights(fd: int) -> tuple[int, int, "array.array[int]"]:
    return socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd])


def _close(fd: int | None) -> None:
    if fd is not None:
        os.close(fd)
