"""Documents that peers ask for, the status above all: one after the other, and only so many in memory.

A document may be long: making one holds the loop for a moment, so between two of them everybody else has a turn. Each goes
out as a memfd, and what a peer does not take waits in the kernel, on no budget. So of each user, by each door, there
are so many at most; the memory of what was taken is given back a moment later, whoever keeps its fd.
"""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from evac.wire import Status
from evacd.clock import Clock
from evacd.workloads.guard import guarded
from evacd.workloads.memory import Answer
from evacd.workloads.session import Door, Session

# Of one user by one door; who asks for more waits until others were read.
MOST, MOST_NBYTES = 512, 64 * 1024 * 1024
# Whoever has taken one reads it at once, as slow as its machine may be.
_READ_SECONDS = 5.0
# Whoever has not taken one for so long, while others wait for it, is dropped.
_SILENT_SECONDS = 10.0
_LOOK_SECONDS = 0.02

_Who: TypeAlias = tuple[int, Door]


@dataclass(eq=False)
class _Given:
    """One that went out.

    Attributes:
        at: When; monotonic seconds.
        taken: When it was seen to have been taken; None before.
    """

    answer: Answer
    session: Session
    at: float
    taken: float | None = None


class Answers:
    """All that are in memory, and who waits for one.

    Args:
        status: What `evac status` shows.
        most: Of one user by one door.
    """

    def __init__(
        self, status: Callable[[], Mapping[str, object]], clock: Clock, *, most: int = MOST
    ) -> None:
        self._status = status
        self._clock = clock
        self._most = most
        self._waiting: deque[tuple[Session, int | None]] = deque()
        self._asked = asyncio.Event()
        self._given: dict[_Who, list[_Given]] = {}

    def ask(self, session: Session, re: int | None) -> None:
        """Tell it the status when its turn has come; it is deaf meanwhile."""
        session.link.pause()
        self._waiting.append((session, re))
        self._asked.set()

    async def run(self) -> NoReturn:
        """Answer whoever asks, until cancelled."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            while self._waiting:
                found = self._next()
                if found is not None:
                    await guarded(self._tell(*found), found[0])
                    found[0].link.resume()
                await asyncio.sleep(0 if found is not None else _LOOK_SECONDS)

    async def room(self, session: Session) -> None:
        """Wait until there may be one more for *session*, or it is gone."""
        # The kernel tells nobody when a packet is taken.
        while not (session.link.closed or self._has_room(session)):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_SECONDS)

    def put(self, session: Session, document: bytes) -> Answer:
        """*document* for *session*, to be sent at once.

        Raises:
            OSError: There is no memory or no fd for it.
        """
        given = _Given(Answer(document), session, self._clock.monotonic())
        self._given.setdefault(_who(session), []).append(given)
        return given.answer

    def sweep(self) -> None:
        """Give back what was taken a moment ago."""
        for who in list(self._given):
            self._look(who)

    def close(self) -> None:
        """Give everything back."""
        for given in self._given.values():
            for one in given:
                one.answer.give_back()
        self._given.clear()

    def _next(self) -> tuple[Session, int | None] | None:
        """Whose turn it is; None where nobody can be told just now."""
        for _ in range(len(self._waiting)):
            session, re = self._waiting.popleft()
            if session.link.closed:
                continue
            if self._has_room(session):
                return session, re
            self._waiting.append((session, re))
        return None

    async def _tell(self, session: Session, re: int | None) -> None:
        document = json.dumps(self._status(), default=str).encode()
        try:
            answer = self.put(session, document)
        except OSError as error:
            session.refuse(f"no memory for an answer: {error.strerror}", re)
            return
        try:
            session.reply(Status(len(document)), re, answer.fd)
        finally:
            answer.sent()

    def _has_room(self, session: Session) -> bool:
        who = _who(session)
        if not (room := self._fits(who)):
            self._look(who, wanted=True)
            room = self._fits(who)
        return room

    def _fits(self, who: _Who) -> bool:
        given = self._given.get(who, [])
        return len(given) < self._most and sum(one.answer.nbytes for one in given) < MOST_NBYTES

    def _look(self, who: _Who, *, wanted: bool = False) -> None:
        left = list(self._left(self._given.pop(who), self._clock.monotonic(), wanted=wanted))
        if left:
            self._given[who] = left

    def _left(self, given: list[_Given], now: float, *, wanted: bool) -> Iterator[_Given]:
        for one in given:
            link = one.session.link
            if wanted and now - one.at >= _SILENT_SECONDS and link.unread:
                link.drop("does not read: others wait for what it has not taken")
            if one.taken is None and not link.unread:
                one.taken = now
            if one.taken is not None and now - one.taken >= _READ_SECONDS:
                one.answer.give_back()
            else:
                yield one


def _who(session: Session) -> _Who:
    return session.peer.uid, session.door
