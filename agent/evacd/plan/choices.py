"""What may be done for a unit, best first, and what that takes. Pure."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from evacd.facts import Candidate, Try, Unit


@dataclass(frozen=True)
class Choice:
    """One thing that may be done for a unit: a candidate, or a callback workload's turn.

    Attributes:
        candidate: None for a turn.
        lanes: On which it may go, the most preferred one first; never empty.
        seconds: What it takes, on each of them; infinite where that is no number.
    """

    candidate: Candidate | None
    lanes: tuple[str, ...]
    seconds: tuple[float, ...]


def in_order(units: Iterable[Unit]) -> list[Unit]:
    """Most urgent first: by priority, then who came first, then by name."""
    return sorted(units, key=lambda unit: (-unit.priority, unit.arrived, unit.name))


def ranked(unit: Unit) -> tuple[Candidate | None, ...]:
    """Best first: what was agreed on, the newest full generation, older ones, the newest weights.

    None is a callback workload's turn.
    """
    if unit.turn_seconds is not None:
        return (None,)
    full = [one for one in unit.candidates if one.kind != "weights"]
    if unit.agreed is not None:
        # A generation of which other nodes save another part is worth more than any that is newer.
        full.sort(key=lambda one: one.generation != unit.agreed)
    weights = [one for one in unit.candidates if one.kind == "weights"]
    return (*full, *weights[:1])


def choices(
    unit: Unit, *, rates: dict[str, float], commits: Mapping[str, float], tried: Collection[Try]
) -> tuple[Choice, ...]:
    """What is left to be tried for *unit*, best first."""
    return tuple(_choices(unit, rates, commits, tried))


def _choices(
    unit: Unit, rates: dict[str, float], commits: Mapping[str, float], tried: Collection[Try]
) -> Iterator[Choice]:
    for one in ranked(unit):
        if one is None:
            # It has a store of its own, and only stands in line for the link.
            if unit.lanes:
                yield Choice(None, unit.lanes[:1], (_whole(unit.turn_seconds or 0.0),))
            continue
        lanes = tuple(
            lane for lane in unit.lanes if (unit.name, one.generation, one.kind, lane) not in tried
        )
        if lanes:
            yield Choice(
                one, lanes, tuple(_seconds(one, lane, rates[lane], commits[lane]) for lane in lanes)
            )


def _seconds(candidate: Candidate, lane: str, rate: float, commit: float) -> float:
    try:
        return _whole(candidate.left_on(lane) / rate + commit)
    except OverflowError:
        return math.inf


def _whole(seconds: float) -> float:
    return math.inf if math.isnan(seconds) else max(seconds, 0.0)
