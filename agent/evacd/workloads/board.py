"""The facade: both sockets, and what the daemon and the flush ask of who is on board."""

import asyncio
import contextlib
import grp
import socket
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import NoReturn

from evac.errors import EvacError
from evac.generation import Generation
from evac.wire import Advice, Cancel, Drain, Drill, Message, Mode, StandDown, Turn
from evacd.clock import Clock
from evacd.errors import StateError
from evacd.facts import Notice, Order, Unit
from evacd.workloads import agreement
from evacd.workloads.aboard import Aboard
from evacd.workloads.answers import Answers
from evacd.workloads.closing import Closing
from evacd.workloads.desk import Desk
from evacd.workloads.happenings import Happening
from evacd.workloads.job import Workload
from evacd.workloads.keeping import Keeper
from evacd.workloads.lending import Lending
from evacd.workloads.link import Link
from evacd.workloads.outside import SaveOwn, Written
from evacd.workloads.part import Part
from evacd.workloads.peer import barred, peer_of
from evacd.workloads.places import Prepare
from evacd.workloads.returns import Returns
from evacd.workloads.roster import Roster
from evacd.workloads.session import Door, Session
from evacd.workloads.settings import BoardSettings
from evacd.workloads.snapshot import snapshot
from evacd.workloads.sockets import Listener
from evacd.workloads.staging import Staging
from evacd.workloads.turns import TurnResult, Turns

# For what was said last to whoever is hung up on; the rest goes with the process.
_LAST_SECONDS = 1.0


class NotServing(EvacError):
    """Nobody can be told anything before `Board.serve` is ready."""

    def __init__(self) -> None:
        super().__init__("the sockets are not open")


class Board:
    """Who is on board of this node, and what they hold. For the loop's thread alone.

    Args:
        happened: Told every happening, on the loop; must not raise.
        status: What `evac status` shows.
        admin: Carries out what came over the admin socket and gives the answer.
        prepare: Makes the place in the stores where a job's owner may write, given its prefix; awaited
            before the job's workloads are told that they are registered, but not for long.
        save: Carries out what a job's own user asked for, and gives the answer.
        written: Awaited before either answer is sent, so that a crash takes nothing of it back.
        keeper: What a restart does not lose, opened already; None where it loses all.
    """

    def __init__(
        self,
        settings: BoardSettings,
        *,
        clock: Clock,
        happened: Callable[[Happening], None],
        status: Callable[[], Mapping[str, object]],
        admin: Callable[[Drain | Cancel | Drill], Message],
        prepare: Prepare | None = None,
        save: SaveOwn | None = None,
        written: Written | None = None,
        keeper: Keeper | None = None,
    ) -> None:
        self.ready = asyncio.Event()
        self._settings = settings
        self._clock = clock
        self._happened = happened
        self._status = status
        self._admin = admin
        self._prepare = prepare
        self._save = save
        self._written = written
        self._roster = Roster(budget=settings.memory_bytes)
        self._turns = Turns()
        self._keeper = keeper or Keeper()
        self._closing = Closing()
        self._staging = Staging(
            self._roster,
            limit=settings.slots,
            happened=happened,
            keeper=self._keeper,
            spill=settings.spill,
        )
        self._desk: Desk | None = None

    async def serve(self) -> NoReturn:
        """Listen on both sockets until cancelled; sets `ready` once both do.

        Raises:
            AlreadyRunning: Another daemon answers there.
            StateError: A directory, file or group cannot be used.
        """
        with contextlib.ExitStack() as doors:
            doors.callback(self._closing.settle, _LAST_SECONDS)
            doors.callback(self._keeper.close)
            doors.callback(self._staging.close)
            returns = Returns(
                self._roster,
                self._staging,
                self._keeper,
                clock=self._clock,
                seconds=self._settings.orphan_seconds,
                stores=self._settings.stores,
                happened=self._happened,
            )
            answers = Answers(self._status, self._clock)
            desk = Desk(
                self._settings,
                clock=self._clock,
                happened=self._happened,
                answers=answers,
                admin=self._admin,
                prepare=self._prepare,
                save=self._save,
                written=self._written,
                roster=self._roster,
                staging=self._staging,
                turns=self._turns,
                returns=returns,
                lending=Lending(self._roster, self._staging, answers, clock=self._clock),
            )
            doors.callback(desk.close)
            backs = await returns.from_before()
            self._open(desk, doors)
            self._desk = desk
            await desk.run(self.ready, backs)
        raise AssertionError("it runs until it is cancelled")

    # --- what the planner and the flush ask ----------------------------------------------

    def units(self) -> tuple[Unit, ...]:
        """One per job that has anybody on board, in the order of their coming."""
        return self._roster.units(self._settings.stores)

    def rendezvous(self, unit: str) -> tuple[str, ...]:
        """Where a job's nodes meet, as its workloads say; what was said last comes first."""
        return self._roster.rendezvous(unit)

    def peers(self, key: str) -> tuple[str, ...]:
        """Addresses of the nodes that may keep what belongs under *key*, as its job's workloads say."""
        return self._roster.peers(key)

    def returning(self, unit: str) -> bool:
        """Whether processes of before may still come back with what *unit* lacks to be whole."""
        job = self._roster.jobs.get(unit)
        if job is not None and any(one.resuming is not None for one in job.members):
            return True
        whole = job is not None and job.newest_common() is not None
        return not whole and self._keeper.awaits(unit)

    def callers(self, unit: str) -> int:
        """How many callback workloads of *unit* are on board."""
        return len(self._callers(unit))

    def hold(self, unit: str, generation: Generation) -> AbstractContextManager[tuple[Part, ...]]:
        """Pin a generation for as long as the context is open, whatever its workloads do.

        Its parts come by rank; they and their memory are valid inside the context.

        Raises:
            GenerationError: On entering: it is not complete on all ranks here, or gone.
        """
        return self._staging.hold(unit, generation)

    def mark_durable(self, unit: str, generation: Generation, store: str) -> None:
        """It is whole in *store*, a durable one: neither it nor an older one is a candidate any more."""
        self._roster.mark_durable(unit, generation, store)
        self._staging.note_job(unit)
        self._staging.collect()

    def agree(self, unit: str, generation: Generation) -> str | None:
        """Its nodes have agreed on *generation*: it is kept, and saved first; or why that is no use."""
        until = self._clock.monotonic() + self._settings.orphan_seconds
        refused = agreement.agree(self._roster, unit, generation, until=until)
        self._agreed(unit)
        return refused.reason if refused is not None else None

    def disagree(self, unit: str, generation: Generation) -> None:
        """Nobody leaves with that generation after all."""
        agreement.disagree(self._roster, unit, generation)
        self._agreed(unit)

    def _agreed(self, unit: str) -> None:
        self._staging.note_job(unit)
        self._staging.collect()

    async def turn(
        self,
        unit: str,
        *,
        seconds: float,
        order: str,
        patience: float | None = None,
        only: Collection[int] | None = None,
    ) -> TurnResult:
        """Let every callback workload of *unit* flush itself.

        Ends when all have answered or died, or when *patience* seconds have passed.

        Args:
            seconds: The time that the workloads are told they have.
            patience: How long an answer still counts; *seconds* by default.
            only: Whom to ask, of `Unit.callers`; everybody by default.
        """
        callers = [one for one in self._callers(unit) if only is None or one.id in only]
        if not callers:
            return TurnResult(ok=False, nbytes=0, reason="nobody of it is on board")
        ranks = {one.id: one.rank for one in callers}
        deadline = self._clock.monotonic() + seconds
        number = self._turns.begin(ranks, unit=unit, order=order, deadline=deadline)
        message = Turn(turn=number, seconds=min(1e9, max(0.0, seconds)), order=order)
        for one in callers:
            session = self._aboard().session(one)
            if session is None:
                self._turns.refuse(number, one.id, "is not connected")
            else:
                session.reply(message)
        return await self._turns.result(number, seconds=seconds if patience is None else patience)

    def hurry(self, order: Order, unit: str | None = None) -> None:
        """Whoever has a turn under *order* has no more time than it leaves; of *unit* alone, where it is given."""
        aboard = self._aboard()
        for number, who in self._turns.hurry(order.id, order.deadline, unit=unit):
            workload = self._roster.workloads.get(who)
            session = aboard.session(workload) if workload is not None else None
            if session is not None:
                left = order.deadline - self._clock.monotonic()
                session.reply(Turn(number, min(1e9, max(0.0, left)), order.id))

    # --- what everybody is told ----------------------------------------------------------

    def give(self, order: Order) -> int:
        """Tell everybody aboard, and whoever comes later; returns how many were told now.

        Given again, with a later amendment, it replaces the former.
        """
        aboard = self._aboard()
        aboard.order = order
        self.hurry(order)
        return aboard.tell(aboard.message(order))

    def stand_down(self, order: Order, reason: str) -> int:
        """The order is withdrawn; returns how many were told."""
        aboard = self._aboard()
        if aboard.order is not None and aboard.order.id == order.id:
            aboard.order = None
        return aboard.tell(StandDown(order=order.id, reason=reason[:512]))

    def advise(self, notice: Notice) -> int:
        """Pass on an advisory notice; returns how many were told."""
        return self._aboard().tell(Advice(source=notice.source[:64], kind=notice.kind[:64]))

    @property
    def unclaimed(self) -> int:
        """Bytes that slots may still take of the budget; any thread may ask."""
        return self._roster.ledger.budget - self._roster.ledger.used

    def snapshot(self) -> dict[str, object]:
        """Who is on board and what the memory holds, as JSON takes it."""
        return snapshot(self._roster, self._staging.regions) | {"kept": self._keeper.shown()}

    # --- the inside ----------------------------------------------------------------------

    def _callers(self, unit: str) -> list[Workload]:
        job = self._roster.jobs.get(unit)
        return [one for one in job.members if one.mode is Mode.CALLBACK] if job else []

    def _aboard(self) -> Aboard:
        if self._desk is None:
            raise NotServing
        return self._desk.aboard

    def _open(self, desk: Desk, doors: contextlib.ExitStack) -> None:
        settings, loop = self._settings, asyncio.get_running_loop()
        gid = _gid(settings.admin_group) if settings.admin_group else None
        for door, path, mode, group in (
            (Door.ADMIN, settings.admin_path, 0o600 if gid is None else 0o660, gid),
            (Door.WORKLOAD, settings.workload_path, settings.workload_mode, None),
        ):
            accepted = partial(self._accept, desk, door)
            listener = Listener(path, mode=mode, gid=group, loop=loop, accepted=accepted)
            doors.callback(listener.close)

    def _accept(self, desk: Desk, door: Door, sock: socket.socket) -> None:
        try:
            peer = peer_of(sock, pods=self._settings.pods)
            why = barred(sock, peer, self._settings.pods) if door is Door.ADMIN else ""
        except OSError:
            self._closing.connection(sock)
            return
        link = Link(sock, asyncio.get_running_loop(), self._closing)
        session = Session(link, door, peer, desk, opened=self._clock.monotonic(), barred=why)
        link.receiver = session
        desk.opened(session)


def _gid(group: str) -> int:
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError as error:
        raise StateError(group, "there is no such group for the admin socket") from error
