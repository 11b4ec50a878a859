"""The asyncio shell around `_talk`: one socket on the loop, and a task that comes back after a loss."""

import asyncio
import errno
import logging
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol, TypeAlias

from evac import _fork
from evac._channel import Channel, ChannelError
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
from evac.wire import Message, Registered, Release, Welcome, encode

log = logging.getLogger("evac")

# Called on the loop, with an fd that is closed afterwards; with None where the connection was
# lost before an answer came.
Asked: TypeAlias = Callable[[Message | None, int | None], None]

_UNTRIED = "not connected yet"


class Slots(Returning, Protocol):
    """Who has slots that a new daemon should have back."""

    def aboard(self, *, resumed: bool) -> None:
        """On board again: with all that was handed back, or with nothing."""
        ...


class _Line:
    """What lives and dies with one connected socket."""

    def __init__(self, settings: Settings, slots: Slots, wake: int) -> None:
        self.channel = Channel(settings.socket, wake)
        self.talk: Talk[Asked] = Talk(settings.register, slots)
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def end(self, reason: str) -> None:
        """It is of no more use."""
        if not self.over.done():
            self.over.set_result(reason)


class Lines:
    """Requests from the loop, answers on the loop; one connection after the other."""

    def __init__(
        self,
        settings: Settings,
        slots: Slots,
        hear: Callable[[Message], None],
    ) -> None:
        """Nothing is opened yet.

        Args:
            hear: Told what the daemon says unasked, and of each registration.
        """
        self.path = settings.socket
        self.welcome: Welcome | None = None
        self.board: Registered | None = None
        self.closing = False
        self._settings = settings
        self._slots = slots
        self._hear = hear
        self._line: _Line | None = None
        self._why = _UNTRIED
        self._outages = Outages(self.path)
        self._changed = asyncio.Event()
        self._wake = -1
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to look for the daemon; on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._loop.add_reader(self._wake, self._woken)
        self.own(self._run())

    def own(self, work: Coroutine[Any, Any, None]) -> None:
        """Run *work* until it ends or the client is closed."""
        # Owned by `close`. A TaskGroup would wrap what the caller's own block raises in a group.
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        # An interrupt, which may hit any line: the loop has raised it already, and nothing is left to tell.
        if not isinstance(error, KeyboardInterrupt | SystemExit):
            told = {"message": "a task of evac's client failed", "exception": error, "task": task}
            self._loop.call_exception_handler(told)

    @property
    def ready(self) -> bool:
        """Whether the daemon has this workload on board right now."""
        return self._line is not None and self._line.talk.aboard

    def missing(self) -> NotConnected:
        """Why there is no answer to be had, as an error."""
        if self._why == _UNTRIED and not os.path.exists(self.path):
            absent = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            return NotConnected(self.path, cure(absent))
        return NotConnected(self.path, self._why)

    async def wait(self, holds: Callable[[], object], within: float) -> bool:
        """Wait at most *within* seconds until *holds*; whether it does."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, within)):
                while not holds() and not self.closing:
                    await self._changed.wait()
        return bool(holds())

    def notify(self) -> None:
        """Something that is waited for may hold now."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def post(self, message: Message, asked: Asked | None = None) -> bool:
        """Send; *asked* is called once per answer, and with None when the connection is lost.

        Returns:
            False where there is no connection: nothing was sent, *asked* is never called.
        """
        line = self._line
        if line is None or not line.talk.aboard:
            return False
        packet = encode(message) if asked is None else line.talk.ask(message, asked)
        line.channel.send(packet)
        return True

    def release(self, slot: int) -> None:
        """Give a slot back, or end its loan."""
        self.post(Release(slot=slot))

    async def ask(
        self,
        message: Message,
        within: float,
        read: Asked = lambda _message, _fd: None,
        late: Callable[[Message], None] = lambda _message: None,
    ) -> Message:
        """Send and wait for the answer.

        Args:
            read: Called with the answer while its fd is open.
            late: Called with an answer that nobody waits for any more.

        Raises:
            NotConnected: No connection, it was lost, or no answer in time.
        """
        answer: asyncio.Future[Message | None] = self._loop.create_future()

        def hear(reply: Message | None, fd: int | None) -> None:
            if not answer.done():
                read(reply, fd)
                answer.set_result(reply)
            elif reply is not None:
                late(reply)

        if self.closing or not self.post(message, hear):
            raise self.missing()
        try:
            async with asyncio.timeout(max(0.0, within)):
                reply = await answer
        except TimeoutError:
            reason = f"no answer to {message.type} in {within:g} s"
            raise NotConnected(self.path, reason) from None
        if reply is None:
            raise self.missing()
        return reply

    async def close(self) -> None:
        """Hang up and end every task; harmless a second time."""
        self.closing, self._why = True, "the client is closed"
        if self._line is not None:
            self._line.end(self._why)
        mine = asyncio.current_task()
        tasks = {task for task in self._tasks if task is not mine}
        for task in tasks:
            task.cancel()
        try:
            if tasks:
                await asyncio.wait(tasks)
        finally:
            # Its own task drops it, now or, where this wait was cancelled, a moment later.
            self._line = None
            if self._wake >= 0:
                self._loop.remove_reader(self._wake)
                os.close(self._wake)
                self._wake = -1
            self.notify()

    def forget(self) -> None:
        """In a forked child: let go of the socket; the loop is the parent's, too."""
        line, self._line, self.closing = self._line, None, True
        self._why = "this is a forked child"
        if line is not None:
            line.channel.forget()
        if self._wake >= 0:
            os.close(self._wake)
            self._wake = -1

    # --- one connection after the other ---------------------------------------------------

    async def _run(self) -> None:
        delay = FIRST_RETRY
        while True:
            aboard = False
            try:
                line = _Line(self._settings, self._slots, self._wake)
            except OSError as error:
                reason = cure(error)
            else:
                try:
                    reason = await self._live(line)
                finally:
                    aboard = line.talk.aboard
                    self._drop(line)
            if not self.closing:
                self._why = reason
            self._outages.tell(reason, was_connected=aboard)
            self.notify()
            delay = FIRST_RETRY if aboard else delay
            await asyncio.sleep(delay)
            delay = min(2 * delay, LAST_RETRY)

    async def _live(self, line: _Line) -> str:
        """One connection from hello to its end; why it ended."""
        self._line = line
        self._loop.add_reader(line.channel.socket, self._readable, line)
        line.channel.send(line.talk.begin())
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS) as patience:
                while not line.talk.aboard and not line.over.done():
                    await self._changed.wait()
                patience.reschedule(None)
                return await line.over
        except TimeoutError:
            return f"evacd did not answer in {HANDSHAKE_SECONDS:g} s"

    def _drop(self, line: _Line) -> None:
        self._line = None
        self._loop.remove_reader(line.channel.socket)
        self._loop.remove_writer(line.channel.socket)
        line.channel.close()
        waiting, line.talk.waiting = line.talk.waiting, {}
        for asked in waiting.values():
            asked(None, None)
        self.notify()

    def _readable(self, line: _Line) -> None:
        """Take what has arrived; no fork happens while an fd is in our hands."""
        try:
            while not line.over.done():
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
        except (ChannelError, ProtocolError, Unwelcome) as error:
            self._end(line, str(error))
        except Exception as error:
            # A mistake of ours costs this connection, never the program and never the next.
            log.exception("the connection to evacd failed in an unforeseen way")
            self._end(line, f"{type(error).__name__}: {error}")

    def _take(self, line: _Line, packet: bytes, fds: list[int]) -> None:
        heard = line.talk.take(packet, len(fds))
        if isinstance(heard.message, Registered):
            # Before anything else is heard: what was true of the last daemon is not of this one.
            self.welcome, self.board = line.talk.welcome, heard.message
            self._hear(heard.message)
        for reply, fd in heard.replies:
            line.channel.send(reply, fd)
        if heard.aboard is not None:
            self._slots.aboard(resumed=heard.aboard is Aboard.RESUMED)
            node = self.welcome.node if self.welcome else ""
            prefix = self.board.prefix if self.board else ""
            self._outages.over(node, prefix)
            self.notify()
        if heard.asker is not None:
            heard.asker(heard.message, fds[0] if fds else None)
            self.notify()
        elif heard.kept_out:
            log.info("evacd does not take a slot back: %s", heard.kept_out)
        elif not heard.ours and not isinstance(heard.message, Registered):
            self._hear(heard.message)

    def _end(self, line: _Line, reason: str) -> None:
        self._loop.remove_reader(line.channel.socket)
        line.end(reason)
        self.notify()

    def _woken(self) -> None:
        """Something waits to be sent, or the daemon is hopelessly behind."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        if self._line is not None:
            self._writable(self._line)

    def _writable(self, line: _Line) -> None:
        line.channel.flush()
        if line.channel.behind and not line.over.done():
            self._loop.add_writer(line.channel.socket, self._writable, line)
        else:
            self._loop.remove_writer(line.channel.socket)
