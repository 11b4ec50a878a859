"""Who comes and who goes: registration, death, leaving; and where each word is taken.

What happens is told to the board's owner, who logs it; here is logged only what nobody is told.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import NoReturn

import structlog

from evac.store import Owner
from evac.wire import (
    PROTOCOL,
    Accepted,
    Acquire,
    Adopt,
    AskStatus,
    Cancel,
    Done,
    Drain,
    Drill,
    HandBack,
    Leave,
    Message,
    Mode,
    Pin,
    Refuse,
    Register,
    Registered,
    Release,
    Reserve,
    Save,
    Staged,
    Welcome,
)
from evacd.clock import Clock
from evacd.workloads.aboard import Aboard
from evacd.workloads.agreement import expire
from evacd.workloads.answers import Answers
from evacd.workloads.deaths import Deaths
from evacd.workloads.guard import start
from evacd.workloads.happenings import Denied, Died, Dropped, Happening, Joined, Left
from evacd.workloads.job import Process, Workload
from evacd.workloads.lending import Lending
from evacd.workloads.outside import Outside, SaveOwn, Written
from evacd.workloads.peer import PeerGone, identify
from evacd.workloads.places import Places, Prepare
from evacd.workloads.policy import Admission, Refusal, admit
from evacd.workloads.returns import Back, Returns
from evacd.workloads.roster import Roster
from evacd.workloads.session import Session, Stage
from evacd.workloads.settings import BoardSettings
from evacd.workloads.staging import Staging
from evacd.workloads.turns import Turns

log = structlog.get_logger()


class Desk:
    """Takes what sessions say; decides who is `aboard`."""

    def __init__(
        self,
        settings: BoardSettings,
        *,
        clock: Clock,
        happened: Callable[[Happening], None],
        answers: Answers,
        admin: Callable[[Drain | Cancel | Drill], Message],
        prepare: Prepare | None,
        save: SaveOwn | None,
        written: Written | None,
        roster: Roster,
        staging: Staging,
        turns: Turns,
        returns: Returns,
        lending: Lending,
    ) -> None:
        self.aboard = Aboard(clock)
        self._settings = settings
        self._clock = clock
        self._happened = happened
        self._answers = answers
        self._admin = admin
        self._roster = roster
        self._staging = staging
        self._written = written
        self._outside = Outside(
            settings, roster=roster, staging=staging, clock=clock, save=save, awaits=returns.awaits
        )
        self._turns = turns
        self._returns = returns
        self._lending = lending
        # In the order of their coming; a dict because sets have none.
        self._strangers: dict[Session, None] = {}
        # Who was on board of the daemon before, and has not come back.
        self._away: set[int] = set()
        self._unseen: dict[int, Workload] = {}
        self._began = clock.monotonic()
        self._tasks = asyncio.TaskGroup()
        self._deaths = Deaths(
            self.aboard.session,
            self._inspection,
            clock=clock,
            tasks=self._tasks,
            seconds=settings.last_words_seconds,
            buried=self._buried,
        )
        self._places = Places(prepare, self._tasks) if prepare else None

    async def run(self, ready: asyncio.Event, backs: Sequence[Back] = ()) -> NoReturn:
        """Own what sessions start; drop and forget what is overdue, until cancelled.

        Args:
            backs: Who was on board of the daemon before, and may come back.
        """
        shortest = min(self._settings.hello_seconds, self._settings.orphan_seconds)
        pause = min(1.0, max(0.01, shortest / 4))
        async with self._tasks:
            start(self._tasks, self._answers.run())
            for back in backs:
                self._expect(back)
            ready.set()
            while True:
                await asyncio.sleep(pause)
                self.sweep()

    # --- sessions -----------------------------------------------------------------------

    def opened(self, session: Session) -> None:
        """A new connection; too many that never register push out the oldest of their uid.

        Each door counts for itself: a container's root must not push out an operator.
        """
        mine = [
            one
            for one in self._strangers
            if one.peer.uid == session.peer.uid and one.door is session.door
        ]
        self._strangers[session] = None
        if len(mine) >= self._settings.max_strangers:
            mine[0].link.drop("too many connections that have not registered")

    def gone(self, session: Session, reason: str) -> None:
        """See `session.Desk`. The workload lives on until its pidfd says otherwise."""
        self._strangers.pop(session, None)
        self._lending.gone(session)
        workload, session.workload = session.workload, None
        if workload is not None and self.aboard.session(workload) is session:
            self.aboard.remove(workload)
        if reason:
            self._happened(Dropped(session.peer.pid, reason, session.peer.uid))

    def denied(self, session: Session, what: str, reason: str) -> None:
        """See `session.Desk`."""
        self._happened(Denied(what, session.peer.pid, session.peer.uid, reason))

    def sweep(self) -> None:
        """Drop who says nothing, and forget who has been dead for long enough."""
        now = self._clock.monotonic()
        for session in list(self._strangers):
            silent = session.stage is Stage.SILENT
            if silent and now - session.opened >= self._settings.hello_seconds:
                session.link.drop(f"no hello within {self._settings.hello_seconds:g} s")
        self._answers.sweep()
        self._returns.sweep(now)
        if now - self._began >= self._settings.orphan_seconds:
            unseen, self._unseen = self._unseen, {}
            for workload in unseen.values():
                self._buried(workload)
        # What an order is to save does not expire under its hands.
        expire(self._roster, now=now)
        if self.aboard.order is None:
            self._roster.expire(now=now, seconds=self._settings.orphan_seconds)
            self._staging.collect()

    def close(self) -> None:
        """Close every connection and forget every process."""
        for session in [*self.aboard.sessions(), *self._strangers]:
            session.link.hang_up("the daemon stops")
        self._answers.close()
        self._deaths.close()

    # --- what sessions say --------------------------------------------------------------

    def welcome(self) -> Welcome:
        """See `session.Desk`."""
        settings = self._settings
        return Welcome(PROTOCOL, settings.version, settings.node, settings.boot)

    def take(
        self, session: Session, message: Message, re: int | None, fd: int | None = None
    ) -> None:
        """See `session.Desk`."""
        match message:
            case Register():
                # It is deaf meanwhile, and takes no seat: all of that happens in one go afterwards.
                session.link.pause()
                start(self._tasks, self._prepare(session, message, re), session)
            case AskStatus():
                self._answers.ask(session, re)
            case Save():
                self._answer(session, self._outside.save(session.peer, message), re)
            case Pin():
                session.reply(self._outside.pin(session.peer, message), re)
            case Drain() | Cancel() | Drill():
                self._answer(session, self._admin(message), re)
            case _ if session.workload is not None:
                self._take_aboard(session, session.workload, message, re, fd)

    def _take_aboard(
        self,
        session: Session,
        workload: Workload,
        message: Message,
        re: int | None,
        fd: int | None,
    ) -> None:
        match message:
            case HandBack() if fd is not None:
                self._returns.hand_back(session, workload, message, re, fd, self._tasks)
            case Adopt():
                self._lending.adopt(session, workload, re, self._tasks)
            case Release(number) if self._lending.release(session, number):
                pass
            case Reserve() if self._deaths.dying(workload):
                pass  # its last words: what it staged counts, and it needs no memory any more
            case Reserve():
                self._staging.reserve(session, workload, message, re, self._tasks)
            case Acquire():
                self._staging.acquire(session, workload, re)
            case Staged():
                self._staging.staged(session, workload, message, re, self._tasks)
            case Release():
                self._staging.release(workload, message)
            case Done():
                self._turns.answer(workload.id, message)
            case Leave():
                self._leave(session, workload, re)

    def _answer(self, session: Session, answer: Message, re: int | None) -> None:
        """To who has ordered something: what was accepted is done already, and no crash undoes it."""
        if self._written is None or isinstance(answer, Refuse):
            session.reply(answer, re)
        else:
            session.link.pause()
            start(self._tasks, self._answer_after(self._written, session, answer, re), session)

    async def _answer_after(
        self, written: Written, session: Session, answer: Message, re: int | None
    ) -> None:
        await written()
        session.reply(answer, re)
        session.link.resume()

    async def _prepare(self, session: Session, message: Register, re: int | None) -> None:
        allowed = self._allowed(session, message, aboard=0)
        if isinstance(allowed, Admission):
            if self._places is not None:
                owner = Owner(session.peer.uid, session.peer.gid)
                await self._places.ready(allowed.unit, owner)
            await self._settle(allowed.unit, message.rank)
        if not session.link.closed:
            self._register(session, message, re)
            session.link.resume()

    async def _settle(self, unit: str, rank: int) -> None:
        """Whoever has the rank is heard first: a restart, or a new connection, can be faster."""
        heard: Workload | None = None
        while (seat := self._roster.seat(unit, rank)) is not heard:
            if seat is None or not seat.alive:
                return
            await self._deaths.settled(seat)
            heard = seat

    def _allowed(self, session: Session, message: Register, *, aboard: int) -> Admission | Refusal:
        peer = session.peer
        return admit(
            message,
            user=peer.user,
            uid=peer.uid,
            aboard=aboard,
            settings=self._settings,
            pod=peer.pod,
        )

    def _register(self, session: Session, message: Register, re: int | None) -> None:
        try:
            process, pidfd = identify(session.link.sock, session.peer)
        except (PeerGone, OSError) as error:
            session.refuse(f"your process cannot be watched: {error}", re)
            return
        workload = self._admit(session, message, process)
        self._staging.collect()
        if isinstance(workload, Refusal):
            os.close(pidfd)
        else:
            self._deaths.watch(workload, pidfd)
        if isinstance(workload, Refusal):
            session.deny("register", workload.reason, re)
            return
        self._staging.note_all(workload)
        former = self.aboard.remove(workload)
        if former is not None:
            former.link.hang_up("its process has registered again on another connection")
        self._seat(session, workload, re)

    def _admit(self, session: Session, message: Register, process: Process) -> Workload | Refusal:
        mine = [w for w in self._roster.workloads.values() if w.alive and w.process == process]
        again = any(w.rank == message.rank and w.job == message.job for w in mine)
        aboard = self._roster.aboard().get(session.peer.uid, 0) - again
        allowed = self._allowed(session, message, aboard=aboard)
        if isinstance(allowed, Refusal):
            return allowed
        return self._roster.register(
            message,
            unit=allowed.unit,
            process=process,
            share=allowed.share,
            now=self._clock.monotonic(),
        )

    def _seat(self, session: Session, workload: Workload, re: int | None) -> None:
        self._strangers.pop(session, None)
        session.workload, session.stage = workload, Stage.ABOARD
        self._away.discard(workload.id)
        self._unseen.pop(workload.id, None)
        self.aboard.add(workload, session)
        stores = self._settings.stores
        session.reply(Registered(workload.id, workload.unit, stores), re)
        self._happened(Joined(workload.unit, workload.rank, workload.process.pid))
        if self.aboard.order is not None:
            session.reply(self.aboard.message(self.aboard.order))

    def _expect(self, back: Back) -> None:
        """Somebody of before: watched from now on, or found to have ended meanwhile."""
        workload = back.workload
        if back.pidfd is not None:
            self._away.add(workload.id)
            self._deaths.watch(workload, back.pidfd)
        elif workload.alive:
            # Out of sight, and not known to have ended: it is waited for, but not for ever.
            self._unseen[workload.id] = workload
        else:
            self._happened(Died(workload.unit, workload.rank, workload.process.pid))

    def _leave(self, session: Session, workload: Workload, re: int | None) -> None:
        self._deaths.forget(workload)
        self.aboard.remove(workload)
        self._unseen.pop(workload.id, None)
        self._roster.leave(workload)
        self._staging.forget(workload)
        self._staging.collect()
        session.workload, session.stage = None, Stage.GREETED
        self._strangers[session] = None
        self._turns.cannot(workload.id, "left")
        session.reply(Accepted(), re)
        calls = workload.mode is Mode.CALLBACK
        self._happened(Left(workload.unit, workload.rank, calls))

    def _inspection(self, workload: Workload) -> asyncio.Event | None:
        """Set once all that is being read of it has been; None where nothing is."""
        if workload.id in self._away and self._deaths.dying(workload):
            self._away.discard(workload.id)
            self._returns.last_look(workload, self._tasks)
        return self._staging.inspection(workload)

    def _buried(self, workload: Workload) -> None:
        """Its process has ended, and it was heard out."""
        self._roster.died(workload, now=self._clock.monotonic())
        self._staging.note_all(workload)
        self._staging.forget(workload)
        self._staging.collect()
        self._turns.cannot(workload.id, "its process died")
        session = self.aboard.remove(workload)
        if session is not None:
            session.link.hang_up("its process has died")
        self._happened(Died(workload.unit, workload.rank, workload.process.pid))
