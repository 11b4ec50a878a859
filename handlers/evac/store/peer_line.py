"""One connection between peers: blocking, in pieces, with a look around every fraction of a second.

Blocking sockets with the kernel's own time limits (socket(7), SO_RCVTIMEO), because Python's turn a
socket non-blocking and cost a poll for every call. `sendall` out of the shared memory and `recv_into`
into it are what measured cheapest of all ways between two processes; asyncio's cost half as much again.
Checksums are taken piece by piece, while the piece is in the processor's cache.
"""

import select
import socket
import struct
from collections.abc import Callable
from contextlib import suppress

from crc32c import crc32c

from evac.errors import ProtocolError
from evac.store import peer_wire as wire
from evac.store.direct import Stopped

TICK = 0.2
PIECE = 256 * 1024
# A header, or one chunk, that takes longer than this holds others up.
PATIENCE = 30.0
# No limit but these: for whoever has nowhere else to go.
_NO_LIMIT = float("inf")


class Lost(Exception):
    """The connection has ended, or is too slow to be of use.

    Attributes:
        untouched: Not one byte came since the last answer: a connection that had been closed
            while nobody used it looks like this.
    """

    def __init__(self, reason: str, *, untouched: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.untouched = untouched


class Line:
    """Bytes there and back. For one thread at a time.

    Args:
        plain: Connected; it is closed with this.
        stopped: Asked between pieces, and every 0.2 s where none moves.

    Attributes:
        quiet: Seconds in which not one byte moves after which the other end is given up.
    """

    def __init__(self, plain: socket.socket, stopped: Callable[[], bool]) -> None:
        self.stopped = stopped
        self.quiet = _NO_LIMIT
        self._socket = plain
        plain.setblocking(True)
        limit = struct.pack("@ll", 0, int(TICK * 1e6))
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sending: wire.Seal | None = None
        self._receiving: wire.Seal | None = None

    def seal(self, sending: wire.Seal, receiving: wire.Seal) -> None:
        """Mark and check all headers from now on."""
        self._sending, self._receiving = sending, receiving

    def wait(self, seconds: float) -> bool:
        """Whether something came, an end included, within *seconds*: one wake-up, however long."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def close(self) -> None:
        """End it; from another thread, too."""
        self._socket.close()

    def hang_up(self) -> None:
        """Wake whoever waits on it."""
        with suppress(OSError):  # it has ended already
            self._socket.shutdown(socket.SHUT_RDWR)

    # --- plain bytes ----------------------------------------------------------------------

    def send(self, data: bytes | memoryview, *, patience: float = PATIENCE) -> None:
        """Send all of *data*.

        Raises:
            Lost: The other end is gone, or takes too long.
            Stopped: Nobody wants it any more.
        """
        with memoryview(data) as view:
            self._push(view, patience)

    def receive(self, nbytes: int, *, patience: float = PATIENCE, idle: bool = False) -> bytes:
        """Exactly so many bytes.

        Args:
            idle: Nothing has been asked yet: an end before the first byte is no failure.

        Raises:
            Lost: The other end is gone, or takes too long.
            Stopped: Nobody wants it any more.
        """
        buffer = bytearray(nbytes)
        with memoryview(buffer) as view:
            self._fill(view, patience, 0, idle=idle)
        return bytes(buffer)

    # --- headers and chunks ---------------------------------------------------------------

    def send_header(self, header: bytes) -> None:
        """With its mark."""
        self.send(header + self._mark(header))

    def receive_header(
        self, nbytes: int, more: Callable[[bytes], int], *, patience: float = PATIENCE
    ) -> bytes:
        """A header of *nbytes*, and as many more as its head says.

        Raises:
            ProtocolError: Its mark is not right.
            Lost: See `receive`.
            Stopped: See `receive`.
        """
        head = self.receive(nbytes, patience=patience, idle=True)
        rest = self.receive(more(head) + wire.MAC)
        header = head + rest[: -wire.MAC]
        self._check(header, rest[-wire.MAC :])
        return header

    def send_chunks(self, data: memoryview, *, sealed: bool = False) -> None:
        """All of *data*, a checksum behind each 4 MiB.

        Args:
            sealed: The checksum's mark covers the bytes themselves; see `wire.is_sealed`.

        Raises:
            Lost: See `send`.
            Stopped: See `send`.
        """
        for start in range(0, data.nbytes, wire.CHUNK):
            crc, left, end = 0, PATIENCE, min(start + wire.CHUNK, data.nbytes)
            for at in range(start, end, PIECE):
                # Released at once: an exported slice would keep the owner from unmapping.
                with data[at : min(at + PIECE, end)] as piece:
                    crc = crc32c(piece, crc)
                    left = self._push(piece, left)
            summed = wire.checksum(crc)
            mark = self._mark(summed + data[start:end].tobytes() if sealed else summed)
            self.send(summed + mark)

    def receive_chunks(self, into: memoryview, *, sealed: bool = False) -> int | None:
        """Fill *into*; the number of the first chunk that is not what was sent, None for none.

        Args:
            sealed: See `send_chunks`.

        Raises:
            ProtocolError: A checksum, or sealed bytes, that the other end did not send.
            Lost: See `receive`.
            Stopped: See `receive`.
        """
        damaged: int | None = None
        for number, start in enumerate(range(0, into.nbytes, wire.CHUNK)):
            with into[start : start + wire.CHUNK] as chunk:
                crc = self._fill(chunk, PATIENCE, 0)
                got = self.receive(wire.SUM_NBYTES)
                summed, mark = got[: -wire.MAC], got[-wire.MAC :]
                wrong = wire.read_checksum(summed) != crc
                if sealed and wrong:
                    self._mark_of_next()  # nothing to compare: the bytes are not those it was made of
                else:
                    self._check(summed + chunk.tobytes() if sealed else summed, mark)
            if damaged is None and wrong:
                damaged = number
        return damaged

    def skip_chunks(self, nbytes: int) -> None:
        """Take off the line what is for nobody, whatever it is.

        Raises:
            Lost: See `receive`.
            Stopped: See `receive`.
        """
        with memoryview(bytearray(min(nbytes, wire.CHUNK))) as nowhere:
            for start in range(0, nbytes, wire.CHUNK):
                with nowhere[: nbytes - start] as chunk:
                    self._fill(chunk, PATIENCE, 0)
                self.receive(wire.SUM_NBYTES)
                self._mark_of_next()

    def _fill(self, view: memoryview, patience: float, crc: int, *, idle: bool = False) -> int:
        got, left, quiet = 0, patience, self.quiet
        while got < view.nbytes:
            if self.stopped():
                raise Stopped
            with view[got : got + PIECE] as piece:
                step = self._receive(piece, untouched=idle and not got)
                left -= TICK if step < piece.nbytes else 0.0
                quiet = self.quiet if step else quiet - TICK
                with piece[:step] as fresh:
                    crc = crc32c(fresh, crc)
            got += step
            if min(left, quiet) < 0:
                raise Lost("timed out")
        return crc

    def _receive(self, piece: memoryview, *, untouched: bool) -> int:
        try:
            # All of it unless the other end, or the kernel's time limit, comes in between.
            step = self._socket.recv_into(piece, 0, socket.MSG_WAITALL)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise Lost(_why(error), untouched=untouched) from error
        if step == 0:
            raise Lost("connection lost", untouched=untouched)
        return step

    def _push(self, view: memoryview, patience: float) -> float:
        """Send all of *view*; returns the patience that is left."""
        sent, quiet = 0, self.quiet
        while sent < view.nbytes:
            if self.stopped():
                raise Stopped
            with view[sent : sent + PIECE] as piece:
                try:
                    step = self._socket.send(piece)
                except BlockingIOError:
                    step = 0
                except OSError as error:
                    raise Lost(_why(error), untouched=True) from error
                patience -= TICK if step < piece.nbytes else 0.0
                quiet = self.quiet if step else quiet - TICK
            sent += step
            if min(patience, quiet) < 0:
                raise Lost("it takes bytes too slowly")
        return patience

    def _mark(self, header: bytes) -> bytes:
        if self._sending is None:
            raise ProtocolError("no header before the handshake")
        return self._sending.mark(header)

    def _mark_of_next(self) -> None:
        if self._receiving is not None:
            self._receiving.mark(b"")

    def _check(self, header: bytes, mark: bytes) -> None:
        if self._receiving is None:
            raise ProtocolError("no header before the handshake")
        self._receiving.check(header, mark)


def _why(error: OSError) -> str:
    return "connection lost" if isinstance(error, ConnectionError) else error.strerror or str(error)
