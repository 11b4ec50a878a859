"""One connection that never waits for its peer.

asyncio has no SOCK_SEQPACKET transport. One packet is one message; what a peer sends too large
or with fds is refused, and a peer that does not read is dropped once its outbox is full: no send
here ever blocks, so that one stopped workload cannot keep the others from being told.
"""

import array
import asyncio
import contextlib
import os
import socket
from collections import deque
from typing import Protocol

from evac.wire import MAX_PACKET, Refuse, encode

# Packets that may wait for a peer, beyond what the kernel's buffer takes (about 250).
OUTBOX = 256
# Of those, how many may carry an fd: 16 slots, and answers to a few questions.
_OUTBOX_FDS = 32
# Packets taken from one peer before the others have their turn.
_TURN = 16


class Receiver(Protocol):
    """Who is behind a link."""

    def received(self, packet: bytes) -> None:
        """One whole packet came."""
        ...

    def ended(self, reason: str) -> None:
        """The link is closed; *reason* is "" where the peer closed it."""
        ...


class Link:
    """One connection. Everything happens on the loop; `receiver` is set by its maker."""

    receiver: Receiver

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self.sock = sock
        self.closed = False
        self._loop = loop
        self._outbox: deque[tuple[bytes, int | None]] = deque()
        sock.setblocking(False)
        self.resume()

    def pause(self) -> None:
        """Read nothing for now: the peer's next request waits in the kernel."""
        self._paused = True
        if not self.closed:
            self._loop.remove_reader(self.sock)

    def resume(self) -> None:
        """The counterpart of `pause`."""
        self._paused = False
        if not self.closed:
            self._loop.add_reader(self.sock, self._readable)

    def send(self, packet: bytes, fd: int | None = None) -> None:
        """Send or queue one packet; drops the peer where its outbox is full.

        Args:
            fd: Travels with the packet; stays the caller's.
        """
        if self.closed:
            return
        if not self._outbox:
            try:
                self._transmit(packet, fd)
            except BlockingIOError:
                self._loop.add_writer(self.sock, self._writable)
            except OSError as error:
                self._close(_gone(error))
                return
            else:
                return
        fds = sum(waiting is not None for _, waiting in self._outbox) if fd is not None else 0
        if len(self._outbox) >= OUTBOX or fds >= _OUTBOX_FDS:
            self.drop(f"does not read: {len(self._outbox)} packets are waiting for it")
            return
        try:
            # A copy, because the caller may close its own before the peer reads.
            self._outbox.append((packet, None if fd is None else os.dup(fd)))
        except OSError as error:
            self.drop(f"the daemon is out of fds: {error.strerror}")

    def drop(self, reason: str) -> None:
        """Tell the peer what it did wrong, as far as it listens, and close."""
        self._last_words(reason)
        self._close(reason)

    def hang_up(self, reason: str) -> None:
        """Close for a reason that is nobody's fault; the receiver hears of no reason."""
        self._last_words(reason)
        self._close("")

    def _last_words(self, reason: str) -> None:
        if self.closed:
            return
        with contextlib.suppress(OSError):
            # What it sent and nobody read would turn our last words into ECONNRESET.
            self.sock.shutdown(socket.SHUT_RD)
            while self.sock.recv(1):
                pass
        with contextlib.suppress(OSError):
            self._transmit(encode(Refuse(reason=reason[:1024], fatal=True)), None)

    def _readable(self) -> None:
        for _ in range(_TURN):
            try:
                # Without room for ancillary data the kernel installs no fd here, whatever comes.
                packet, _, flags, _ = self.sock.recvmsg(MAX_PACKET + 1, 0)
            except BlockingIOError:
                return
            except OSError as error:
                self._close(_gone(error))
                return
            if flags & socket.MSG_CTRUNC:
                self.drop("sent fds, which no message to the daemon carries")
            elif flags & socket.MSG_TRUNC or len(packet) > MAX_PACKET:
                self.drop(f"sent a packet of more than {MAX_PACKET} bytes")
            elif not packet:
                self._close("")
            else:
                self.receiver.received(packet)
            if self.closed or self._paused:
                return

    def _writable(self) -> None:
        while self._outbox:
            packet, fd = self._outbox[0]
            try:
                self._transmit(packet, fd)
            except BlockingIOError:
                return
            except OSError as error:
                self._close(_gone(error))
                return
            self._outbox.popleft()
            if fd is not None:
                os.close(fd)
        self._loop.remove_writer(self.sock)

    def _transmit(self, packet: bytes, fd: int | None) -> None:
        if fd is None:
            self.sock.send(packet, socket.MSG_NOSIGNAL)
            return
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))
        self.sock.sendmsg([packet], [rights], socket.MSG_NOSIGNAL)

    def _close(self, reason: str) -> None:
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self.sock)
        self._loop.remove_writer(self.sock)
        for _, fd in self._outbox:
            if fd is not None:
                os.close(fd)
        self._outbox.clear()
        self.sock.close()
        self.receiver.ended(reason)


def _gone(error: OSError) -> str:
    """A peer that went away is no fault of anybody."""
    return "" if isinstance(error, ConnectionError) else error.strerror or str(error)
