"""The plan: who goes when, over which lane, and what is given up and why. Pure.

Units are placed in strict order, most urgent first; each gets the newest generation that still fits
behind what is placed before it, and weights alone only where nothing full fits. Which lane it
takes is chosen so that those behind it get most, and else by its own preference
(`evacd.plan.search`). That *is* the optimum here, because value is lexicographic: no number of lower
units outweighs a higher one, so nothing that was placed ever has to make room. What does not
fit leaves its time to the next unit. Turned down: a knapsack over bytes, which trades one
important job for two unimportant ones, and splitting a unit to fill the window, or over two
lanes, whose part would be worth nothing where the other one fails.

A deadline binds planning, not execution. What cannot end in time is still planned, in
overtime: behind everything that can, in the same order, until the machine is gone.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from evac.store.durability import is_durable
from evacd.facts import GivenUp, Plan, Step, Try, Unit
from evacd.plan.choices import Choice, choices, in_order, ranked
from evacd.plan.search import Asked, Picks, place
from evacd.plan.words import too_late

__all__ = ["in_order", "need", "ranked", "schedule"]

# Ends an overtime step that would never end by itself (a dead link, 2**60 bytes), so that
# every time in a plan is a number. A century.
_FOREVER = 3.2e9


def schedule(
    units: Iterable[Unit],
    *,
    deadline: float,
    rates: Mapping[str, float],
    reserve: float,
    commit_seconds: float | Mapping[str, float],
    now: float,
    free: Mapping[str, float] | None = None,
    tried: Collection[Try] = (),
) -> Plan:
    """Lay the units end to end on their lanes, most urgent first.

    Args:
        units: In any order; names are unique.
        deadline: When the machine is expected to go; may be past. Monotonic seconds, as *now*.
        rates: Bytes per second of every lane that a unit uses.
        reserve: Seconds before the deadline that stay free, for the commit of the whole.
        commit_seconds: Fixed cost of each flush beside its bytes, of all lanes or of each. A
            callback turn has none: its workload commits by itself, within its
            `Unit.turn_seconds`.
        free: When a lane that is at work is free again.
        tried: What is not to be planned (again).

    Returns:
        A plan in which every unit has a step, is given up, or both: a unit with both is
        tried in overtime.

    Raises:
        ValueError: A rate is missing or not positive, or a time is not a number.
    """
    _check(deadline=deadline, reserve=reserve, now=now)
    ordered = in_order(units)
    lanes = _used(ordered, rates)
    starts = {lane: max(now, (free or {}).get(lane, now)) for lane in lanes}
    commits = _commits(lanes, commit_seconds)
    asked = [
        Asked(
            choices(unit, rates=lanes, commits=commits, tried=tried),
            _deadline(unit, deadline) - max(reserve, 0.0),
        )
        for unit in ordered
    ]
    return _laid_out(ordered, asked, place(asked, starts), starts, lanes)


def need(
    units: Iterable[Unit],
    rates: Mapping[str, float],
    commit_seconds: float | Mapping[str, float],
) -> float:
    """Seconds that saving the newest of everything takes, where time is no object.

    So everybody goes over the durable lane that it prefers, and takes with it what survivors
    hold; the lane that takes longest counts. A planned order starts this long, and the reserve,
    before its deadline.

    Raises:
        ValueError: As `schedule`.
    """
    known = list(units)
    used = _used(known, rates)
    lanes = dict.fromkeys(used, 0.0)
    commits = _commits(used, commit_seconds)
    for unit in known:
        for choice in choices(unit, rates=used, commits=commits, tried=())[:1]:
            at = next((i for i, lane in enumerate(choice.lanes) if is_durable(lane)), 0)
            lane = choice.lanes[at]
            lanes[lane] += choice.seconds[at]
            if choice.candidate is not None:
                lanes[lane] += choice.candidate.held_nbytes / used[lane]
    return min(max(lanes.values(), default=0.0), _FOREVER)


def _laid_out(
    units: Sequence[Unit],
    asked: Sequence[Asked],
    picks: Picks,
    starts: Mapping[str, float],
    rates: Mapping[str, float],
) -> Plan:
    """What fits in one pass, then all else in overtime, each where it is soonest whole."""
    steps: list[Step] = []
    given_up: list[GivenUp] = []
    late: list[tuple[Unit, Asked]] = []
    free = dict(starts)
    for unit, one, pick in zip(units, asked, picks, strict=True):
        if pick is not None:
            steps.append(_step(unit, one.choices[pick.choice], pick.lane, free))
        elif one.choices:
            late.append((unit, one))
            given_up.append(GivenUp(unit.name, _why(one, free, rates)))
        else:
            given_up.append(GivenUp(unit.name, unit.empty_because or "no store took it"))
    for unit, one in late:
        choice, lane = _soonest(one, free)
        steps.append(_step(unit, choice, lane, free, overtime=True))
    rank = {unit.name: i for i, unit in enumerate(units)}
    steps.sort(key=lambda step: (step.starts, step.ends, rank[step.unit]))
    return Plan(tuple(steps), tuple(given_up))


def _soonest(asked: Asked, free: Mapping[str, float]) -> tuple[Choice, int]:
    """Past the deadline the machine may go at any moment.

    What is soonest whole is likeliest to be whole at all. Among equals the newest, which comes
    first, on the lane that is preferred.
    """
    every = [(choice, lane) for choice in asked.choices for lane in range(len(choice.lanes))]
    return min(every, key=lambda one: free[one[0].lanes[one[1]]] + one[0].seconds[one[1]])


def _why(asked: Asked, free: Mapping[str, float], rates: Mapping[str, float]) -> str:
    choice, at = _soonest(asked, free)
    lane = choice.lanes[at]
    return too_late(
        seconds=min(choice.seconds[at], _FOREVER),
        left=asked.limit - free[lane],
        nbytes=choice.candidate.left_on(lane) if choice.candidate else None,
        rate=rates[lane],
    )


def _step(
    unit: Unit, choice: Choice, at: int, free: dict[str, float], *, overtime: bool = False
) -> Step:
    """The next one on its lane, which is not free before its end."""
    lane, one = choice.lanes[at], choice.candidate
    begins = free[lane]
    free[lane] = begins + min(choice.seconds[at], _FOREVER)
    return Step(
        unit=unit.name,
        lane=lane,
        generation=one.generation if one else None,
        nbytes=one.left_on(lane) if one else 0,
        starts=begins,
        ends=free[lane],
        overtime=overtime,
        kind=one.kind if one else "full",
    )


def _deadline(unit: Unit, deadline: float) -> float:
    """The sooner one, where *unit* has one of its own."""
    return deadline if unit.deadline is None else min(deadline, unit.deadline)


def _used(units: Iterable[Unit], rates: Mapping[str, float]) -> dict[str, float]:
    """Every lane that some unit may take, and its rate."""
    used: dict[str, float] = {}
    for unit in units:
        for lane in unit.lanes:
            rate = used[lane] = rates.get(lane, math.nan)
            if not (rate > 0 and math.isfinite(rate)):
                expected = "expected bytes per second above 0"
                raise ValueError(f"lane {lane}: the rate is {rate}, {expected}")
    return used


def _commits(lanes: Iterable[str], commit_seconds: float | Mapping[str, float]) -> dict[str, float]:
    """What a commit costs on each lane."""
    found = (
        {lane: commit_seconds[lane] for lane in lanes}
        if isinstance(commit_seconds, Mapping)
        else dict.fromkeys(lanes, commit_seconds)
    )
    _check(**{f"commit_seconds of {lane}": seconds for lane, seconds in found.items()})
    return {lane: max(seconds, 0.0) for lane, seconds in found.items()}


def _check(**times: float) -> None:
    for name, value in times.items():
        if not math.isfinite(value):
            raise ValueError(f"{name} is {value}, expected a number of seconds")
