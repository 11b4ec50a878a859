"""On which lane everybody goes, so that most is saved. Pure.

With one lane it is one greedy pass. With several, the lane that a unit takes decides what is left
for those behind it: two may each fit on two lanes, and a third only if they share one. So all
ways to place the first units that are equally good for them are kept side by side, less those
that leave no more time on any lane than another one does, and the next unit picks among them. That is
exact as long as they are few (`MOST`); beyond, those that leave most are kept. Nothing is searched
where the plain greedy pass gives everybody the best there is, and where there are more units than
any node has jobs that matter: five hundred cost one pass.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evacd.plan.choices import Choice

# Ways that are kept side by side, for all units together: so that a plan takes milliseconds.
MOST = 1536
_MOST_AT_ONCE = 128
# Units beyond which the greedy pass has to do.
_FEW = 64


@dataclass(frozen=True)
class Asked:
    """One unit: what may be done for it, best first, and by when."""

    choices: tuple[Choice, ...]
    limit: float


@dataclass(frozen=True)
class Pick:
    """What is done for a unit.

    Attributes:
        choice: Its place among the unit's choices.
        lane: The lane's place among the choice's lanes.
    """

    choice: int
    lane: int


# One pick per unit; None for who does not fit.
Picks = tuple[Pick | None, ...]


@dataclass(frozen=True)
class _Way:
    """The first units, placed: when each lane is free again, and by which picks."""

    free: tuple[float, ...]
    picks: Picks


def place(asked: Sequence[Asked], free: Mapping[str, float]) -> Picks:
    """The lexicographically best picks: first for the first unit, then for the second...

    Args:
        free: From when each lane may be used; monotonic seconds.

    Returns:
        One pick for each of *asked*. Within what is equally good, nobody could by itself change to
        a lane that it prefers.
    """
    plain = _greedy(asked, free)
    if (
        len(free) < 2
        or len(asked) > _FEW
        or all(
            pick is not None and pick.choice == 0
            for pick, one in zip(plain, asked, strict=True)
            if one.choices
        )
    ):
        return plain
    lanes = {lane: number for number, lane in enumerate(free)}
    start = _Way(tuple(free.values()), ())
    most = max(min(_MOST_AT_ONCE, MOST // max(len(asked), 1)), 4)
    found = max(_placed(asked, lanes, start, most=most), plain, key=_value)
    return _preferred(found, asked, lanes, start)


def _greedy(asked: Sequence[Asked], free: Mapping[str, float]) -> Picks:
    """Everybody gets the best that fits, on the first lane on which it does."""
    at = dict(free)
    return tuple(_first_fit(one, at) for one in asked)


def _first_fit(asked: Asked, free: dict[str, float]) -> Pick | None:
    for number, choice in enumerate(asked.choices):
        for place, lane in enumerate(choice.lanes):
            ends = free[lane] + choice.seconds[place]
            if ends <= asked.limit:
                free[lane] = ends
                return Pick(number, place)
    return None


def _value(picks: Picks) -> tuple[float, ...]:
    return tuple(float("-inf") if pick is None else -pick.choice for pick in picks)


def _placed(asked: Sequence[Asked], lanes: Mapping[str, int], start: _Way, *, most: int) -> Picks:
    ways = [start]
    for one in asked:
        further: list[_Way] = []
        for number, choice in enumerate(one.choices):
            for way in ways:
                further += _further(way, number, choice, lanes, one.limit)
            if further:
                break
        else:
            further = [_Way(way.free, (*way.picks, None)) for way in ways]
        ways = _worthwhile(further)[:most] if len(further) > 1 else further
    return min(ways, key=_dislike).picks


def _further(
    way: _Way, number: int, choice: Choice, lanes: Mapping[str, int], limit: float
) -> list[_Way]:
    """*way* with *choice* behind it, on each lane on which it fits."""
    found = []
    for place, (lane, seconds) in enumerate(zip(choice.lanes, choice.seconds, strict=True)):
        at = lanes[lane]
        ends = way.free[at] + seconds
        if ends <= limit:
            free = (*way.free[:at], ends, *way.free[at + 1 :])
            found.append(_Way(free, (*way.picks, Pick(number, place))))
    return found


def _worthwhile(ways: list[_Way]) -> list[_Way]:
    """Those that leave more on some lane than each other one does; most time left first."""
    ways = sorted(ways, key=lambda way: (*way.free, _dislike(way)))
    kept: list[_Way] = []
    if len(ways[0].free) == 2:
        for way in ways:
            if not kept or way.free[1] < kept[-1].free[1]:
                kept.append(way)
    else:
        for way in ways:
            if not any(_no_later(one.free, way.free) for one in kept):
                kept.append(way)
    return sorted(kept, key=lambda way: sum(way.free))


def _no_later(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True))


def _dislike(way: _Way) -> tuple[int, ...]:
    """How far from what it prefers each unit is, the most urgent one first."""
    return tuple(pick.lane if pick is not None else 0 for pick in way.picks)


def _preferred(
    picks: Picks, asked: Sequence[Asked], lanes: Mapping[str, int], start: _Way
) -> Picks:
    """The same, with everybody on the lane that it prefers as far as all else still fits."""
    for index, pick in enumerate(picks):
        for lane in range(pick.lane if pick is not None else 0):
            assert pick is not None
            moved = (*picks[:index], Pick(pick.choice, lane), *picks[index + 1 :])
            if _fits(moved, asked, lanes, start):
                picks = moved
                break
    return picks


def _fits(picks: Picks, asked: Sequence[Asked], lanes: Mapping[str, int], start: _Way) -> bool:
    free = list(start.free)
    for pick, one in zip(picks, asked, strict=True):
        if pick is not None:
            choice = one.choices[pick.choice]
            at = lanes[choice.lanes[pick.lane]]
            free[at] += choice.seconds[pick.lane]
            if free[at] > one.limit:
                return False
    return True
