"""What is staged just as the daemon comes back is told of, whichever comes first."""

import os
from threading import Condition, Thread
from typing import cast

from evac._connection import Answer, Connection
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
