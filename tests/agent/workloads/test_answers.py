import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from evac._memory import read_answer
from evac.wire import Message, Packet, Refuse, Status, Welcome, decode
from evacd.workloads.answers import Answers
from evacd.workloads.closing import Closing
from evacd.workloads.link import Link
from evacd.workloads.peer import Peer
from evacd.workloads.session import Door, Session
from tests.open_files import open_files

ALICE, BOB = 1001, 1002
MOST = 32


@dataclass
class Hands:
    """A clock that is moved by hand."""

    now: float = 100.0

    def monotonic(self) -> float:
        return self.now

    def utc(self) -> datetime:
        return datetime.fromtimestamp(self.now, UTC)


class NoDesk:
    """Nothing is said here that a desk would take."""

    def welcome(self) -> Welcome:
        raise AssertionError

    def take(
        self, session: Session, message: Message, re: int | None, fd: int | None = None
    ) -> None:
        raise AssertionError(message)

    def denied(self, session: Session, what: str, reason: str) -> None:
        raise AssertionError(reason)

    def gone(self, session: Session, reason: str) -> None:
        pass


@dataclass
class Asker:
    """Both ends of one connection; it takes what it is told only when it is made to.

    Attributes:
        kept: Fds that came with it, never closed before the end.
    """

    session: Session
    theirs: socket.socket
    kept: list[int] = field(default_factory=list)

    def takes(self) -> list[Packet]:
        """All that there is."""
        found: list[Packet] = []
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self.theirs, 70000, 4)
            except BlockingIOError:
                return found
            self.kept += fds
            if not data:
                return found
            found.append(decode(data))

    def close(self) -> None:
        self.session.link.hang_up("the end")
        for fd in self.kept:
            os.close(fd)
        self.theirs.close()


@dataclass
class Hall:
    """Where they ask.

    Attributes:
        made: How many documents have been.
        broken: Making one fails.
    """

    clock: Hands = field(default_factory=Hands)
    made: int = 0
    broken: bool = False
    askers: list[Asker] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.answers = Answers(self._status, self.clock, most=MOST)

    def _status(self) -> dict[str, Any]:
        if self.broken:
            raise ValueError("a bug")
        self.made += 1
        return {"number": self.made, "padding": "x" * 9000}

    def asker(self, uid: int) -> Asker:
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.setblocking(False)
        link = Link(mine, asyncio.get_running_loop(), Closing())
        peer = Peer(1, uid, uid, None, 0)
        session = Session(link, Door.WORKLOAD, peer, NoDesk(), opened=0.0)
        link.receiver = session
        self.askers.append(Asker(session, theirs))
        return self.askers[-1]


@asynccontextmanager
async def hall() -> AsyncIterator[Hall]:
    found = Hall()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(found.answers.run())
        try:
            yield found
        finally:
            running.cancel()
            found.answers.close()
            for one in found.askers:
                one.close()


async def until(true: Any) -> None:
    async with asyncio.timeout(60):
        while not true():  # noqa: ASYNC110 - most of what is waited for has no event
            await asyncio.sleep(0.002)


async def some_turns() -> None:
    """Long enough for whoever may have one."""
    for _ in range(400):
        await asyncio.sleep(0)


def open_answers() -> int:
    """How many documents this process has open, theirs included."""
    return sum("evac-answer" in one for one in open_files())


async def test_of_one_user_no_more_is_in_memory_than_is_being_read() -> None:
    async with hall() as it:
        silent = [it.asker(ALICE) for _ in range(5)]
        for number in range(200):
            it.answers.ask(silent[number % 5].session, number + 1)
        await until(lambda: it.made == MOST)
        await some_turns()
        assert it.made == MOST

        # Somebody else has an own room.
        bob = it.asker(BOB)
        it.answers.ask(bob.session, 7)
        await until(lambda: it.made == MOST + 1)
        [told] = bob.takes()
        assert isinstance(told.message, Status)
        assert read_answer(bob.kept[0], told.message.nbytes)["number"] == MOST + 1


async def test_who_takes_nothing_while_others_wait_is_dropped_and_its_memory_comes_back() -> None:
    async with hall() as it:
        before = open_answers()
        silent, patient = it.asker(ALICE), it.asker(ALICE)
        for number in range(MOST):
            it.answers.ask(silent.session, number + 1)
        await until(lambda: it.made == MOST)
        it.answers.ask(patient.session, 1)
        await some_turns()
        assert not patient.takes()
        assert not silent.session.link.closed

        it.clock.now += 11.0
        await until(lambda: silent.session.link.closed)
        it.clock.now += 6.0
        await until(patient.takes)
        it.answers.sweep()
        # What it was sent it may still take, and keep; there is nothing in it any more.
        *told, end = silent.takes()
        assert len(told) == MOST
        assert isinstance(end.message, Refuse)
        assert "does not read" in end.message.reason
        assert all(not any(os.pread(fd, 10000, 0)) for fd in silent.kept)
        assert sum(os.fstat(fd).st_blocks for fd in silent.kept) == 0

        it.answers.sweep()
        it.clock.now += 6.0
        it.answers.sweep()
        assert [os.fstat(fd).st_blocks for fd in patient.kept] == [0]
        assert open_answers() == before + len(silent.kept) + len(patient.kept)


async def test_whoever_takes_what_it_asked_for_is_told_however_many_ask_at_once() -> None:
    async with hall() as it:
        askers = [it.asker(ALICE) for _ in range(4 * MOST)]
        for one in askers:
            it.answers.ask(one.session, 1)
        told = 0

        def all_told() -> bool:
            nonlocal told
            for one in askers:
                for packet in one.takes():
                    assert isinstance(packet.message, Status)
                    assert read_answer(one.kept[-1], packet.message.nbytes)["number"]
                    told += 1
            # Time passes for whoever was told a moment ago.
            it.clock.now += 1.0
            return told == len(askers)

        await until(all_told)
        assert not any(one.session.link.closed or one.session.link.paused for one in askers)


async def test_what_cannot_be_told_costs_the_asker_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with hall() as it:
        it.broken = True
        unlucky, next = it.asker(ALICE), it.asker(ALICE)
        it.answers.ask(unlucky.session, 1)
        await until(lambda: unlucky.session.link.closed)
        it.broken = False
        it.answers.ask(next.session, 1)
        await until(lambda: it.made == 1)
        [told] = next.takes()
        assert isinstance(told.message, Status)
        assert json.dumps(read_answer(next.kept[0], told.message.nbytes))
