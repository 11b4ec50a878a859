"""What is staged just as the daemon comes back is told of, and counts, whichever comes first."""

import asyncio
import os
from collections.abc import Callable
from threading import Condition, Thread
from typing import cast

from evac._aio_line import Asked, Lines
from evac._aio_slots import Slots as AioSlots
from evac._connection import Answer, Connection
from evac._slots import ANEW
from evac._staging import Staging
from evac.errors import NotConnected
from evac.segment import PAGE
from evac.wire import Acquire, Granted, HandBack, Message, Release, Reserve, Slot, Staged
from tests.handlers.client.honest import LIMIT, sealed

NBYTES = 3 * PAGE


class Returning:
    """A connection that comes back the moment that it was found to be gone."""

    returning: Staging

    def __init__(self) -> None:
        self.changed = Condition()
        self.count = 0
        self.path = ""
        self.posted: list[Message] = []
        self.handed: list[HandBack] = []
        self.comes: Thread | None = None

    def missing(self) -> NotConnected:
        return NotConnected("", "gone")

    def ask(self, message: Message, _timeout: float, late: object = None) -> Message:
        assert isinstance(message, Acquire)
        return Granted(slot=0)

    def post(self, message: Message, answer: Answer | None = None) -> bool:
        if isinstance(message, Reserve):
            assert answer is not None
            fd = sealed(NBYTES)
            answer(Slot(slot=0, nbytes=NBYTES, last=True), fd)
            os.close(fd)
        elif isinstance(message, Staged | Release):
            if self.comes is None:
                self.comes = Thread(target=self._come)
                self.comes.start()
                # All the time that it needs, if nobody keeps it out.
                self.comes.join(0.3)
                return False
            self.posted.append(message)
        return True

    def _come(self) -> None:
        with self.changed:
            self.handed = [one for one, _ in self.returning.handing()]
            self.returning.aboard(resumed=True)


def test_a_stage_is_told_by_word_or_by_header_whenever_the_daemon_comes_back() -> None:
    connection = Returning()
    staging = Staging(cast(Connection, connection))
    staging.reserve(Reserve(nbytes=NBYTES, slots=1, body="a.bin", incarnation=0), LIMIT)
    slot = staging.acquire(LIMIT)
    assert slot is not None

    staging.staged(slot, Staged(slot=0, step=1))

    assert connection.comes is not None
    connection.comes.join(LIMIT)
    (handed,) = connection.handed
    # Handed back as whole, its header tells; as held, it has to be said.
    assert not handed.held or connection.posted
    staging.stop()


class Cut:
    """A connection that is lost after the first of two slots, and that all is handed back on."""

    returning: Staging

    def __init__(self) -> None:
        self.changed = Condition()
        self.count = 0
        self.path = ""
        self.ready = True
        self.answer: Answer = lambda _message, _fd: None

    def missing(self) -> NotConnected:
        return NotConnected("", "gone")

    def ask(self, _message: Message, _timeout: float, late: object = None) -> Message:
        return Granted(slot=0)

    def post(self, message: Message, answer: Answer | None = None) -> bool:
        if isinstance(message, Reserve) and answer is not None:
            self.answer = answer
            _first(answer)
        return self.ready


def _first(answer: Answer) -> None:
    fd = sealed(NBYTES)
    answer(Slot(slot=0, nbytes=NBYTES, last=False), fd)
    os.close(fd)


def test_what_is_being_written_is_staged_before_the_slots_that_are_missing_are_asked_for() -> None:
    connection = Cut()
    staging = Staging(cast(Connection, connection))
    staging.reserve(Reserve(nbytes=NBYTES, slots=2, body="a.bin", incarnation=0), LIMIT)
    slot = staging.acquire(LIMIT)
    assert slot is not None

    connection.ready = False
    connection.answer(None, None)
    connection.ready = True
    with connection.changed:
        assert [one.held for one, _ in staging.handing()] == [True]
        staging.aboard(resumed=True)
    assert connection.count == 0
    staging.staged(slot, Staged(slot=0, step=1))

    assert (connection.count, staging.refusals) == (1, 0)
    assert staging.handing() == []
    # Nothing of it comes any more, however long somebody waits.
    assert staging.acquire(LIMIT) is None
    assert staging.last_refusal == ANEW
    staging.stop()


class CutLines:
    """The same for a loop."""

    ready, closing = True, False

    def __init__(self) -> None:
        self.said: list[str] = []

    def notify(self) -> None:
        pass

    def missing(self) -> NotConnected:
        return NotConnected("", "gone")

    def post(self, message: Message, _asked: Asked | None = None) -> bool:
        self.said.append(message.type)
        return True

    async def ask(self, _message: Message, _within: float, late: object = None) -> Message:
        return Granted(slot=0)

    async def wait(self, holds: Callable[[], object], _within: float) -> bool:
        while not holds():  # noqa: ASYNC110 - nobody tells it
            await asyncio.sleep(0.001)
        return True


async def test_so_it_is_on_a_loop() -> None:
    lines = CutLines()
    slots = AioSlots(lambda _step, _reason: None)
    slots.lines = cast(Lines, lines)
    reservation = slots.reservation()
    _first(reservation.hear)
    slot, _ = await slots.acquire(LIMIT)
    assert slot is not None

    reservation.hear(None, None)
    assert [one.held for one, _ in slots.handing()] == [True]
    slots.aboard(resumed=True)
    assert slots.epoch == 0
    assert slots.staged(slot, Staged(slot=0, step=1)) is not None

    assert (slots.epoch, lines.said) == (1, ["staged"])
    assert slots.handing() == []
    assert await slots.acquire(LIMIT) == (None, ANEW)
