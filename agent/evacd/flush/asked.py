"""Which callback workloads of a unit have been asked under an order, and what came of it. Pure.

They are asked together, once. But one may come later than its unit's turn: after a restart of evacd amid the order each process
comes back by itself, the first one being asked at once. Who comes then gets a turn of its own, in what time is left, and
the unit is safe when all are.
"""

from collections.abc import Set
from dataclasses import dataclass, field

from evacd.facts import Unit
from evacd.workloads import TurnResult

_NO_ANSWER = "no answer in its time"


@dataclass
class _Turns:
    """Of one unit.

    Attributes:
        callers: Who was asked.
        results: One per turn; None as long as it is not over.
    """

    callers: set[int] = field(default_factory=set)
    results: list[TurnResult | None] = field(default_factory=list)


class Asked:
    """Under one order."""

    def __init__(self) -> None:
        self._of: dict[str, _Turns] = {}

    def lacks(self, unit: Unit) -> bool:
        """Whether any callback workload of it has not been asked yet."""
        turns = self._of.get(unit.name)
        return unit.turn_seconds is not None and (
            turns is None or not unit.callers <= turns.callers
        )

    def begin(self, unit: str, callers: Set[int]) -> tuple[int, frozenset[int]] | None:
        """A turn begins: its number, and who of *callers* are asked in it.

        Args:
            callers: All of the unit that are on board, by their ids.

        Returns:
            None where it has had a turn, and nobody else has come since.
        """
        turns = self._of.setdefault(unit, _Turns())
        fresh = frozenset(callers - turns.callers)
        if turns.results and not fresh:
            return None
        turns.callers |= fresh
        turns.results.append(None)
        return len(turns.results) - 1, fresh

    def end(self, unit: str, number: int, result: TurnResult) -> TurnResult | None:
        """A turn is over: what has come of all of them; None while a later one is still to be waited for."""
        results = self._of.setdefault(unit, _Turns()).results
        if number >= len(results):
            return result  # the order that it was of has been withdrawn
        results[number] = result
        if results[-1] is None:
            return None
        if len(results) == 1:
            return result
        ended = [one or TurnResult(False, 0, _NO_ANSWER) for one in results]
        return TurnResult(
            ok=all(one.ok for one in ended),
            nbytes=sum(one.nbytes for one in ended),
            reason="; ".join(one.reason for one in ended if one.reason),
        )

    def forget(self) -> None:
        """Another order: nobody was asked."""
        self._of.clear()
