"""Carries out the plan: one driver per lane, strictly in order, planned anew before each step.

A driver asks the planner for all lanes and takes its own first step only. So a rate that
turned out otherwise, a deadline that was shortened, a workload that died or came, a store that
refused and a newer generation are all answered by the same line of code: plan again. Only of
very many units a plan stands for a few steps (`evacd.flush.standing`).

A deadline decides what is planned. What moves is stopped by it only before it has passed, and only
where that saves more (`evacd.plan.again`); past it the drivers go on in overtime until nothing is
left or the machine is gone.
"""

import asyncio
import math
from asyncio import TaskGroup, wait
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import structlog

from evac.errors import GenerationError
from evac.generation import Generation
from evac.store import is_durable
from evacd.clock import Clock
from evacd.facts import Kept, Lost, Order, Outcome, Step, Try, Unit
from evacd.flush.planning import Planning
from evacd.flush.running import Running
from evacd.flush.save import Place, Saved, Unsaved, broken
from evacd.flush.seams import OnBoard, Saves
from evacd.flush.standing import StandingPlan
from evacd.flush.story import Story
from evacd.flush.tries import LONGEST_SECONDS
from evacd.flush.wants import as_large
from evacd.flush.whole import Known
from evacd.plan.again import gives_way, may_give_way
from evacd.plan.rate import commit_after
from evacd.plan.risk import is_safe
from evacd.workloads import TurnResult

__all__ = ["Flush", "OnBoard", "Saves"]

log = structlog.get_logger()

# A clock may be a hair behind the one that wakes.
_LEAST_REST_SECONDS = 0.01
# The longest pause before another try where nobody hurries.
_PATIENT_SECONDS = 60.0

# How long a callback workload's answer is waited for, its lane long at work on others.
_PATIENCE_SECONDS = 3600.0

# How often a step that runs is looked at: its rate, and whether it still can end in time.
_LOOK_SECONDS = 0.25
# How long a step that was stopped may take to end before its lane goes on.
_LET_GO_SECONDS = 1.0


class Flush(Planning):
    """All lanes of this node, and what has become of each unit under the running order."""

    def __init__(
        self,
        on_board: OnBoard,
        saver: Saves,
        *,
        lanes: Iterable[str],
        assumed: float,
        reserve: float,
        commit_seconds: float,
        clock: Clock,
        record: Callable[[str, Mapping[str, Any]], None],
        ended: Callable[[Outcome], None],
        idle: Callable[[], None],
    ) -> None:
        """Wire it up; nothing moves before `evacuate` or `rescue`.

        Args:
            assumed: Bytes per second of a lane that was not measured yet.
            reserve: Seconds before the deadline that no step is planned into.
            commit_seconds: What a manifest and its fsync cost each step, until it is known.
            record: Told each event of the path, by its name in the report.
            ended: Told each outcome, as it comes.
            idle: Told whenever no lane has anything left to do.
        """
        super().__init__(
            on_board, Story(record, ended),
            lanes=lanes, assumed=assumed, reserve=reserve, commit_seconds=commit_seconds, clock=clock,
        )  # fmt: skip
        self._saver = saver
        self._record = record
        self._idle = idle
        # Where what is durable lies; quiet time tells, too.
        self.known = Known()
        # Where something was committed, and older ones may be too many now.
        self.crowded: set[Place] = set()
        self._stopped: set[Try] = set()
        self._stands = StandingPlan()
        self._wakes: dict[str, asyncio.Event] = {lane: asyncio.Event() for lane in self.rates}
        self.settled = asyncio.Event()

    # --- what may happen -----------------------------------------------------------------

    def evacuate(self, order: Order) -> None:
        """Save all that is on board by the order's deadline; again when it is amended."""
        if self.order is None or self.order.id != order.id:
            self._story.begin()
            self._tries.forget()
            self._asked.forget()
            self._stopped.clear()
            now = self._clock.monotonic()
            self._own = {unit: own for unit, own in self._own.items() if own > now}
        self.order = order
        self.wake()

    def stand_down(self) -> None:
        """The order is withdrawn: finish the step that moves, begin no other."""
        self.order = None
        self._tries.forget()
        self._asked.forget()
        self.wake()

    def rescue(self, unit: str, *, deadline: float | None = None) -> None:
        """Save a unit that lost a rank: its memory lives only as long as this daemon.

        Args:
            deadline: Of this unit alone, monotonic seconds: it leaves, and nobody else. Then it is
                told what becomes of it, also where it was safe before or has staged nothing.
                A callback workload gets its turn from whoever asks for it (`evacd.own_orders`).
        """
        if self.order is None:
            # What came of an earlier death says nothing of this one: neither that it is safe,
            # nor that the store would refuse it again.
            self._story.forget(unit)
            self._tries.forget(unit)
        self._orphans.add(unit)
        if deadline is not None:
            self._own[unit] = deadline
        self.wake()

    def wake(self) -> None:
        """Something changed: plan again."""
        self.settled.clear()
        self._stands.fall()
        for event in self._wakes.values():
            event.set()

    # --- driving -------------------------------------------------------------------------

    async def drive(self, lane: str) -> None:
        """Work on one lane for ever; ends only by cancellation."""
        async with TaskGroup() as tasks:
            while True:
                self._wakes[lane].clear()
                step, over = self._next(lane)
                if step is None:
                    if over:
                        self.settled.set()
                        self._idle()
                    await self._rest(lane)
                    continue
                self.settled.clear()
                running = self._running[lane] = Running(
                    step,
                    self.rates[lane],
                    commit_seconds=self.commits[lane],
                    now=self._clock.monotonic(),
                    clock=self._clock.monotonic,
                )
                try:
                    await self._carry_out(running, tasks)
                finally:
                    del self._running[lane]
                    self._stands.ended(step)
                    # What ended here may be for another lane to go on with.
                    for other, event in self._wakes.items():
                        if other != lane:
                            event.set()

    async def _rest(self, lane: str) -> None:
        """Until something happens, or what failed before may be tried again."""
        now = self._clock.monotonic()
        ends = (at for at in (self._tries.next(now), self._until) if at is not None and at > now)
        at = min(ends, default=None) if self._tries.any_comes_back else None
        with suppress(TimeoutError):
            async with asyncio.timeout(None if at is None else max(at - now, _LEAST_REST_SECONDS)):
                await self._wakes[lane].wait()

    def _next(self, lane: str) -> tuple[Step | None, bool]:
        """What is to be done on *lane* now, and whether nothing is left to do on any."""
        now = self._clock.monotonic()
        limit = self.order.deadline - self._reserve if self.order else math.inf
        rates = self.rates_now(now)
        if self._stands.stands(lane, now=now, limit=limit, rate=rates[lane]):
            return self._stands.take(lane), False
        units = self._on_board.units()
        plan = self.plan(units)
        self._spare(units)
        self._story.plan(plan, self.order, own=self._own, now=now)
        moving = {one.step.unit for one in self._running.values()}
        # Who has a deadline of its own is watched more closely.
        many = 0 if self._own else len(units)
        self._stands.made(plan, units=many, moving=moving, rates=rates)
        here = (step for step in plan.steps if step.lane == lane and step.unit not in moving)
        over = not plan.steps and not self._comes_back(units, now)
        return self._stands.take(lane) or next(here, None), over

    def _spare(self, units: Sequence[Unit]) -> None:
        """Whose newest generation is durable already is kept, and no byte of it moves."""
        for unit in units:
            if self.order is None and unit.name not in self._own:
                continue
            whole = self.known.of(unit) if is_safe(unit) else None
            if whole is not None and not isinstance(self.outcomes.get(unit.name), Kept):
                facts = {
                    "unit": unit.name,
                    "generation": asdict(whole.generation),
                    "nbytes": 0,
                    "seconds": 0.0,
                    "store": whole.store,
                    "already": whole.nbytes,
                }
                self._record("flush.finished", facts)
                told = Kept(unit.name, whole.generation, 0, 0.0, store=whole.store)
                self._keep(replace(told, already=whole.nbytes))

    # --- one step ------------------------------------------------------------------------

    async def _carry_out(self, running: Running, tasks: TaskGroup) -> None:
        step = running.step
        attempt = (step.unit, step.generation, step.kind, step.lane)
        self._tries.began(attempt)
        if step.generation is None:
            await self._give_turn(step, tasks)
            return
        facts = {"unit": step.unit, "generation": asdict(step.generation), "lane": step.lane}
        told = {**facts, "nbytes": step.nbytes, "kind": step.kind}
        self._record("flush.started", {**told, "priority": self._priority(step.unit)})
        saving = tasks.create_task(self._save(running, step.generation))
        while not (await wait([saving], timeout=_LOOK_SECONDS))[0]:
            now = self._clock.monotonic()
            running.look(now)
            if self._stops(running, now):
                self._stopped.add(attempt)
                # Threads end with the part that they are at; nobody waits long for that.
                saving.cancel()
                await wait([saving], timeout=_LET_GO_SECONDS)
                break
        if not saving.done() or saving.cancelled():
            # It may fit again: what was stopped once is not stopped once more.
            self._tries.stopped(attempt)
            self.rates[step.lane] = running.rate(self._clock.monotonic())
            self._record("flush.stopped", {**facts, "nbytes": running.moved})
            return
        self._take(running, saving.result())

    async def _save(self, running: Running, generation: Generation) -> Saved | Unsaved | None:
        """None where its workload left between plan and step, and took its slots with it."""
        step = running.step
        try:
            with self._on_board.hold(step.unit, generation) as parts:
                return await self._saver.save(
                    parts,
                    lane=step.lane,
                    order=self.order.id if self.order else "",
                    kind=step.kind,
                    progress=running.progress,
                )
        except GenerationError as error:
            self._tries.give_up((step.unit, generation, step.kind, lane) for lane in self.rates)
            self._story.failed(step, error.reason)
            return None
        except Exception as error:  # a bug costs this try, and no lane its driver
            log.exception("flush.broke", unit=step.unit, store=step.lane)
            return Unsaved(broken(error), for_good=False)

    def _take(self, running: Running, saved: Saved | Unsaved | None) -> None:
        """What came of a step that ran to its end."""
        step, now = running.step, self._clock.monotonic()
        if saved is None or step.generation is None:
            return
        self.rates[step.lane] = running.ended()
        if isinstance(saved, Unsaved):
            if saved.for_good and not saved.fenced:
                self._tries.give_up(as_large(self._on_board.units(), step))
            elif not saved.for_good:
                hurried = self.order is not None or step.unit in self._own
                longest = LONGEST_SECONDS if hurried else _PATIENT_SECONDS
                attempt = (step.unit, step.generation, step.kind, step.lane)
                self._tries.failed(attempt, now=now, longest=longest)
            self._story.failed(step, saved.reason)
            return
        self.commits[step.lane] = commit_after(self.commits[step.lane], running.committed(now))
        took = now - running.began
        durable = saved.whole and step.kind != "weights" and is_durable(saved.store)
        told = {
            "unit": step.unit,
            "generation": asdict(step.generation),
            "nbytes": saved.nbytes,
            "seconds": took,
            "kind": step.kind,
        }
        self._record("flush.finished", told)
        self._record("commit.finished", {**told, "store": saved.store, "durable": durable})
        if durable:
            self.known.note(step.unit, step.generation, saved.store, saved.nbytes)
            self._on_board.mark_durable(step.unit, step.generation, saved.store)
            self._stands.whole(step)
        if saved.place is not None and is_durable(saved.store):
            self.crowded.add(saved.place)
        kept = Kept(step.unit, step.generation, saved.nbytes, took, durable, saved.store, step.kind)
        before = self.outcomes.get(step.unit)
        if step.kind == "held" and isinstance(before, Kept):
            # The rest of what is kept already.
            nbytes, took = before.nbytes + saved.nbytes, before.seconds + took
            kept = replace(kept, kind="full", nbytes=nbytes, seconds=took)
        self._keep(kept)

    def _keep(self, kept: Kept) -> None:
        self._orphans.discard(kept.unit)
        self._own.pop(kept.unit, None)
        self._story.end(kept)

    def _stops(self, running: Running, now: float) -> bool:
        """Whether more is saved if what runs is stopped for it."""
        order, one = self.order, running.underway(now)
        if order is None or one.attempt in self._stopped:
            return False
        if not may_give_way(one, deadline=order.deadline, reserve=self._reserve, now=now):
            return False
        others = {other.step.unit for lane, other in self._running.items() if lane != one.step.lane}
        units, made = self._on_board.units(), self._tries.made
        return gives_way(
            one,
            [unit for unit in self._wants(units, made).unsafe() if unit.name not in others],
            deadline=order.deadline,
            rates=self.rates_now(now),
            reserve=self._reserve,
            commit_seconds=self.commits,
            now=now,
            free=self._free(now),
            tried=made,
        )

    async def _give_turn(self, step: Step, tasks: TaskGroup) -> None:
        order = self.order
        if order is None:
            return
        now = self._clock.monotonic()
        # What it asked for; all that is left where nobody waits behind it.
        seconds = step.ends - step.starts
        if not any(s.lane == step.lane and s.unit != step.unit for s in self.plan().steps):
            seconds = max(seconds, order.deadline - self._reserve - now)
        aboard = (unit.callers for unit in self._on_board.units() if unit.name == step.unit)
        if (asked := self._asked.begin(step.unit, next(aboard, frozenset()))) is None:
            return
        number, who = asked
        given = {"unit": step.unit, "seconds": seconds, **({"late": True} if number else {})}
        self._record("turn.given", {**given, "priority": self._priority(step.unit)})
        if number:
            # It is not safe any more: somebody of it was not asked before.
            self._story.forget(step.unit)
        turn = tasks.create_task(self._take_turn(step.unit, order, seconds, number, who or None))
        done, _ = await wait([turn], timeout=seconds)
        if not done:
            # The lane goes on; what the workload still manages in overtime counts.
            self._story.end(Lost(step.unit, f"no answer within {seconds:.1f} s"))

    async def _take_turn(
        self, unit: str, order: Order, seconds: float, number: int, who: frozenset[int] | None
    ) -> None:
        began = self._clock.monotonic()
        patience = max(seconds, _PATIENCE_SECONDS)
        try:
            result = await self._on_board.turn(
                unit, seconds=seconds, order=order.id, patience=patience, only=who
            )
        except Exception as error:  # as in _save
            log.exception("turn.broke", unit=unit)
            result = TurnResult(False, 0, broken(error))
        if self.order is None or self.order.id != order.id:
            return
        took = self._clock.monotonic() - began
        ended = self._asked.end(unit, number, result)
        if ended is None:
            return
        self._record("turn.finished", {"unit": unit, "seconds": took, **asdict(ended)})
        if ended.ok:
            self._keep(Kept(unit, None, ended.nbytes, took))
        else:
            self._story.end(Lost(unit, ended.reason))
        if self.settled.is_set():
            self._idle()

    def _priority(self, name: str) -> int:
        return next((u.priority for u in self._on_board.units() if u.name == name), 0)
