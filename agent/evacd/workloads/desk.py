"""Who comes and who goes: registration, death, leaving; and what everybody is told.

What happens is told to the board's owner, who logs it; here is logged only what nobody is told.
"""

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from typing import NoReturn

import structlog

from evac.store import Owner
from evac.wire import (
    PROTOCOL,
    Accepted,
    Acquire,
    AskStatus,
    Cancel,
    Done,
    Drain,
    Drill,
    Leave,
    Message,
    OrderGiven,
    Register,
    Registered,
    Release,
    Reserve,
    Staged,
    Status,
    Welcome,
    encode,
)
from evacd.clock import Clock
from evacd.facts import Order
from evacd.workloads.happenings import Died, Dropped, Happening, Joined, Left
from evacd.workloads.job import Process, Workload
from evacd.workloads.memory import sealed_bytes
from evacd.workloads.peer import PeerGone, alive, identify
from evacd.workloads.places import Places, Prepare
from evacd.workloads.policy import Admission, Refusal, admit
from evacd.workloads.roster import Roster
from evacd.workloads.session import Session, Stage
from evacd.workloads.settings import BoardSettings
from evacd.workloads.staging import Staging
from evacd.workloads.turns import Turns

log = structlog.get_logger()


class Desk:
    """Takes what sessions say; knows who is aboard and through which session to reach them."""

    def __init__(
        self,
        settings: BoardSettings,
        *,
        clock: Clock,
        happened: Callable[[Happening], None],
        status: Callable[[], Mapping[str, object]],
        admin: Callable[[Drain | Cancel | Drill], Message],
        prepare: Prepare | None,
        roster: Roster,
        staging: Staging,
        turns: Turns,
    ) -> None:
        self.order: Order | None = None
        self._settings = settings
        self._clock = clock
        self._happened = happened
        self._status = status
        self._admin = admin
        self._roster = roster
        self._staging = staging
        self._turns = turns
        self._loop = asyncio.get_running_loop()
        self._aboard: dict[int, Session] = {}
        # In the order of their coming; a dict because sets have none.
        self._strangers: dict[Session, None] = {}
        self._pidfds: dict[int, int] = {}
        self._tasks = asyncio.TaskGroup()
        self._places = Places(prepare, self._tasks) if prepare else None

    async def run(self, ready: asyncio.Event) -> NoReturn:
        """Own what sessions start; drop and forget what is overdue, until cancelled."""
        shortest = min(self._settings.hello_seconds, self._settings.orphan_seconds)
        pause = min(1.0, max(0.01, shortest / 4))
        async with self._tasks:
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
        workload, session.workload = session.workload, None
        if workload is not None and self._aboard.get(workload.id) is session:
            del self._aboard[workload.id]
        if reason:
            self._happened(Dropped(session.peer.pid, reason))

    def session(self, workload: Workload) -> Session | None:
        """How to reach a workload; None while it is not connected."""
        return self._aboard.get(workload.id)

    def tell(self, message: Message) -> int:
        """Send one message to everybody aboard, in one go; returns how many were told."""
        packet = encode(message)
        sessions = list(self._aboard.values())
        for session in sessions:
            session.link.send(packet)
        return sum(not session.link.closed for session in sessions)

    def order_message(self, order: Order) -> OrderGiven:
        """The order as of now."""
        left = min(1e9, max(0.0, order.deadline - self._clock.monotonic()))
        return OrderGiven(
            order=order.id,
            seconds_left=left,
            confidence=order.confidence.word,
            source=order.source,
            kind=order.kind,
            amended=order.amendments > 0,
        )

    def sweep(self) -> None:
        """Drop who says nothing, and forget who has been dead for long enough."""
        now = self._clock.monotonic()
        for session in list(self._strangers):
            silent = session.stage is Stage.SILENT
            if silent and now - session.opened >= self._settings.hello_seconds:
                session.link.drop(f"no hello within {self._settings.hello_seconds:g} s")
        # What an order is to save does not expire under its hands.
        if self.order is None:
            self._roster.expire(now=now, seconds=self._settings.orphan_seconds)
            self._staging.collect()

    def close(self) -> None:
        """Close every connection and forget every process."""
        for session in [*self._aboard.values(), *self._strangers]:
            session.link.hang_up("the daemon stops")
        for workload in list(self._pidfds):
            self._unwatch(workload)

    # --- what sessions say --------------------------------------------------------------

    def welcome(self) -> Welcome:
        """See `session.Desk`."""
        settings = self._settings
        return Welcome(PROTOCOL, settings.version, settings.node, settings.boot)

    def take(self, session: Session, message: Message, re: int | None) -> None:
        """See `session.Desk`."""
        match message:
            case Register() if self._places is not None:
                # It is deaf meanwhile, and takes no seat: all of that happens in one go afterwards.
                session.link.pause()
                self._tasks.create_task(self._prepare(self._places, session, message, re))
            case Register():
                self._register(session, message, re)
            case AskStatus():
                self._tell_status(session, re)
            case Drain() | Cancel() | Drill():
                session.reply(self._admin(message), re)
            case _ if session.workload is not None:
                self._take_aboard(session, session.workload, message, re)

    def _take_aboard(
        self, session: Session, workload: Workload, message: Message, re: int | None
    ) -> None:
        match message:
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

    async def _prepare(
        self, places: Places, session: Session, message: Register, re: int | None
    ) -> None:
        allowed = self._allowed(session, message, aboard=0)
        if isinstance(allowed, Admission):
            await places.ready(allowed.unit, Owner(session.peer.uid, session.peer.gid))
        if not session.link.closed:
            self._register(session, message, re)
            session.link.resume()

    def _allowed(self, session: Session, message: Register, *, aboard: int) -> Admission | Refusal:
        peer = session.peer
        return admit(message, user=peer.user, uid=peer.uid, aboard=aboard, settings=self._settings)

    def _register(self, session: Session, message: Register, re: int | None) -> None:
        try:
            process, pidfd = identify(session.link.sock, session.peer)
        except (PeerGone, OSError) as error:
            session.refuse(f"your process cannot be watched: {error}", re)
            return
        workload = self._admit(session, message, process)
        self._staging.collect()
        if isinstance(workload, Refusal) or workload.id in self._pidfds:
            os.close(pidfd)
        else:
            self._pidfds[workload.id] = pidfd
            self._loop.add_reader(pidfd, self._died, workload)
        if isinstance(workload, Refusal):
            log.warning("workload.refused", pid=process.pid, reason=workload.reason)
            session.refuse(workload.reason, re)
            return
        former = self._aboard.pop(workload.id, None)
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
        seat = self._roster.seat(allowed.unit, message.rank)
        if seat is not None and seat.alive and not alive(self._pidfds[seat.id]):
            # A restart can be faster than the loop, which has yet to come to its pidfd.
            self._died(seat)
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
        self._aboard[workload.id] = session
        stores = self._settings.stores
        session.reply(Registered(workload.id, workload.unit, stores), re)
        self._happened(Joined(workload.unit, workload.rank, workload.process.pid))
        if self.order is not None:
            session.reply(self.order_message(self.order))

    def _leave(self, session: Session, workload: Workload, re: int | None) -> None:
        self._unwatch(workload.id)
        self._aboard.pop(workload.id, None)
        self._roster.leave(workload)
        self._staging.forget(workload)
        self._staging.collect()
        session.workload, session.stage = None, Stage.GREETED
        self._strangers[session] = None
        self._turns.cannot(workload.id, "left")
        session.reply(Accepted(), re)
        self._happened(Left(workload.unit, workload.rank))

    def _died(self, workload: Workload) -> None:
        """Its pidfd became readable. EOF alone is no death: a forked child keeps a socket open."""
        self._unwatch(workload.id)
        self._roster.died(workload, now=self._clock.monotonic())
        self._staging.forget(workload)
        self._staging.collect()
        self._turns.cannot(workload.id, "its process died")
        session = self._aboard.pop(workload.id, None)
        if session is not None:
            session.link.hang_up("its process has died")
        self._happened(Died(workload.unit, workload.rank, workload.process.pid))

    def _unwatch(self, workload: int) -> None:
        pidfd = self._pidfds.pop(workload)
        self._loop.remove_reader(pidfd)
        os.close(pidfd)

    def _tell_status(self, session: Session, re: int | None) -> None:
        document = json.dumps(self._status(), default=str).encode()
        try:
            fd = sealed_bytes(document)
        except OSError as error:
            session.refuse(f"no memory for an answer: {error.strerror}", re)
            return
        try:
            session.reply(Status(len(document)), re, fd)
        finally:
            os.close(fd)
