"""Whether a step that runs is given up for something better. Pure.

A deadline never stops what moves, but two things may have changed since the step began. It may have
become clear that it cannot be whole in time: the deadline was cut, or the link has slowed down.
Then its lane is worth more to whoever can still be saved: the same unit on another lane, with an
older generation or with its weights alone, or those behind it. Or its workload has staged anew,
as it is asked to when an order comes: the newer one wins where it fits, begun now, and would not
behind the older one. So does what the job's nodes have agreed on meanwhile, be it older.

What has moved is lost by that, so it takes much: the step must be late by more than any error of
its rate would explain, or have hardly begun; nearly done is as good as done; what comes in its
stead must fit with room to spare; and the caller gives up each step once at most. Past the
deadline nothing is given up: there is nothing left to gain.

A more urgent unit that comes late is no reason: strict priority holds where steps begin. A step
that ends in time costs it one step's wait, and to stop it costs a sure save; if the wait costs
the urgent one its window, it goes by what still fits, like everybody.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from evacd.facts import Candidate, Plan, Step, Try, Unit
from evacd.plan import in_order, ranked, schedule

# What is left of a step, as a share of its bytes, that is always waited for.
NEARLY_DONE = 0.15
# What has moved of it at most, as a share, where a newer one takes its place.
HARDLY_BEGUN = 0.35
# Shares of the time that is left: by so much the step must be late, and its substitute early.
LATE = 0.25
EARLY = 0.1


@dataclass(frozen=True)
class Underway:
    """A step that runs.

    Attributes:
        moved: Bytes of it that are written.
        ends: When it will have ended, at the best rate that what was seen allows.
    """

    step: Step
    moved: int
    ends: float

    @property
    def attempt(self) -> Try:
        """As what it would have been tried."""
        return self.step.unit, self.step.generation, self.step.kind, self.step.lane


def may_give_way(one: Underway, *, deadline: float, reserve: float, now: float) -> bool:
    """Whether it is worth asking `gives_way`, which plans twice."""
    left = deadline - reserve - now
    if one.step.generation is None or one.step.overtime or left <= 0:
        return False
    if one.step.nbytes - one.moved <= NEARLY_DONE * one.step.nbytes:
        return False
    return _late(one, left, now) or one.moved <= HARDLY_BEGUN * one.step.nbytes


def gives_way(
    one: Underway,
    units: Sequence[Unit],
    *,
    deadline: float,
    rates: Mapping[str, float],
    reserve: float,
    commit_seconds: float | Mapping[str, float],
    now: float,
    free: Mapping[str, float],
    tried: Collection[Try],
) -> bool:
    """Whether more is saved in time if *one* is cancelled now.

    Args:
        units: Who has nothing safe yet and is not being saved on another lane; that of *one* is
            among them, or it is never given up.
        free: When the lanes that are at work are free again; that of *one* does not matter.
    """
    unit = next((unit for unit in units if unit.name == one.step.unit), None)
    if unit is None:
        return False
    until = deadline if unit.deadline is None else min(deadline, unit.deadline)
    if not may_give_way(one, deadline=until, reserve=reserve, now=now):
        return False
    left = until - reserve - now
    late = _late(one, left, now)
    newer = _better(unit, one.step)
    if not late and not newer:
        return False

    def planned(
        among: Sequence[Unit], end: float, busy: Mapping[str, float], but: Collection[Try]
    ) -> Plan:
        return schedule(
            among,
            deadline=end,
            rates=rates,
            reserve=reserve,
            commit_seconds=commit_seconds,
            now=now,
            free=busy,
            tried=but,
        )

    others = [other for other in units if other.name != unit.name]
    rest = {lane: at for lane, at in free.items() if lane != one.step.lane}
    gives = planned(units, deadline - EARLY * left, rest, {*tried, one.attempt})
    stays = planned(others, deadline, {**rest, one.step.lane: one.ends}, tried)
    if late:
        return value(gives, units) > value(stays, units)
    # In time, and then the newer one as well, where it fits behind everybody.
    behind = {**rest, one.step.lane: one.ends} | {step.lane: step.ends for step in stays.steps}
    second = planned([replace(unit, candidates=newer)], deadline, behind, tried)
    if any(not step.overtime for step in second.steps):
        return False
    kept = Plan((*stays.steps, one.step))
    before, after = value(kept, units), value(gives, units)
    mine = in_order(units).index(unit)
    return after > before and after[mine] > before[mine]


def _late(one: Underway, left: float, now: float) -> bool:
    return one.ends > now + left + LATE * left


def _better(unit: Unit, step: Step) -> tuple[Candidate, ...]:
    """What there is of *unit* that would have been better than *step*, all of it full."""
    every = [one for one in ranked(unit) if one is not None and one.kind == "full"]
    if step.kind != "full" or step.generation is None:
        return tuple(every)
    mine = step.generation == unit.agreed, step.generation
    return tuple(one for one in every if (one.generation == unit.agreed, one.generation) > mine)


def value(plan: Plan, units: Sequence[Unit]) -> tuple[float, ...]:
    """What *plan* saves in time: for each unit, most urgent first, how good that is."""
    saved = {step.unit: step for step in plan.steps if not step.overtime}
    return tuple(_worth(unit, saved.get(unit.name)) for unit in in_order(units))


def _worth(unit: Unit, step: Step | None) -> float:
    """0 for the best that there is of it, less for each thing that would have been better."""
    if step is None:
        return float("-inf")
    if step.generation is None:
        return 0.0
    every = [(one.generation, one.kind) for one in ranked(unit) if one is not None]
    return -float(every.index((step.generation, step.kind)))
