"""What the world around is told of a node that leaves: cordons and departures.

All of it runs beside the flush, each cordon and each job's line strictly in order, each call
with its own time limit. What was done is written down before it is done, so that a daemon
that starts again can undo it; only what we closed is ever reopened.
"""

from asyncio import Task, TaskGroup, wait
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias

import structlog

from evac.generation import Generation
from evacd.before import Before
from evacd.clock import Clock
from evacd.cordon import Cordon
from evacd.cordon.gate import Gate
from evacd.facts import Confidence, Kept, Notice, Order, Outcome, Probe, Step
from evacd.operator import NAME as OPERATOR
from evacd.rendezvous import Announcer, Departure, Word
from evacd.rendezvous.line import Lines
from evacd.report.journal import Journal
from evacd.report.standing import AtStart, OperatorDrain, Ordered, Standing, at_start
from evacd.report.standing_file import StandingFile
from evacd.report.standing_notices import LONGEST_SECONDS, kept, of_boot, over

log = structlog.get_logger()

# A disk that takes longer to keep a few hundred bytes is not waited for: the node leaves.
NOTE_SECONDS = 2.0
# After a new boot: every source has answered by then, or one does not for longer than a node may idle.
_CALM_SECONDS = 120.0

_Work: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class Leaving:
    """Owns the cordons, the announcers, their tasks, and the record of what they did."""

    def __init__(
        self,
        *,
        cordons: Iterable[Cordon],
        announcers: Iterable[Announcer],
        journal: Journal,
        file: StandingFile,
        clock: Clock,
        node: str,
        boot: str,
        beside: TaskGroup,
        count: Callable[[str, Mapping[str, Any]], None] = lambda _name, _data: None,
    ) -> None:
        """Wire it up; nothing is told yet.

        Args:
            file: Keeps what was done over a restart.
            beside: Owns the tasks.
            count: Told each event, by its name in the report.
        """
        self._journal = journal
        self._file = file
        self._clock = clock
        self._node = node
        self._boot = boot
        self._beside = beside
        self._count = count
        self._running: set[Task[None]] = set()
        self._sequence = 0
        self._standing = Standing(boot)
        # Of cordons that an earlier daemon closed, and that this one has no settings for.
        self._strangers: tuple[str, ...] = ()
        self._held: Order | None = None
        # Where it was an earlier boot that closed it: not later than then it is open, monotonic.
        self._patient_until: float | None = None
        self._before = Before()
        self._gates = tuple(
            Gate(cordon, clock=clock, run=self._run_beside, tell=self._tell, noted=self._noted)
            for cordon in cordons
        )
        self._lines = tuple(
            Lines(announcer, run=self._run_beside, tell=self._tell) for announcer in announcers
        )

    # --- an order --------------------------------------------------------------------------

    def begin(self, order: Order) -> None:
        """An order is given: no new work lands here."""
        self._held = self._patient_until = None
        self._before.begin()
        given = self._clock.utc() - timedelta(seconds=self._clock.monotonic() - order.given)
        before = self._standing.order
        if before is not None and before.id == order.id:
            given = min(given, before.given)
        ordered = Ordered(order.id, order.source, order.kind, order.confidence, given)
        # Who was told under an order of before a restart is to hear of this one's end.
        self._note(replace(self._standing, order=ordered))
        for gate in self._gates:
            gate.close(order)

    def amended(self, order: Order) -> None:
        """The order has less time, or is surer."""
        for gate in self._gates:
            gate.amend(order)

    def announce(self, order: Order, goes: Mapping[str, Step | None]) -> None:
        """Tell that this node leaves; again when the order is amended.

        Args:
            goes: All jobs on board, and what is planned for each.
        """
        goes = goes or {"": None}
        told = {*self._standing.told, *goes}
        self._note(replace(self._standing, told=tuple(sorted(told))))
        for job, step in goes.items():
            self._say(
                Word.LEAVING,
                order,
                job=job,
                generation=step.generation if step else None,
                store=step.lane if step else "",
            )

    def ended(self, order: Order, outcome: Outcome) -> None:
        """Tell what became of a job's bytes."""
        if isinstance(outcome, Kept):
            self._say(
                Word.DURABLE if outcome.durable else Word.WRITTEN,
                order,
                job=outcome.unit,
                generation=outcome.generation,
                store=outcome.store,
            )
        else:
            self._say(Word.LOST, order, job=outcome.unit, reason=outcome.reason)

    def emptied(self, order: Order, outcomes: Iterable[Outcome]) -> None:
        """Nothing is left to move, for now."""
        found = tuple(outcomes)
        kept = sum(isinstance(outcome, Kept) for outcome in found)
        for gate in self._gates:
            gate.emptied(order, kept=kept, lost=len(found) - kept)

    def stay(self, order: Order, reason: str, jobs: Iterable[str] = ()) -> None:
        """The order is withdrawn: undo it all.

        Args:
            jobs: Who is on board, beside those that were told of the leaving.
        """
        self._held = self._patient_until = None
        told = dict.fromkeys([*self._standing.told, *jobs]) or {"": None}
        self._before.forget()
        others = tuple(each for each in self._standing.notices if each.boot != self._boot)
        self._note(replace(self._standing, told=(), notices=others))
        for gate in self._gates:
            gate.reopen(order, reason=reason)
        for job in told:
            self._say(Word.STAYING, order, job=job, reason=reason)

    def shown(self) -> list[dict[str, Any]]:
        """How each cordon stands, for `evac status`."""
        return [gate.shown() for gate in self._gates]

    # --- its notices -----------------------------------------------------------------------

    def recall(self, probe: Probe) -> Probe:
        """*probe* in the light of what was heard before a restart: a notice has no more time."""
        return self._before.recall(probe)

    @property
    def order_before(self) -> str | None:
        """Id of the order of before a restart, which the next one goes on with; else None."""
        return self._before.order

    def keep(self, leaving: Iterable[Notice]) -> None:
        """Remember what carries the running order.

        Args:
            leaving: All of it; nothing where no order runs.
        """
        found = self._standing.notices
        now, utc = self._clock.monotonic(), self._clock.utc()
        notices = kept(found, leaving, self._before.waited_for, boot=self._boot, now=now, utc=utc)
        if notices != found:
            self._note(replace(self._standing, notices=notices))

    def over(self) -> tuple[str, ...]:
        """Ids of events that an earlier boot was evacuated for, and that are past."""
        return over(self._standing.notices, self._boot, utc=self._clock.utc())

    # --- the end ---------------------------------------------------------------------------

    async def settled(self) -> None:
        """Wait until nothing of it runs any more."""
        for gate in self._gates:
            gate.end_soon()
        for lines in self._lines:
            lines.end_soon()
        while self._running:
            await wait(set(self._running))

    async def written(self) -> None:
        """What was noted is on the disk, or that takes too long."""
        await self._file.written(within=NOTE_SECONDS)

    def stop(self) -> None:
        """End what still runs; what it did stays noted for the next start."""
        for gate in self._gates:
            gate.end_soon()
        for task in self._running:
            task.cancel()

    # --- a drain, and a restart ------------------------------------------------------------

    def drained(self, notice: Notice) -> None:
        """An operator drains the node, or does so again: the earlier deadline holds."""
        now = self._clock.monotonic()
        asked = notice.deadline if notice.deadline is not None else now
        deadline = min(asked, now + LONGEST_SECONDS)
        before = self._standing.drain
        if before is not None and before.id == notice.id:
            deadline = min(deadline, before.deadline)
        self._note(replace(self._standing, drain=OperatorDrain(notice.id, deadline, notice.detail)))

    def undrained(self) -> None:
        """The operator took it back; the next one may have its id, and is another."""
        drain = self._standing.drain
        gone = () if drain is None else ((OPERATOR, drain.id),)
        left = tuple(each for each in self._standing.notices if each.key not in gone)
        self._note(replace(self._standing, drain=None, notices=left))

    def resume(self) -> OperatorDrain | None:
        """Take over from an earlier daemon. Blocks for a moment.

        Returns:
            The drain that stands again, for whoever makes notices of drains.
        """
        found = self._file.load()
        do = at_start(found, self._boot)
        for gate in self._gates:
            gate.inherit(partial(self._inherited, gate))
        if found is None:
            return None
        order_before = found.order.id if found.order else None
        self._before = Before(of_boot(found.notices, self._boot), order_before)
        if do is AtStart.NOTHING:
            self._standing = replace(found, boot=self._boot, told=(), drain=None)
            return None
        log.info(
            "leaving.resumed",
            what=do.value,
            closed=list(found.closed),
            order=found.order.id if found.order else None,
        )
        self._closed_before(found.closed)
        order = self._order_of(found)
        if do is AtStart.REOPEN:
            self._standing = replace(found, boot=self._boot, told=(), drain=None)
            for gate in self._gates:
                gate.reopen(order, reason="the node has booted again")
            return None
        self._standing = found
        if do is AtStart.HOLD:
            self._held = order
            return None
        return found.drain

    @property
    def holds(self) -> bool:
        """What an earlier daemon did still stands, and no order of this one."""
        return self._held is not None

    @property
    def overdue(self) -> bool:
        """An earlier boot closed it, and not all sources have said by now that there is nothing."""
        until = self._patient_until
        return self.holds and until is not None and self._clock.monotonic() >= until

    def let_go(self, reason: str = "nothing announces the end of this machine any more") -> None:
        """All sources say that there is nothing: undo what an earlier daemon did."""
        if self._held is not None and self._patient_until is not None:
            # Whoever was told of the leaving has long since heard of the boot, or of its end.
            order, self._held, self._patient_until = self._held, None, None
            for gate in self._gates:
                gate.reopen(order, reason="the node has booted again")
        elif self._held is not None:
            order = self._held
            log.warning("leaving.undone", order=order.id, reason=reason)
            self.stay(order, reason, jobs=())

    def _closed_before(self, closed: Iterable[str]) -> None:
        for gate in self._gates:
            gate.closed = gate.name in closed
        names = {gate.name for gate in self._gates}
        self._strangers = tuple(name for name in closed if name not in names)
        for name in self._strangers:
            log.warning("cordon.unknown", by=name, reason="closed by us, but not configured now")

    def _inherited(self, gate: Gate, boot: str) -> None:
        """What was closed says so itself, whatever became of our own record."""
        log.info("cordon.inherited", by=gate.name, boot=boot)
        gate.closed = True
        self._note(self._standing)
        order = self._held or self._order_of(Standing(boot))
        self._held = order
        if boot != self._boot:
            # The new boot may have its own notice by now, which is still to be heard.
            self._patient_until = self._clock.monotonic() + _CALM_SECONDS

    def _order_of(self, found: Standing) -> Order:
        """The order under which it was done; its incident goes on."""
        now = self._clock.monotonic()
        if found.order is None:
            return Order("", now, Confidence.CERTAIN, "evacd", "restart", given=now)
        was = found.order
        since = max((self._clock.utc() - was.given).total_seconds(), 0.0)
        seen = self._before.first_seen(default=now - since)
        self._journal.resume(was.id, since_seconds=now - seen)
        return Order(was.id, now, was.confidence, was.source, was.kind, given=now - since)

    # --- how -------------------------------------------------------------------------------

    def _say(
        self,
        word: Word,
        order: Order,
        *,
        job: str,
        generation: Generation | None = None,
        store: str = "",
        reason: str = "",
    ) -> None:
        now = self._clock.monotonic()
        # The monotonic clock goes on over a restart of the daemon, and begins anew only with
        # the boot: so do these.
        self._sequence = max(self._sequence + 1, int(now * 1e6))
        departure = Departure(
            word,
            self._node,
            self._boot,
            order.id,
            seconds_left=max(order.deadline - now, 0.0),
            job=job,
            generation=generation,
            store=store,
            reason=reason,
            sequence=self._sequence,
        )
        for lines in self._lines:
            lines.say(departure)

    async def _noted(self) -> None:
        self._note(self._standing)
        await self.written()

    def _note(self, standing: Standing) -> None:
        closed = (*(gate.name for gate in self._gates if gate.closed), *self._strangers)
        self._standing = replace(standing, closed=closed)
        self._file.put(self._standing)

    def _run_beside(self, work: _Work) -> None:
        task = self._beside.create_task(_guarded(work))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def _tell(self, order: str, name: str, data: Mapping[str, Any]) -> None:
        """Record and log what ended, maybe after its order."""
        for gate in self._gates:
            if name.startswith("cordon.") and gate.name != data["name"]:
                gate.heard(order, name, data)
        write = log.warning if name.endswith(".failed") else log.info
        self._count(name, data)
        write(name, order=order, **{k if k != "name" else "by": v for k, v in data.items()})
        if order:
            self._journal.record(order, name, data)


async def _guarded(work: _Work) -> None:
    try:
        await work()
    except Exception:  # a bug beside the flush must not end the flush
        log.exception("beside.failed")
