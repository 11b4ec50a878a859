"""Connections to one peer, kept while they are of use, each opened with proof of the token on both sides."""

import errno
import os
import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from weakref import WeakSet

from evac._clock import Monotonic, monotonic
from evac.errors import ProtocolError, StoreMissing, StoreRejected, StoreUnavailable
from evac.store import peer_wire as wire
from evac.store.peer_line import Line, Lost


@dataclass(frozen=True)
class Pace:
    """How long whoever asks can wait; seconds.

    Attributes:
        connect: Until a connection is there. The kernel asks again after 1, 3 and 7.
        handshake: For one step of it.
        quiet: In which not one byte moves, once connected.
    """

    connect: float
    handshake: float
    quiet: float


# A body has other peers to go to, and the notice is short: one that is frozen must not use it up.
HURRIED = Pace(connect=2.0, handshake=2.5, quiet=2.5)
# What is read is here or nowhere.
PATIENT = Pace(connect=8.0, handshake=10.0, quiet=float("inf"))
# Waiting ones; more are closed after use.
KEPT = 8
# A peer hangs up on who asks nothing for two minutes, and one that is gone does not even do that.
WAITS_SECONDS = 90.0
_SWEEP_SECONDS = 5.0


class PeerGone(StoreUnavailable):
    """Nothing listens there, and memory ends with the daemon that kept it.

    Attributes:
        refused: The host itself has said so; else there is no sign of it.
    """

    def __init__(self, key: str, reason: str, *, refused: bool = False) -> None:
        super().__init__(key, reason)
        self.refused = refused


class PeerLost(StoreUnavailable):
    """The connection broke, or fell silent: nothing more can be said over it."""


class Links:
    """What is connected to one peer. Any thread may use it.

    Args:
        host: Name or address.
        token_file: Holds what opens the peer; None for a peer that asks for nothing.
        patience: Seconds that an answer may take.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        host: str,
        port: int,
        token_file: Path | None,
        *,
        patience: float,
        clock: Monotonic = monotonic,
    ) -> None:
        self._clock = clock
        self._host = host
        self._port = port
        self._token_file = token_file
        self._patience = patience
        self._lock = Lock()
        # Each with since when.
        self._waiting: list[tuple[Line, float]] = []
        self._pid = os.getpid()
        self._sweeps = 0.0
        _everybody.add(self)

    @contextmanager
    def line(self, key: str, stop: Callable[[], bool], pace: Pace) -> "Iterator[Link]":
        """A connection for a few requests in a row.

        Args:
            key: For errors.
            stop: Whether nobody wants it any more; it raises `Stopped` then.

        Raises:
            StoreError: There is none, or it broke.
        """
        link = Link(self, key, stop, pace)
        try:
            yield link
        except StoreMissing:
            # An answer like any other, which ends with its header.
            link.give_back()
            raise
        except BaseException:
            # In the middle of something, perhaps: of no more use.
            link.drop()
            raise
        link.give_back()

    def close(self) -> None:
        """Close those that wait."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for line, _ in waiting:
            line.close()

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def let_go(self) -> None:
        """Close those that have waited for long."""
        before = self._clock() - WAITS_SECONDS
        with self._lock:
            old = [line for line, since in self._waiting if since <= before]
            self._waiting = [one for one in self._waiting if one[1] > before]
        for line in old:
            line.close()

    def take(self) -> Line | None:
        """One that waits."""
        with self._lock:
            if self._pid != os.getpid():
                # A fork inherits its parent's connections, and must not talk into them.
                for line, _ in self._waiting:
                    line.close()
                self._waiting.clear()
                self._pid = os.getpid()
            return self._waiting.pop()[0] if self._waiting else None

    def keep(self, line: Line) -> None:
        """One that is in order, for whoever comes next."""
        line.stopped, line.quiet = _never, float("inf")
        now = self._clock()
        with self._lock:
            kept = len(self._waiting) < KEPT and self._pid == os.getpid()
            if kept:
                self._waiting.append((line, now))
        if not kept:
            line.close()
        if now >= self._sweeps:
            self._sweeps = now + _SWEEP_SECONDS
            for links in _everybody.all():
                links.let_go()

    def open(self, key: str, stop: Callable[[], bool], pace: Pace) -> Line:
        """A new one.

        Raises:
            PeerGone: Nobody listens there.
            StoreUnavailable: There is no answer, or not now.
            StoreRejected: The token is not the peer's, or cannot be read.
        """
        token = self._token(key)
        try:
            plain = socket.create_connection((self._host, self._port), pace.connect)
        except socket.gaierror as error:
            reason = "its host name cannot be resolved"
            if error.errno == socket.EAI_AGAIN:
                raise StoreUnavailable(key, reason) from error
            raise PeerGone(key, reason) from error
        except TimeoutError as error:
            # So short a silence says nothing: a full backlog looks the same.
            kind = PeerGone if pace.connect >= PATIENT.connect else StoreUnavailable
            raise kind(key, "timed out") from error
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            refused = isinstance(error, ConnectionRefusedError)
            if refused or error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
                raise PeerGone(key, reason, refused=refused) from error
            raise StoreUnavailable(key, reason) from error
        line = Line(plain, stop)
        try:
            _shake_hands(line, token, key, pace.handshake)
        except BaseException:
            line.close()
            raise
        return line

    @property
    def patience(self) -> float:
        """Seconds that an answer may take."""
        return self._patience

    def _token(self, key: str) -> bytes:
        if self._token_file is None:
            return b""
        try:
            token = self._token_file.read_bytes().strip()
        except OSError as error:
            reason = f"token file {self._token_file}: {error.strerror or error}"
            raise StoreRejected(key, reason) from error
        if not token:
            raise StoreRejected(key, f"token file {self._token_file} is empty")
        return token


class _Everybody:
    """All peers of this process: of one that nobody asks again, nobody else would close what waits for that."""

    def __init__(self) -> None:
        self._links: WeakSet[Links] = WeakSet()
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        # A thread that held it when this process was forked is not here to let it go.
        self._lock = Lock()

    def add(self, links: Links) -> None:
        """One more."""
        with self._lock:
            self._links.add(links)

    def all(self) -> "list[Links]":
        """Those whose stores there still are."""
        with self._lock:
            return list(self._links)


_everybody = _Everybody()


class Link:
    """A connection in use, opened when it is first needed."""

    def __init__(self, links: Links, key: str, stop: Callable[[], bool], pace: Pace) -> None:
        self._links = links
        self._key = key
        self._stop = stop
        self._pace = pace
        self._line: Line | None = None

    def ask(
        self, what: wire.Request, body: memoryview | None = None, *, sealed: bool = False
    ) -> wire.Answer:
        """One request, *body* behind it, and its answer.

        Args:
            sealed: See `wire.is_sealed`.

        Raises:
            StoreError: There was none.
        """
        with self._translated():
            return self._asked(what, body, sealed)

    def receive(self, into: memoryview, *, sealed: bool) -> None:
        """What the last answer announced.

        Args:
            sealed: See `wire.is_sealed`.

        Raises:
            StoreUnavailable: It did not come, or not as it was sent.
        """
        with self._translated():
            damaged = self._get().receive_chunks(into, sealed=sealed)
        if damaged is not None:
            raise StoreUnavailable(self._key, f"chunk {damaged} of the answer arrived damaged")

    def give_back(self) -> None:
        """Nothing is under way on it."""
        if self._line is not None:
            self._links.keep(self._line)
            self._line = None

    def drop(self) -> None:
        """Something may be."""
        if self._line is not None:
            self._line.close()
            self._line = None

    def _asked(self, what: wire.Request, body: memoryview | None, sealed: bool) -> wire.Answer:
        first = self._line is None
        line = self._get()
        try:
            return self._exchange(line, what, body, sealed)
        except Lost as lost:
            # The peer may have closed it while nobody used it: not a failure of this request.
            if not (first and lost.untouched):
                raise
        self._links.close()
        self.drop()
        return self._exchange(self._ready(self._opened()), what, body, sealed)

    def _exchange(
        self, line: Line, what: wire.Request, body: memoryview | None, sealed: bool
    ) -> wire.Answer:
        line.send_header(wire.request(what))
        if body is not None:
            line.send_chunks(body, sealed=sealed)
        header = line.receive_header(
            wire.ANSWER_NBYTES, wire.text_nbytes, patience=self._links.patience
        )
        return wire.read_answer(header)

    def _get(self) -> Line:
        return self._line or self._ready(self._links.take() or self._opened())

    def _opened(self) -> Line:
        return self._links.open(self._key, self._stop, self._pace)

    def _ready(self, line: Line) -> Line:
        line.stopped, line.quiet = self._stop, self._pace.quiet
        self._line = line
        return line

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except Lost as error:
            raise PeerLost(self._key, error.reason) from error
        except ProtocolError as error:
            raise StoreUnavailable(self._key, error.reason) from error


def _shake_hands(line: Line, token: bytes, key: str, patience: float) -> None:
    """Prove that we hold the token, and have the peer prove it, before a byte of anybody's goes out.

    Raises:
        StoreError: There is no peer of ours, or it has no room.
    """
    ours = secrets.token_bytes(wire.NONCE)
    try:
        line.send(wire.hello(ours))
        taken, theirs = wire.read_welcome(line.receive(wire.WELCOME_NBYTES, patience=patience))
        if not taken:
            raise StoreUnavailable(key, "the peer has all the connections that it takes")
        both = wire.Secrets(token, ours, theirs)
        line.send(both.of_client)
        proof = wire.read_verdict(line.receive(wire.VERDICT_NBYTES, patience=patience))
    except Lost as error:
        raise StoreUnavailable(key, error.reason) from error
    except ProtocolError as error:
        raise StoreRejected(key, error.reason) from error
    if proof is None:
        raise StoreRejected(key, "access denied: the peer has another token, or we have none")
    if not wire.same(proof, both.of_server):
        raise StoreRejected(key, "access denied: the peer does not know our token")
    line.seal(wire.Seal(both.session, b"c"), wire.Seal(both.session, b"s"))


def _never() -> bool:
    return False
