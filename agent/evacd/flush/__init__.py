"""Carries out the plan: one driver per lane, strictly in order, planned anew before each step.

A driver asks the planner for the whole lane and takes its first step only. So a rate that
turned out otherwise, a deadline that was shortened, a workload that died or came and a newer
generation are all answered by the same line of code: plan again.

A deadline decides what is planned; it never stops what is moving. Past it the drivers go on
in overtime until nothing is left or the machine is gone.
"""

import asyncio
from asyncio import TaskGroup, wait
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from typing import Any, Protocol, TypeAlias

from evac.errors import GenerationError
from evac.generation import Generation
from evacd.clock import Clock
from evacd.facts import Candidate, Kept, Lost, Order, Outcome, Plan, Step, Unit
from evacd.flush.save import Place, Saved, Unsaved
from evacd.plan import schedule
from evacd.plan.rate import Rate
from evacd.plan.risk import is_safe
from evacd.workloads import Part, TurnResult

# An orphan's flush has no notice behind it, so it has all the time that a plan may need.
_NO_HURRY_SECONDS = 24 * 3600.0

# How long a callback workload's answer is waited for, its lane long at work on others.
_PATIENCE_SECONDS = 3600.0

# What a person would call the same step: who, what, and whether in time.
_Gist: TypeAlias = tuple[str, Generation | None, bool]


class OnBoard(Protocol):
    """What the flush needs of the workloads; `evacd.workloads.Board` has it."""

    def units(self) -> tuple[Unit, ...]:
        """Who could be saved, and what of them."""
        ...

    def hold(self, unit: str, generation: Generation) -> AbstractContextManager[tuple[Part, ...]]:
        """Pin a generation's slots for as long as the context is open."""
        ...

    def mark_durable(self, unit: str, generation: Generation) -> None:
        """The generation is whole in a durable store."""
        ...

    async def turn(
        self, unit: str, *, seconds: float, order: str, patience: float | None = None
    ) -> TurnResult:
        """Let a callback workload flush itself; an answer counts for *patience* seconds."""
        ...


class Saves(Protocol):
    """What puts parts into a store; `evacd.flush.save.Saver` does."""

    async def save(self, parts: Sequence[Part], *, order: str) -> Saved | Unsaved:
        """Write and commit all *parts*; returns why not where no store took them."""
        ...


class Flush:
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
            commit_seconds: What a manifest and its fsync cost each step.
            record: Told each event of the path, by its name in the report.
            ended: Told each outcome, as it comes.
            idle: Told whenever no lane has anything left to do.
        """
        self._on_board = on_board
        self._saver = saver
        self._reserve = reserve
        self._commit_seconds = commit_seconds
        self._clock = clock
        self._record = record
        self._ended = ended
        self._idle = idle
        self.rates: dict[str, Rate] = {lane: Rate(assumed) for lane in lanes}
        self.order: Order | None = None
        self.outcomes: dict[str, Outcome] = {}
        self._orphans: set[str] = set()
        # Of orphans that have one: a workload that leaves has not the node's time.
        self._own: dict[str, float] = {}
        # Where a generation was completed, and older ones may be too many now.
        self.crowded: set[Place] = set()
        self._tried: set[tuple[str, Generation | None]] = set()
        self._busy: set[str] = set()
        self._told: tuple[Order | None, list[str], list[_Gist]] = (None, [], [])
        self._wakes: dict[str, asyncio.Event] = {lane: asyncio.Event() for lane in self.rates}
        self.settled = asyncio.Event()

    # --- what may happen -----------------------------------------------------------------

    def evacuate(self, order: Order) -> None:
        """Save all that is on board by the order's deadline; again when it is amended."""
        if self.order is None or self.order.id != order.id:
            self.outcomes.clear()
            self._tried.clear()
            now = self._clock.monotonic()
            self._own = {unit: own for unit, own in self._own.items() if own > now}
        self.order = order
        self.wake()

    def stand_down(self) -> None:
        """The order is withdrawn: finish the step that moves, begin no other."""
        self.order = None
        self._tried.clear()
        self.wake()

    def rescue(self, unit: str, *, deadline: float | None = None) -> None:
        """Save a unit that lost a rank: its memory lives only as long as this daemon.

        Args:
            deadline: Of this unit alone, monotonic seconds: it leaves, and nobody else. Then it is
                told what becomes of it, also where it was safe before or has staged nothing.
                A callback workload gets no turn: it flushes before it leaves.
        """
        if self.order is None:
            # What came of an earlier death says nothing of this one: neither that it is safe,
            # nor that the store would refuse it again.
            self.outcomes.pop(unit, None)
            self._tried = {(name, tried) for name, tried in self._tried if name != unit}
        self._orphans.add(unit)
        if deadline is not None:
            self._own[unit] = deadline
        self.wake()

    def wake(self) -> None:
        """Something changed: plan again."""
        self.settled.clear()
        for event in self._wakes.values():
            event.set()

    # --- driving -------------------------------------------------------------------------

    async def drive(self, lane: str) -> None:
        """Work on one lane for ever; ends only by cancellation."""
        async with TaskGroup() as turns:
            while True:
                self._wakes[lane].clear()
                step = self._next(lane)
                if step is None:
                    if not self._busy:
                        self.settled.set()
                        self._idle()
                    await self._wakes[lane].wait()
                    continue
                self._busy.add(step.unit)
                try:
                    await self._carry_out(step, turns)
                finally:
                    self._busy.discard(step.unit)

    def plan(self) -> Plan:
        """What would be done from now on.

        Whoever has nothing safe yet comes first, whatever its priority: a job that goes on
        training would else send one generation after the other while others wait.
        """
        unsafe = self._schedule(self._unsafe())
        if unsafe.steps or self.order is None:
            return unsafe
        newer = self._schedule(self._newer())
        # A second generation is worth the window's rest, but no overtime.
        in_time = tuple(step for step in newer.steps if not step.overtime)
        return Plan(in_time, unsafe.given_up)

    def _schedule(self, units: Sequence[Unit]) -> Plan:
        now = self._clock.monotonic()
        order = self.order
        return schedule(
            units,
            deadline=order.deadline if order else now + _NO_HURRY_SECONDS,
            rates={lane: rate.bytes_per_second for lane, rate in self.rates.items()},
            reserve=self._reserve,
            commit_seconds=self._commit_seconds,
            now=now,
        )

    def _unsafe(self) -> list[Unit]:
        """Who has nothing safe yet, with the candidates that were not tried."""
        units = []
        for unit in self._on_board.units():
            unit = replace(unit, deadline=self._own.get(unit.name))
            if self.order is None and unit.name not in self._orphans:
                continue
            # What was kept under an order that is over says nothing of what died since.
            kept = self.order is not None and isinstance(self.outcomes.get(unit.name), Kept)
            if kept or is_safe(unit):
                continue
            if unit.turn_seconds is not None:
                if self.order is not None and (unit.name, None) not in self._tried:
                    units.append(unit)
                continue
            fresh = self._fresh(unit)
            if fresh or not unit.candidates:
                units.append(replace(unit, candidates=fresh))
        return units

    def _newer(self) -> list[Unit]:
        """Who is safe, and has staged a newer generation since."""
        units = []
        for unit in self._on_board.units():
            kept = self.outcomes.get(unit.name)
            if isinstance(kept, Kept) and kept.generation is not None:
                # Older ones are candidates still where other nodes' ranks are missing.
                newer = [c for c in self._fresh(unit) if c.generation > kept.generation]
                if newer:
                    units.append(replace(unit, candidates=tuple(newer)))
        return units

    def _fresh(self, unit: Unit) -> tuple[Candidate, ...]:
        return tuple(c for c in unit.candidates if (unit.name, c.generation) not in self._tried)

    def _next(self, lane: str) -> Step | None:
        plan = self.plan()
        self._tell(plan)
        steps = (s for s in plan.steps if s.lane == lane and s.unit not in self._busy)
        return next(steps, None)

    def _tell(self, plan: Plan) -> None:
        """Record a plan that says something new, what it gives up, and who needs none."""
        self._spare()
        if self.order is None:
            self._give_up(plan, self._own)
            return
        steps = [(step.unit, step.generation, step.overtime) for step in plan.steps]
        given_up = [given.unit for given in plan.given_up]
        if (self.order, given_up) == self._told[:2] and _remains_of(steps, self._told[2]):
            return
        self._told = (self.order, given_up, steps)
        now = self._clock.monotonic()
        self._record(
            "plan.made",
            {
                "steps": [_told_step(step, now) for step in plan.steps],
                "given_up": [asdict(given) for given in plan.given_up],
            },
        )
        self._give_up(plan, {given.unit for given in plan.given_up})

    def _give_up(self, plan: Plan, among: Collection[str]) -> None:
        """Who has nothing left to try, not even in overtime, is lost."""
        tried_late = {step.unit for step in plan.steps if step.overtime}
        for given in plan.given_up:
            if given.unit in among and given.unit not in tried_late | self.outcomes.keys():
                self._end(Lost(given.unit, given.reason))

    def _spare(self) -> None:
        """Whose newest generation is durable already is kept, and no byte of it moves."""
        for unit in self._on_board.units():
            if self.order is None and unit.name not in self._own:
                continue
            if is_safe(unit) and not isinstance(self.outcomes.get(unit.name), Kept):
                nothing = {"unit": unit.name, "nbytes": 0, "seconds": 0.0}
                told = asdict(unit.durable) if unit.durable else None
                self._record("flush.finished", {**nothing, "generation": told})
                self._end(Kept(unit.name, unit.durable, 0, 0.0, store=unit.lane))

    # --- one step ------------------------------------------------------------------------

    async def _carry_out(self, step: Step, turns: TaskGroup) -> None:
        self._tried.add((step.unit, step.generation))
        if step.generation is None:
            await self._give_turn(step, turns)
        else:
            await self._save(step, step.generation)

    async def _save(self, step: Step, generation: Generation) -> None:
        told = {"unit": step.unit, "generation": asdict(generation), "nbytes": step.nbytes}
        priority = self._priority(step.unit)
        self._record("flush.started", {**told, "lane": step.lane, "priority": priority})
        began = self._clock.monotonic()
        try:
            with self._on_board.hold(step.unit, generation) as parts:
                saved = await self._saver.save(parts, order=self.order.id if self.order else "")
        except GenerationError as error:
            # Between plan and step the workload left, and took its slots with it.
            self._end(Lost(step.unit, error.reason))
            return
        took = self._clock.monotonic() - began
        if isinstance(saved, Unsaved):
            if saved.for_good:
                self._give_up_as_large(step)
            self._end(Lost(step.unit, saved.reason))
            return
        if saved.store in self.rates and took > 0:
            # A plan adds the commit to the bytes' time; where it took less, half is a guess.
            moving = max(took - self._commit_seconds, took / 2)
            self.rates[saved.store] = self.rates[saved.store].observed(saved.nbytes, moving)
        self._record("flush.finished", {**told, "nbytes": saved.nbytes, "seconds": took})
        self._record(
            "commit.finished",
            {"unit": step.unit, "generation": asdict(generation), "store": saved.store,
             "durable": saved.whole, "nbytes": saved.nbytes, "seconds": took},
        )  # fmt: skip
        self._orphans.discard(step.unit)
        if saved.whole:
            self._on_board.mark_durable(step.unit, generation)
            if saved.place is not None:
                self.crowded.add(saved.place)
        kept = Kept(step.unit, generation, saved.nbytes, took, saved.whole, saved.store)
        self._end(kept)

    def _give_up_as_large(self, step: Step) -> None:
        """A store that refuses so many bytes refuses what is no smaller, too."""
        for unit in self._on_board.units():
            if unit.name == step.unit:
                self._tried |= {
                    (unit.name, c.generation) for c in unit.candidates if c.nbytes >= step.nbytes
                }

    async def _give_turn(self, step: Step, turns: TaskGroup) -> None:
        order = self.order
        if order is None:
            return
        now = self._clock.monotonic()
        # What it asked for; all that is left where nobody waits behind it.
        seconds = step.ends - step.starts
        if not any(s.lane == step.lane and s.unit != step.unit for s in self.plan().steps):
            seconds = max(seconds, order.deadline - self._reserve - now)
        priority = self._priority(step.unit)
        given = {"unit": step.unit, "seconds": seconds, "priority": priority}
        self._record("turn.given", given)
        turn = turns.create_task(self._take_turn(step.unit, order, seconds))
        done, _ = await wait([turn], timeout=seconds)
        if not done:
            # The lane goes on; what the workload still manages in overtime counts.
            self._end(Lost(step.unit, f"no answer within {seconds:.1f} s"))

    async def _take_turn(self, unit: str, order: Order, seconds: float) -> None:
        began = self._clock.monotonic()
        result = await self._on_board.turn(
            unit, seconds=seconds, order=order.id, patience=max(seconds, _PATIENCE_SECONDS)
        )
        if self.order is None or self.order.id != order.id:
            return
        took = self._clock.monotonic() - began
        self._record("turn.finished", {"unit": unit, "seconds": took, **asdict(result)})
        self._end(Kept(unit, None, result.nbytes, took) if result.ok else Lost(unit, result.reason))
        if self.settled.is_set():
            self._idle()

    def _priority(self, name: str) -> int:
        return next((u.priority for u in self._on_board.units() if u.name == name), 0)

    def _end(self, outcome: Outcome) -> None:
        """Write down what became of a unit.

        Who was kept stays kept, and of several failures the first is told: it was the
        newest generation's.
        """
        before = self.outcomes.get(outcome.unit)
        if isinstance(outcome, Lost):
            self._record("flush.lost", {"unit": outcome.unit, "reason": outcome.reason})
            if before is not None:
                return
        else:
            self._own.pop(outcome.unit, None)
        self.outcomes[outcome.unit] = outcome
        self._ended(outcome)


def _remains_of(now: Sequence[_Gist], before: Sequence[_Gist]) -> bool:
    """Whether *now* is *before* with what was done left out, and so says nothing new."""
    rest = iter(before)
    return all(step in rest for step in now)


def _told_step(step: Step, now: float) -> dict[str, Any]:
    return {
        "unit": step.unit,
        "lane": step.lane,
        "generation": asdict(step.generation) if step.generation else None,
        "nbytes": step.nbytes,
        "starts_in": step.starts - now,
        "ends_in": step.ends - now,
        "overtime": step.overtime,
    }
