"""The plan: who goes when, over which lane, and what is given up and why. Pure.

Each lane is filled in one pass, most urgent unit first; each unit takes the newest
generation that still fits behind what is already placed. That one greedy pass *is* the
optimum here, because value is lexicographic: no number of lower units outweighs a higher
one, so nothing that was placed ever has to make room. What does not fit leaves its time to
the next unit. Turned down: a knapsack over bytes, which trades one important job for two
unimportant ones, and splitting a unit to fill the window, whose part would be worth nothing.

A deadline binds planning, not execution. What cannot end in time is still planned, in
overtime: behind everything that can, in the same order, until the machine is gone.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from evacd.facts import Candidate, GivenUp, Plan, Step, Unit
from evacd.plan.words import too_late

__all__ = ["in_order", "need", "schedule"]

# Ends an overtime step that would never end by itself (a dead link, 2**60 bytes), so that
# every time in a plan is a number. A century.
_FOREVER = 3.2e9


def schedule(
    units: Iterable[Unit],
    *,
    deadline: float,
    rates: Mapping[str, float],
    reserve: float,
    commit_seconds: float,
    now: float,
) -> Plan:
    """Lay the units end to end on their lanes, most urgent first.

    Args:
        units: In any order; names are unique.
        deadline: When the machine is expected to go; may be past. Monotonic seconds, as *now*.
        rates: Bytes per second of every lane that a unit uses.
        reserve: Seconds before the deadline that stay free, for the commit of the whole.
        commit_seconds: Fixed cost of each flush beside its bytes. A callback turn has none:
            its workload commits by itself, within its `Unit.turn_seconds`.

    Returns:
        A plan in which every unit has a step, is given up, or both: a unit with both is
        tried in overtime.

    Raises:
        ValueError: A rate is missing or not positive, or a time is not a number.
    """
    _check(deadline=deadline, reserve=reserve, commit_seconds=commit_seconds, now=now)
    reserve = max(reserve, 0.0)
    lanes: dict[str, list[Unit]] = defaultdict(list)
    for unit in in_order(units):
        lanes[unit.lane].append(unit)
    steps: list[Step] = []
    given_up: list[GivenUp] = []
    for lane, members in lanes.items():
        rate = _rate(rates, lane)
        placed, refused = _fill(members, deadline, reserve, rate, max(commit_seconds, 0.0), now)
        steps += placed
        given_up += refused
    rank = {unit.name: i for i, unit in enumerate(in_order(u for us in lanes.values() for u in us))}
    steps.sort(key=lambda step: (step.starts, step.ends, rank[step.unit]))
    given_up.sort(key=lambda item: rank[item.unit])
    return Plan(tuple(steps), tuple(given_up))


def need(units: Iterable[Unit], rates: Mapping[str, float], commit_seconds: float) -> float:
    """Seconds that saving the newest of everything takes, over the lane that takes longest.

    A planned order starts this long, and the reserve, before its deadline.

    Raises:
        ValueError: As `schedule`.
    """
    _check(commit_seconds=commit_seconds)
    lanes: dict[str, float] = defaultdict(float)
    for unit in units:
        rate = _rate(rates, unit.lane)
        for choice in _choices(unit)[:1]:
            lanes[unit.lane] += _seconds(unit, choice, rate, max(commit_seconds, 0.0))
    return min(max(lanes.values(), default=0.0), _FOREVER)


def in_order(units: Iterable[Unit]) -> list[Unit]:
    """Most urgent first: by priority, then who came first, then by name."""
    return sorted(units, key=lambda unit: (-unit.priority, unit.arrived, unit.name))


def _fill(
    units: Sequence[Unit], deadline: float, reserve: float, rate: float, commit: float, now: float
) -> tuple[list[Step], list[GivenUp]]:
    """One lane: what fits before the deadline in one pass, then all else in overtime."""
    steps: list[Step] = []
    given_up: list[GivenUp] = []
    late: list[tuple[Unit, Candidate | None]] = []
    cursor = now
    for unit in units:
        limit = _deadline(unit, deadline) - reserve
        choices = _choices(unit)
        if not choices:
            given_up.append(GivenUp(unit.name, unit.empty_because))
            continue
        for choice in choices:
            ends = cursor + _seconds(unit, choice, rate, commit)
            if ends <= limit:
                steps.append(_step(unit, choice, cursor, ends))
                cursor = ends
                break
        else:
            # Past the deadline the machine may go at any moment: what is soonest whole is
            # likeliest to be whole at all. Among equals the newest, which comes first.
            soonest = min(choices, key=lambda choice: _seconds(unit, choice, rate, commit))
            late.append((unit, soonest))
            reason = too_late(
                seconds=min(_seconds(unit, soonest, rate, commit), _FOREVER),
                left=limit - cursor,
                nbytes=soonest.nbytes if soonest else None,
                rate=rate,
            )
            given_up.append(GivenUp(unit.name, reason))
    for unit, choice in late:
        ends = cursor + min(_seconds(unit, choice, rate, commit), _FOREVER)
        steps.append(_step(unit, choice, cursor, ends, overtime=True))
        cursor = ends
    return steps, given_up


def _deadline(unit: Unit, deadline: float) -> float:
    """The sooner one, where *unit* has one of its own."""
    return deadline if unit.deadline is None else min(deadline, unit.deadline)


def _choices(unit: Unit) -> tuple[Candidate | None, ...]:
    """What may be done for it, best first; None is a callback workload's turn."""
    return unit.candidates if unit.turn_seconds is None else (None,)


def _seconds(unit: Unit, choice: Candidate | None, rate: float, commit: float) -> float:
    """What *choice* takes on its lane; infinite where that is no number."""
    if choice is None:
        seconds = unit.turn_seconds or 0.0
    else:
        try:
            seconds = choice.nbytes / rate + commit
        except OverflowError:
            return math.inf
    return math.inf if math.isnan(seconds) else max(seconds, 0.0)


def _step(
    unit: Unit, choice: Candidate | None, starts: float, ends: float, *, overtime: bool = False
) -> Step:
    return Step(
        unit=unit.name,
        lane=unit.lane,
        generation=choice.generation if choice else None,
        nbytes=choice.nbytes if choice else 0,
        starts=starts,
        ends=ends,
        overtime=overtime,
    )


def _rate(rates: Mapping[str, float], lane: str) -> float:
    rate = rates.get(lane, math.nan)
    if not (rate > 0 and math.isfinite(rate)):
        raise ValueError(f"lane {lane}: the rate is {rate}, expected bytes per second above 0")
    return rate


def _check(**times: float) -> None:
    for name, value in times.items():
        if not math.isfinite(value):
            raise ValueError(f"{name} is {value}, expected a number of seconds")
