"""The thread that owns the socket: connect, register, listen, and come back after a loss."""

import errno
import logging
import os
import select
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from threading import Condition, Thread, current_thread
from typing import Protocol, TypeAlias

from evac import _fork
from evac._channel import Channel, ChannelError
from evac._clock import Monotonic, monotonic
from evac._outage import Outages, cure
from evac._settings import Settings
from evac._talk import (
    FIRST_RETRY,
    HANDSHAKE_SECONDS,
    LAST_RETRY,
    Aboard,
    Returning,
    Talk,
    Unwelcome,
)
from evac.errors import NotConnected, ProtocolError
from evac.wire import Message, Refuse, Registered, Welcome, encode

log = logging.getLogger("evac")

# Called in the socket thread, which also closes the fd afterwards. Both are None when the
# connection was lost before an answer came.
Answer: TypeAlias = Callable[[Message | None, int | None], None]
Late: TypeAlias = Callable[[Message], None]

_UNTRIED = "not connected yet"


class Slots(Returning, Protocol):
    """Who has slots that a new daemon should have back. Called in the socket thread."""

    def aboard(self, *, resumed: bool) -> None:
        """On board again: with all that was handed back, or with nothing."""
        ...


@dataclass
class _Call:
    """One request that a caller waits for."""

    answered: bool = False
    abandoned: bool = False
    message: Message | None = None


@dataclass
class _Line:
    """What lives and dies with one connected socket."""

    channel: Channel
    started: float
    talk: Talk[Answer]


class Connection:
    """Requests from any thread, answers through one.

    `changed` guards and announces everything that callers may wait for, here and in the
    client's own books.

    Attributes:
        count: How often slots had to be begun anew: registrations that brought none back. Who has slots
            counts it up where they were too few.
        returning: Set by whoever has slots.
    """

    returning: Slots | None = None

    def __init__(
        self,
        settings: Settings,
        hear: Callable[[Message], None],
        clock: Monotonic = monotonic,
        *,
        quiet: bool = False,
    ) -> None:
        self.path = settings.socket
        self.changed = Condition()
        self.count = 0
        self.welcome: Welcome | None = None
        self.registered: Registered | None = None
        # When the daemon was lost, in seconds on the clock; None on board, or never been there.
        self.lost: float | None = None
        self._register = settings.register
        self._hear = hear
        self._clock = clock
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._line: _Line | None = None
        self._boardings = 0
        self._closing = False
        self._outages = Outages(self.path, quiet=quiet)
        self._why = _UNTRIED
        self._thread = Thread(target=self._run, name="evac", daemon=True)

    def start(self) -> None:
        """Begin to look for the daemon."""
        self._thread.start()

    @property
    def ready(self) -> bool:
        """Whether the daemon has this workload on board right now."""
        line = self._line
        return line is not None and line.talk.aboard

    def absence(self) -> str:
        """For a person; before the first try has ended, from a look at the socket's file."""
        if self._why == _UNTRIED and not os.path.exists(self.path):
            return cure(FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)))
        return self._why

    def missing(self) -> NotConnected:
        """Why there is no answer to be had, as an error."""
        return NotConnected(self.path, self._why)

    def post(self, message: Message, answer: Answer | None = None) -> bool:
        """Send; *answer* is called once per answer, and with None when the connection is lost.

        Returns:
            False where there is no connection: nothing was sent, *answer* is never called.
        """
        with self.changed:
            line = self._line
            if line is None or not line.talk.aboard:
                return False
            packet = encode(message) if answer is None else line.talk.ask(message, answer)
        line.channel.send(packet)
        return True

    def ask(self, message: Message, timeout: float, late: Late | None = None) -> Message:
        """Send and wait for the answer; one that comes after *timeout* seconds goes to *late*.

        Raises:
            NotConnected: No connection, it was lost, or no answer in time.
        """
        call = _Call()

        def answer(reply: Message | None, _fd: int | None) -> None:
            with self.changed:
                call.answered, call.message = True, reply
                self.changed.notify_all()
            if call.abandoned and reply is not None and late is not None:
                late(reply)

        if not self.post(message, answer):
            raise self.missing()
        with self.changed:
            self.changed.wait_for(lambda: call.answered, timeout)
            call.abandoned = not call.answered
        if call.abandoned:
            raise NotConnected(self.path, f"no answer to {message.type} in {timeout:g} s")
        if call.message is None:
            raise self.missing()
        return call.message

    def close(self) -> None:
        """Hang up and end the thread; harmless a second time."""
        with self.changed:
            if self._closing:
                return
            self._closing, self._why = True, "the client is closed"
            os.eventfd_write(self._wake, 1)
        if self._thread.is_alive() and current_thread() is not self._thread:
            self._thread.join()

    def forget(self) -> None:
        """In a forked child: let go of the socket, and touch nothing that is shared."""
        line, self._line, self._closing = self._line, None, True
        self._why = "this is a forked child"
        if line is not None:
            line.channel.forget()
        if self._wake >= 0:
            os.close(self._wake)
            self._wake = -1

    # --- the socket thread ----------------------------------------------------------------

    def _run(self) -> None:
        delay = FIRST_RETRY
        while not self._closing:
            before = self._boardings
            try:
                self._live()
            except (ChannelError, ProtocolError, Unwelcome) as error:
                reason = str(error)
            except OSError as error:
                reason = cure(error)
            except Exception as error:
                # A mistake of ours costs this connection, never the training and never the next.
                log.exception("the connection to evacd failed in an unforeseen way")
                reason = f"{type(error).__name__}: {error}"
            else:
                reason = "the client is closed"
            self._drop(reason)
            if self._closing:
                break
            if self._boardings != before:
                delay = FIRST_RETRY
            self._outages.tell(reason, was_connected=self._boardings != before)
            self._sleep(delay)
            delay = min(2 * delay, LAST_RETRY)
        with self.changed:
            os.close(self._wake)
            self._wake = -1

    def _live(self) -> None:
        """One connection, from connect to its end, which is told by an exception."""
        talk: Talk[Answer] = Talk(self._register, self.returning)
        line = _Line(Channel(self.path, self._wake), self._clock(), talk)
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        with self.changed:
            self._line = line
        line.channel.send(talk.begin())
        while not self._closing:
            waits_to_write = select.POLLOUT if line.channel.behind else 0
            poll.register(line.channel.socket, select.POLLIN | waits_to_write)
            wait = None
            if not line.talk.aboard:
                wait = line.started + HANDSHAKE_SECONDS - self._clock()
                if wait <= 0:
                    raise ChannelError(f"evacd did not answer in {HANDSHAKE_SECONDS:g} s")
            poll.poll(None if wait is None else 1000 * wait)
            self._drain()
            line.channel.flush()
            self._read(line)

    def _read(self, line: _Line) -> None:
        """Take what has arrived; no fork happens while an fd is in our hands."""
        while True:
            with _fork.held_off():
                got = line.channel.receive()
                if got is None:
                    return
                packet, fds = got
                try:
                    self._take(line, packet, fds)
                finally:
                    for fd in fds:
                        os.close(fd)

    def _take(self, line: _Line, packet: bytes, fds: list[int]) -> None:
        with self.changed:
            heard = line.talk.take(packet, len(fds))
            if isinstance(heard.message, Registered):
                # Before anything else is heard: what was true of the last daemon is not of this one.
                self.welcome, self.registered = line.talk.welcome, heard.message
                self._hear(heard.message)
            # While we hold the lock, nobody closes a slot's fd.
            for reply, fd in heard.replies:
                line.channel.send(reply, fd)
            if heard.aboard is not None:
                self._aboard(resumed=heard.aboard is Aboard.RESUMED)
        if heard.asker is not None:
            heard.asker(heard.message, fds[0] if fds else None)
        elif heard.kept_out:
            log.info("evacd does not take a slot back: %s", heard.kept_out)
        elif isinstance(heard.message, Refuse) and not heard.ours:
            log.warning("evacd: %s", heard.message.reason)
        elif not heard.ours and not isinstance(heard.message, Registered):
            self._hear(heard.message)

    def _aboard(self, *, resumed: bool) -> None:
        """In the lock: before any caller wakes up."""
        self._boardings += 1
        self.count += not resumed
        self.lost = None
        if self.returning is not None:
            self.returning.aboard(resumed=resumed)
        self.changed.notify_all()
        node = self.welcome.node if self.welcome else ""
        prefix = self.registered.prefix if self.registered else ""
        self._outages.over(node, prefix)

    def _drop(self, reason: str) -> None:
        with self.changed:
            line, self._line = self._line, None
            if line is not None and line.talk.aboard:
                self.lost = self._clock()
            if not self._closing:
                self._why = reason
            pending = list(line.talk.waiting.values()) if line else []
            self.changed.notify_all()
        if line is not None:
            line.channel.close()
        for answer in pending:
            answer(None, None)

    def _sleep(self, seconds: float) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        until = self._clock() + seconds
        while not self._closing and (left := until - self._clock()) > 0:
            poll.poll(1000 * left)
            self._drain()

    def _drain(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
