"""Whose turn it is in quiet time. Pure.

Here nobody is about to lose anything, so it is not the most urgent that goes first for ever,
as under an order: a job that stages all the time would keep everybody else from being safe.
Who has waited longest goes first, among them who has nothing durable yet.
"""

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import TypeAlias

from evac.generation import Generation
from evacd.facts import Candidate, Unit
from evacd.plan import in_order

# An interval of 0 is for whoever wants each generation, not for a store to be asked all the time.
AGAIN_SECONDS = 1.0


@dataclass(frozen=True)
class Due:
    """This may go now."""

    unit: str
    generation: Generation
    nbytes: int


@dataclass(frozen=True)
class NotBefore:
    """Nothing may go before that time; monotonic seconds."""

    at: float


@dataclass(frozen=True)
class Began:
    """The last time that a unit went; *at* in monotonic seconds."""

    at: float
    generation: Generation


Choice: TypeAlias = Due | NotBefore | None


def choose(
    units: Iterable[Unit],
    *,
    lanes: Set[str],
    began: Mapping[str, Began],
    interval: float,
    now: float,
    but: Collection[str] = (),
) -> Choice:
    """The next generation to go, or when to ask again; None: when something was staged.

    It is the newest that is complete on all ranks here and newer than what is durable.

    Args:
        lanes: On which it may go.
        began: The last one of each unit.
        interval: Seconds from one beginning to the next, of one unit; what failed, or waits for
            other nodes' parts, comes again after `AGAIN_SECONDS` at the earliest.
        now: Monotonic seconds.
        but: Units that are being saved otherwise.
    """
    waiting = [
        unit for unit in in_order(units)
        if _newest(unit) and unit.name not in but and not lanes.isdisjoint(unit.lanes)
    ]  # fmt: skip
    if not waiting:
        return None
    ready = [unit for unit in waiting if _at(unit, began, interval) <= now]
    if not ready:
        return NotBefore(min(_at(unit, began, interval) for unit in waiting))
    # Stable: among equals the order of `in_order` stands.
    first = min(ready, key=lambda unit: (_at(unit, began, interval), unit.durable is not None))
    newest = _newest(first)
    assert newest is not None
    return Due(first.name, newest.generation, newest.nbytes + newest.held_nbytes)


def _newest(unit: Unit) -> Candidate | None:
    """Quiet time has time for the whole of it."""
    return next((one for one in unit.candidates if one.kind == "full"), None)


def _at(unit: Unit, began: Mapping[str, Began], interval: float) -> float:
    """When *unit* may go."""
    last, newest = began.get(unit.name), _newest(unit)
    if last is None:
        return float("-inf")
    same = newest is not None and newest.generation == last.generation
    return last.at + (max(interval, AGAIN_SECONDS) if same else interval)
