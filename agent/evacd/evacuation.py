"""Acts on what the order machine decides, in the order of what cannot wait.

First the workloads are told, then the flush begins; cordon, departure and the incident's
journal run beside it, each with its own time limit. None of them can hold the flush up: a bug
in one is logged and costs itself only.
"""

from asyncio import Task, TaskGroup, wait
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

import structlog

from evacd.agreement import Agreement
from evacd.clock import Clock
from evacd.comings import Comings
from evacd.facts import Kept, Notice, Order, Outcome, Probe
from evacd.flush import Flush
from evacd.flush.save import Place, Saver
from evacd.leaving import NOTE_SECONDS, Leaving
from evacd.order import (
    Advised,
    Amended,
    Given,
    Machine,
    Standing,
    StoodDown,
    Transition,
    Waiting,
    Withdrawn,
)
from evacd.own_orders import OwnOrders
from evacd.plan import need
from evacd.plan.rate import Rate
from evacd.quiet import GiveWay
from evacd.report.journal import Journal
from evacd.workloads import Board, Denied, Died, Dropped, Happening, Joined, Left, StagedOne

log = structlog.get_logger()

# At a stop: the next daemon gives a turn that a job has asked for again, and thins out.
_BESIDE_SECONDS = 5.0


class Evacuation:
    """One node's evacuation, from the first probe to the report."""

    def __init__(
        self,
        *,
        machine: Machine,
        board: Board,
        saver: Saver,
        keep: int,
        lanes: Iterable[str],
        assumed: float,
        reserve: float,
        commit_seconds: float,
        leaving: Leaving,
        journal: Journal,
        clock: Clock,
        node: str,
        boot: str,
        beside: TaskGroup,
        count: Callable[[str, Mapping[str, Any]], None],
        new_id: Callable[[], str],
        looks: Iterable[Callable[[str], Coroutine[Any, Any, None]]] = (),
    ) -> None:
        """Wire it up.

        Args:
            keep: Whole generations per job that stay in a store.
            assumed: Bytes per second of a lane that was not measured yet.
            reserve: Seconds before the deadline that no step is planned into.
            commit_seconds: Fixed cost of each step's commit.
            leaving: Tells the world around, beside the flush.
            beside: Owns the tasks that run beside the flush.
            count: Told each event of the path, by its name in the report.
            new_id: Names an order of scope workload.
            looks: Each reads what a job's nodes have agreed on, and tells `agreement`.
        """
        self._machine = machine
        self._board = board
        self.leaving = leaving
        self._journal = journal
        self._clock = clock
        self._node = node
        self._boot = boot
        self._beside = beside
        self._count = count
        self._running: set[Task[None]] = set()
        self._comings = Comings(clock, count)
        self.saver = saver
        self._keep = keep
        self._reported: dict[str, Outcome] = {}
        self._needed: tuple[object, dict[str, Rate], dict[str, float], float] | None = None
        # What moves in quiet time gives way to the flush, or becomes a step of it.
        self.way = GiveWay(board, saver)
        self.flush = Flush(
            self.way,
            self.way,
            lanes=lanes,
            assumed=assumed,
            reserve=reserve,
            commit_seconds=commit_seconds,
            clock=clock,
            record=self._record,
            ended=self._ended,
            idle=self._idle,
        )
        self.own = OwnOrders(
            self.flush,
            self.way,
            aboard=board,
            journal=journal,
            clock=clock,
            new_id=new_id,
            node=node,
            boot=boot,
            count=count,
            beside=self._run_beside,
        )

        self.agreement = Agreement(
            board,
            node=node,
            boot=boot,
            looks=looks,
            clock=clock,
            news=self.flush.wake,
            record=self._record,
        )
        self._watching: Task[None] | None = None

    # --- what is heard -------------------------------------------------------------------

    def hear(self, probe: Probe) -> None:
        """Take one answer of a source; returns when everything urgent is under way."""
        now = self._clock.monotonic()
        probe = self.leaving.recall(probe)
        for transition in self._machine.feed(probe, now=now):
            self._act(transition)
        self.leaving.keep(self._machine.leaving)

    def tick(self) -> None:
        """Time has passed: a planned order may be due."""
        now = self._clock.monotonic()
        for transition in self._machine.tick(now=now, need=self._need()):
            self._act(transition)
        self.leaving.keep(self._machine.leaving)
        self.own.tick()

    def _need(self) -> float:
        """Seconds that saving everything takes; reckoned anew only where something has changed."""
        units, rates, commits = self.way.units(), dict(self.flush.rates), dict(self.flush.commits)
        needed = self._needed
        if needed is None or needed[0] is not units or needed[1:3] != (rates, commits):
            each = {lane: rate.bytes_per_second for lane, rate in rates.items()}
            seconds = need(units, rates=each, commit_seconds=commits)
            needed = self._needed = units, rates, commits, seconds
        return needed[3]

    def happened(self, happening: Happening) -> None:
        """Take what the workloads did."""
        match happening:
            case Died(unit, rank, pid):
                self._came_or_went(log.warning, "workload.died", unit, rank, pid)
                self.flush.rescue(unit)
            case Joined(unit, rank, pid):
                self._came_or_went(log.info, "workload.joined", unit, rank, pid)
                self.flush.wake()
            case Left(unit, rank):
                self._comings.said(log.info, "workload.left", unit, rank=rank)
                self.own.left(happening)
                self.flush.wake()
            case StagedOne():
                self.flush.wake()
            case Dropped(pid, reason, uid):
                self._comings.denied("dropped", pid, uid, reason)
            case Denied(what, pid, uid, reason):
                self._comings.denied(what, pid, uid, reason)

    def _came_or_went(
        self, write: Callable[..., Any], name: str, unit: str, rank: int, pid: int
    ) -> None:
        if self._comings.said(write, name, unit, rank=rank, pid=pid):
            self._record(name, {"unit": unit, "rank": rank, "pid": pid})

    # --- what is done --------------------------------------------------------------------

    def _act(self, transition: Transition) -> None:
        match transition:
            case Given(order):
                self._give(order)
            case Amended(order):
                self._amend(order)
            case StoodDown(order, reason):
                self._stand_down(order, reason)
            case Advised(notice):
                told = self._board.advise(notice)
                log.info("notice.advised", source=notice.source, kind=notice.kind, told=told)
            case Waiting(notice, starts_at):
                starts_in = starts_at - self._clock.monotonic()
                log.info("notice.planned", source=notice.source, starts_in_seconds=starts_in)
            case Withdrawn(notice, reason):
                log.info("notice.withdrawn", source=notice.source, kind=notice.kind, reason=reason)

    def _give(self, order: Order) -> None:
        told = self._board.give(order)
        self.flush.evacuate(order)
        window = order.deadline - order.given
        log.warning(
            "order.given",
            order=order.id,
            source=order.source,
            kind=order.kind,
            window_seconds=round(window, 3),
            told=told,
        )
        self._reported.clear()
        if (notice := self._machine.carrier) is not None:
            self._journal.open(order, notice, node=self._node, boot=self._boot)
            self._record("notice.seen", _notice_facts(notice, window))
        self._record("order.given", {**_order_facts(order, window), "told": told})
        self.leaving.begin(order)
        self.agreement.begin()
        self._announce_leaving(order)
        self._watch_no_more()
        # Nobody waits for it.
        self._watching = self._beside.create_task(_guarded(self.agreement.watch(order)))

    def _amend(self, order: Order) -> None:
        told = self._board.give(order)
        self.flush.evacuate(order)
        window = order.deadline - order.given
        log.warning("order.amended", order=order.id, window_seconds=round(window, 3), told=told)
        self._record("order.amended", {**_order_facts(order, window), "told": told})
        self.leaving.amended(order)
        self._announce_leaving(order)

    def _stand_down(self, order: Order, reason: str) -> None:
        told = self._board.stand_down(order, reason)
        self.flush.stand_down()
        self.agreement.stay()
        self._watch_no_more()
        log.warning("order.stood_down", order=order.id, reason=reason, told=told)
        self._journal.record(order.id, "order.stood_down", {"reason": reason})
        self.leaving.stay(order, reason, [unit.name for unit in self._board.units()])
        self._journal.close(order.id)

    # --- beside the flush ----------------------------------------------------------------

    def _announce_leaving(self, order: Order) -> None:
        planned = {step.unit: step for step in self.flush.plan().steps}
        goes = {unit.name: planned.get(unit.name) for unit in self._board.units()}
        self.leaving.announce(order, goes)

    def _run_beside(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._beside.create_task(_guarded(work))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def _watch_no_more(self) -> None:
        if self._watching is not None:
            self._watching.cancel()

    @property
    def standing(self) -> tuple[Standing, ...]:
        """All that was announced and not taken back."""
        return self._machine.standing()

    @property
    def goes(self) -> bool:
        """Whether this node is known to go, be it later; any thread may ask."""
        return self.flush.order is not None or self._machine.goes

    @property
    def at_rest(self) -> bool:
        """Nothing is left to move for a running order, or none runs."""
        return self.flush.order is None or self.flush.settled.is_set()

    @property
    def all_kept(self) -> bool:
        """Nothing that was on board is lost, as far as is known."""
        return all(isinstance(outcome, Kept) for outcome in self.flush.outcomes.values())

    async def settle(self) -> None:
        """Wait until a running order has nothing left to do, on any seam.

        Of a job's own order, for what moves just now alone: the next daemon goes on with the rest.
        """
        try:
            if self.flush.order is not None:
                await self.flush.settled.wait()
            else:
                await self.own.moved()
        finally:
            self._watch_no_more()
        if self._running:
            for task in (await wait(self._running, timeout=_BESIDE_SECONDS))[1]:
                task.cancel()
        await self.leaving.settled()
        await self.written()

    async def written(self) -> None:
        """All that was decided by now is on the disk, or that takes too long."""
        async with TaskGroup() as tasks:
            tasks.create_task(self.leaving.written())
            tasks.create_task(self._journal.settled(within=NOTE_SECONDS))

    # --- what became of it ---------------------------------------------------------------

    def _ended(self, outcome: Outcome) -> None:
        order = self.flush.order
        if isinstance(outcome, Kept):
            log.info(
                "flush.finished",
                unit=outcome.unit,
                store=outcome.store,
                kind=outcome.kind,
                step=outcome.generation.step if outcome.generation else None,
                nbytes=outcome.nbytes,
                seconds=round(outcome.seconds, 3),
                durable=outcome.durable,
            )
        else:
            log.error("flush.lost", unit=outcome.unit, reason=outcome.reason)
        if order is not None:
            self.agreement.ended(outcome)
            self.leaving.ended(order, outcome)
        self.own.ended(outcome)

    def _idle(self) -> None:
        """The flush has nothing left to do: thin out, and say how it went, once per change."""
        while self.flush.crowded:
            self._run_beside(self._thin_out(self.flush.crowded.pop()))
        self.own.idle()
        outcomes = self.flush.outcomes
        if self.flush.order is None:
            return
        self.leaving.emptied(self.flush.order, outcomes.values())
        self.agreement.over(outcomes, self.flush.failures)
        if outcomes == self._reported:
            return
        self._reported = dict(outcomes)
        saved = sum(isinstance(outcome, Kept) for outcome in outcomes.values())
        verdict = f"{saved} saved, {len(outcomes) - saved} lost"
        log.info("report.written", order=self.flush.order.id, verdict=verdict)
        self._record("report.written", {"verdict": verdict})
        # What still comes, a newer generation say, is recorded all the same.
        self._journal.close(self.flush.order.id)

    async def _thin_out(self, place: Place) -> None:
        wrong = await self.saver.thin_out(place, keep=self._keep)
        if wrong:
            log.warning("store.crowded", store=place.store, prefix=place.prefix, reason=wrong)

    def _record(self, name: str, data: Mapping[str, Any]) -> None:
        """Into the running incident; outside of one there is nothing to record."""
        self._count(name, data)
        self.own.record(name, data)
        if self.flush.order is not None:
            self._journal.record(self.flush.order.id, name, data)


async def _guarded(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except Exception:  # a bug beside the flush must not end the flush
        log.exception("beside.failed")


def _notice_facts(notice: Notice, window: float) -> dict[str, Any]:
    facts = {"source": notice.source, "kind": notice.kind}
    return {**facts, "confidence": notice.confidence.word, "window_seconds": window}


def _order_facts(order: Order, window: float) -> dict[str, Any]:
    return {
        "order": order.id,
        "confidence": order.confidence.word,
        "window_seconds": window,
    }
