"""Takes the connections of peers: one blocking thread each, never more than so many.

A stranger, who has not proved that it holds the token, costs a thread for a few seconds at most; the oldest
one goes when there are too many, and the more there are the slower further ones are let in.
"""

import socket
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import structlog

from evac.errors import ProtocolError
from evac.store.direct import Stopped
from evac.store.peer_line import Line, Lost
from evacd.clock import Clock
from evacd.peer.blocks import Blocks
from evacd.peer.holdings import Holdings
from evacd.peer.session import Session, Stranger
from evacd.workloads.memory import available

log = structlog.get_logger()

MOST_STRANGERS = 16
_BACKLOG = 64
_SWEEP_SECONDS = 2.0
# Refusals are told once in so many seconds, with their number: a flood must not fill the log.
_TELL_SECONDS = 10.0
_FULL = "as many peers as may be are connected, and all are busy"
_BUSY = float("inf")


@dataclass(frozen=True)
class PeerSettings:
    """Plain values, checked where the configuration is read.

    Attributes:
        host: Address to listen on.
        port: 0 takes a free one.
        token: What opens it; empty where nothing is asked for.
        budget: Bytes that all that is held here may take.
        keep_seconds: How long a generation is kept to which nobody adds.
        connections: The most at once.
    """

    host: str
    port: int
    token: bytes
    budget: int
    keep_seconds: float
    connections: int


class PeerServer:
    """Keeps other nodes' bytes in this one's memory.

    Args:
        leaving: Whether this node goes away itself; it takes nothing new then. Asked from any thread.
        promised: Bytes that the node's own workloads could still ask for. Asked from any thread.
    """

    def __init__(
        self,
        settings: PeerSettings,
        clock: Clock,
        *,
        leaving: Callable[[], bool],
        promised: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._leaving = leaving
        self._promised = promised
        self._blocks = Blocks(lambda: available() - promised())
        self._holdings = Holdings(
            self._blocks,
            budget=settings.budget,
            keep_seconds=settings.keep_seconds,
            clock=clock.monotonic,
        )
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._strangers: dict[Line, None] = {}  # oldest first
        # Since when nothing is under way on each, the longest first; never, where something is.
        self._peers: dict[Line, float] = {}
        self._threads: set[threading.Thread] = set()
        self._refused: Counter[str] = Counter()
        self._untold = 0
        self._told_leaving = False
        self._told_at = float("-inf")
        self._socket: socket.socket | None = None

    @property
    def port(self) -> int:
        """The one that it listens on; 0 where it does not."""
        return int(self._socket.getsockname()[1]) if self._socket is not None else 0

    def open(self) -> None:
        """Listen.

        Raises:
            OSError: The address cannot be had.
        """
        family = socket.AF_INET6 if ":" in self._settings.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((self._settings.host, self._settings.port))
            listener.listen(_BACKLOG)
        except BaseException:
            listener.close()
            raise
        self._socket = listener
        self._start(self._accept, listener)
        self._start(self._sweep)
        log.info(
            "peer.listening",
            address=self._settings.host,
            port=self.port,
            budget_nbytes=self._settings.budget,
            token=bool(self._settings.token),
        )

    def close(self) -> None:
        """Hang up and give everything back. Waits for what the threads have in hand."""
        self._stop.set()
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        with self._lock:
            for line in (*self._strangers, *self._peers):
                line.hang_up()
            threads = tuple(self._threads)
        for thread in threads:
            thread.join()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._holdings.close()

    def shown(self) -> dict[str, object]:
        """For the status."""
        with self._lock:
            connections, refused = len(self._peers), dict(self._refused)
        return {
            "address": self._settings.host,
            "port": self.port,
            "connections": connections,
            "refused": refused,
            "leaving": self._leaving(),
            **self._holdings.shown(),
        }

    # --- threads --------------------------------------------------------------------------

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        def run() -> None:
            try:
                work(*arguments)
            finally:
                with self._lock:
                    self._threads.discard(thread)

        thread = threading.Thread(target=run, name="evacd-peer", daemon=True)
        with self._lock:
            self._threads.add(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while not self._stop.is_set():
            try:
                plain, address = listener.accept()
            except OSError as error:
                # Out of descriptors, say, or the other end has gone already; or we are closing.
                if not self._stop.wait(0.1):
                    self._refuse("unaccepted", error.strerror or str(error), "")
                continue
            try:
                line = Line(plain, self._stop.is_set)
            except OSError:
                plain.close()
                continue
            with self._lock:
                self._strangers[line] = None
                waiting = len(self._strangers)
                if waiting > MOST_STRANGERS:
                    next(iter(self._strangers)).hang_up()
            try:
                self._start(self._serve, line, str(address[0]))
            except RuntimeError:  # no more threads
                self._forget(line)
                continue
            self._stop.wait(0.001 * (waiting - 1))

    def _serve(self, line: Line, address: str) -> None:
        def idle(now_idle: bool) -> None:
            with self._lock:
                # Put at the end: the first of those that idle has done so the longest.
                if self._peers.pop(line, None) is not None:
                    self._peers[line] = self._clock.monotonic() if now_idle else _BUSY

        try:
            session = Session(line, self._holdings, self._blocks, self._leaving, idle)
            with self._lock:
                room = len(self._peers) < self._settings.connections or self._longest_idle()
            if not session.shake_hands(self._settings.token, room=bool(room)):
                self._refuse("full", _FULL, address)
                return
            if not self._admit(line):
                self._refuse("full", _FULL, address)
                return
            session.serve()
        except Stranger:
            self._refuse("token", "another token, or none", address)
        except (ProtocolError, Lost) as error:
            kind = "protocol" if isinstance(error, ProtocolError) else "lost"
            self._refuse(kind, error.reason, address)
        except Stopped:
            pass
        finally:
            self._forget(line)

    def _admit(self, line: Line) -> bool:
        """Let in who has proved that it is a peer; where there is no room, in place of one that idles.

        One that is hung up on so finds out when it next asks, and comes back.
        """
        with self._lock:
            self._strangers.pop(line, None)
            if len(self._peers) >= self._settings.connections:
                if (other := self._longest_idle()) is None:
                    return False
                del self._peers[other]
                other.hang_up()
            self._peers[line] = self._clock.monotonic()
            return True

    def _longest_idle(self) -> Line | None:
        return next((line for line, since in self._peers.items() if since != _BUSY), None)

    def _forget(self, line: Line) -> None:
        with self._lock:
            self._strangers.pop(line, None)
            self._peers.pop(line, None)
        line.close()

    def _refuse(self, kind: str, reason: str, address: str) -> None:
        with self._lock:
            self._refused[kind] += 1
            self._untold += 1
            now = self._clock.monotonic()
            if now < self._told_at + _TELL_SECONDS:
                return
            self._told_at, times, self._untold = now, self._untold, 0
        log.warning("peer.refused", reason=reason, address=address, times=times)

    def _sweep(self) -> None:
        while not self._stop.wait(_SWEEP_SECONDS):
            dropped = self._holdings.sweep(self._promised() - available())
            if dropped:
                log.info("peer.dropped_old", nbytes=dropped)
            self.tell_what_leaves()

    def tell_what_leaves(self) -> None:
        """Say once for each leaving that what is kept for others goes with this node."""
        leaving, held = self._leaving(), self._holdings.shown()
        if leaving and not self._told_leaving and held["used"]:
            jobs = [job["prefix"] for job in held["jobs"]]
            log.warning("peer.held_bytes_leave", nbytes=held["used"], prefixes=jobs)
        self._told_leaving = leaving
