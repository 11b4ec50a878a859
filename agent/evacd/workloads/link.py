"""One connection that never waits for its peer.

asyncio has no SOCK_SEQPACKET transport. One packet is one message; what a peer sends too large
or with several fds is refused, and a peer that does not read is dropped once its outbox is full: no send
here ever blocks, so that one stopped workload cannot keep the others from being told. Nor does a close: what
a peer has sent may take long to go (`evacd.workloads.closing`).

What a peer said before it went is heard all the same, up to its end of file: unix(7) keeps the
packets of a dead process, though they come after an ECONNRESET where it left any of ours unread.
"""

import array
import asyncio
import contextlib
import fcntl
import os
import socket
import struct
import termios
from collections import deque
from typing import Protocol

from evac.wire import MAX_PACKET, Refuse, encode
from evacd.workloads.closing import ROOM, Closing, fds_of

# Packets that may wait for a peer, beyond what the kernel's buffer takes (about 250).
OUTBOX = 256
# Of those, how many may carry an fd: 16 slots, and answers to a few questions.
_OUTBOX_FDS = 32
_INT = struct.Struct("i")
# Packets taken from one peer before the others have their turn.
_TURN = 16


class Receiver(Protocol):
    """Who is behind a link."""

    def received(self, packet: bytes, fd: int | None) -> None:
        """One whole packet came, with at most one fd, which is closed when this returns."""
        ...

    def ended(self, reason: str) -> None:
        """The link is closed; *reason* is "" where the peer closed it."""
        ...


class Link:
    """One connection. Everything happens on the loop; `receiver` is set by its maker.

    Attributes:
        drained: Set while nothing waits for the peer to read.
    """

    receiver: Receiver

    def __init__(
        self, sock: socket.socket, loop: asyncio.AbstractEventLoop, closing: Closing
    ) -> None:
        self.sock = sock
        self._closing = closing
        self.closed = False
        self.drained = asyncio.Event()
        self.drained.set()
        self._deaf = False
        self._loop = loop
        self._outbox: deque[tuple[bytes, int | None]] = deque()
        sock.setblocking(False)
        self.resume()

    @property
    def hears(self) -> bool:
        """Whether the peer can still be told anything."""
        return not (self.closed or self._deaf)

    @property
    def unread(self) -> bool:
        """Whether there is anything that the peer was sent and has not taken."""
        if not self.hears:
            return False
        # unix(7): what was sent counts until it is received.
        left = fcntl.ioctl(self.sock, termios.TIOCOUTQ, bytes(_INT.size))
        return bool(self._outbox or _INT.unpack(left)[0])

    @property
    def paused(self) -> bool:
        """Nothing is read of it for now."""
        return self._paused

    def pause(self) -> None:
        """Read nothing for now: the peer's next request waits in the kernel."""
        self._paused = True
        if not self.closed:
            self._loop.remove_reader(self.sock)

    def resume(self) -> None:
        """The counterpart of `pause`."""
        self._paused = False
        if not self.closed:
            self._loop.add_reader(self.sock, self.hear)

    def hear(self) -> bool:
        """Take what the peer has said by now, but no more than its turn; False where that was all.

        While paused it takes nothing, and true is what is returned: there may be more.
        """
        for _ in range(_TURN):
            if self.closed or self._paused:
                return not self.closed
            try:
                packet, rights, flags, _ = self.sock.recvmsg(
                    MAX_PACKET + 1, ROOM, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return False
            except ConnectionError:
                # Said once, and before what the peer had sent: that, and the end, come after it.
                continue
            except OSError as error:
                self._close(error.strerror or str(error))
                return False
            fds = fds_of(rights)
            try:
                self._take(packet, flags, fds)
            finally:
                self._closing.fds(fds)
        return not self.closed

    def send(self, packet: bytes, fd: int | None = None) -> None:
        """Send or queue one packet; drops the peer where its outbox is full.

        Args:
            fd: Travels with the packet; stays the caller's.
        """
        if not self.hears:
            return
        if not self._outbox:
            try:
                self._transmit(packet, fd)
            except BlockingIOError:
                self._loop.add_writer(self.sock, self._writable)
            except OSError as error:
                self._unsent(error)
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
            self.drained.clear()
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
            self._transmit(encode(Refuse(reason=reason[:1024], fatal=True)), None)

    def _take(self, packet: bytes, flags: int, fds: list[int]) -> None:
        if len(fds) > 1:
            self.drop("sent several fds, which no message to the daemon carries")
        elif flags & socket.MSG_CTRUNC:
            self.drop("sent an fd, and the daemon is out of them")
        elif flags & socket.MSG_TRUNC or len(packet) > MAX_PACKET:
            self.drop(f"sent a packet of more than {MAX_PACKET} bytes")
        elif not packet:
            self._close("")
        else:
            self.receiver.received(packet, fds[0] if fds else None)

    def _writable(self) -> None:
        while self._outbox:
            packet, fd = self._outbox[0]
            try:
                self._transmit(packet, fd)
            except BlockingIOError:
                return
            except OSError as error:
                self._unsent(error)
                return
            self._outbox.popleft()
            if fd is not None:
                os.close(fd)
        self._loop.remove_writer(self.sock)
        self.drained.set()

    def _transmit(self, packet: bytes, fd: int | None) -> None:
        if fd is None:
            self.sock.send(packet, socket.MSG_NOSIGNAL)
            return
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))
        self.sock.sendmsg([packet], [rights], socket.MSG_NOSIGNAL)

    def _unsent(self, error: OSError) -> None:
        if not isinstance(error, ConnectionError):
            self._close(error.strerror or str(error))
            return
        # It is gone, and that is no fault of anybody. The reader comes to its end, and closes.
        self._deaf = True
        self._forget_outbox()

    def _close(self, reason: str) -> None:
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self.sock)
        self._forget_outbox()
        self._closing.connection(self.sock)
        self.receiver.ended(reason)

    def _forget_outbox(self) -> None:
        self._loop.remove_writer(self.sock)
        for _, fd in self._outbox:
            if fd is not None:
                os.close(fd)
        self._outbox.clear()
        self.drained.set()
