"""What is told of a flush: each plan that is new, each failure, and one outcome per unit."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from typing import Any, TypeAlias

from evac.generation import Generation
from evacd.facts import Kind, Lost, Order, Outcome, Plan, Step

# What a person would call the same step: who, what, where, and whether in time.
_Gist: TypeAlias = tuple[str, Generation | None, Kind, str, bool]

# Of one unit: more stores and generations that failed say nothing new.
_MOST_REASONS = 4
# Of so many of the last ones it is told what became of them where no order runs.
_REMEMBERED = 256


class Story:
    """Of one order, or of what is rescued without one.

    Args:
        record: Told each event of the path, by its name in the report.
        ended: Told each outcome, as it comes.
    """

    def __init__(
        self, record: Callable[[str, Mapping[str, Any]], None], ended: Callable[[Outcome], None]
    ) -> None:
        self._record = record
        self._ended = ended
        self.outcomes: dict[str, Outcome] = {}
        self._reasons: dict[str, list[str]] = {}
        self._told: tuple[Order | None, list[str], set[_Gist]] = (None, [], set())

    @property
    def failures(self) -> Mapping[str, str]:
        """Why what was tried of each unit failed."""
        return {unit: "; ".join(reasons) for unit, reasons in self._reasons.items()}

    def begin(self) -> None:
        """A new order: nothing has become of anybody."""
        self.outcomes.clear()
        self._reasons.clear()

    def forget(self, unit: str) -> None:
        """It begins anew; without an order nothing else ends what is told of jobs that have long gone."""
        longest = list(self.outcomes)[: max(0, len(self.outcomes) - _REMEMBERED)]
        for one in (unit, *longest):
            self.outcomes.pop(one, None)
            self._reasons.pop(one, None)

    def plan(self, plan: Plan, order: Order | None, *, own: Collection[str], now: float) -> None:
        """Record a plan that says something new, and who has nothing left to try.

        Args:
            own: Who is told without an order what becomes of it.
            now: Monotonic seconds.
        """
        given_up = [given.unit for given in plan.given_up]
        if order is None:
            self._give_up(plan, {*own, *self._reasons})
            return
        steps = {
            (step.unit, step.generation, step.kind, step.lane, step.overtime) for step in plan.steps
        }
        # What was told before, with what was done left out, says nothing new; nor does which of
        # two lanes is free a little sooner.
        if (order, given_up) == self._told[:2] and steps <= self._told[2]:
            self._give_up(plan, given_up)
            return
        self._told = (order, given_up, steps)
        self._record(
            "plan.made",
            {
                "steps": [_told_step(step, now) for step in plan.steps],
                "given_up": [asdict(given) for given in plan.given_up],
            },
        )
        self._give_up(plan, given_up)

    def failed(self, step: Step, reason: str) -> None:
        """A step failed; that is its unit's end only where nothing else is left to try."""
        reasons = self._reasons.setdefault(step.unit, [])
        if reason not in reasons and len(reasons) < _MOST_REASONS:
            reasons.append(reason)
        generation = asdict(step.generation) if step.generation else None
        self._record(
            "flush.failed",
            {"unit": step.unit, "generation": generation, "lane": step.lane, "reason": reason},
        )

    def end(self, outcome: Outcome) -> None:
        """Write down what became of a unit; who was kept stays kept."""
        before = self.outcomes.get(outcome.unit)
        if isinstance(outcome, Lost):
            self._record("flush.lost", {"unit": outcome.unit, "reason": outcome.reason})
            if before is not None:
                return
        self.outcomes[outcome.unit] = outcome
        self._ended(outcome)

    def _give_up(self, plan: Plan, among: Collection[str]) -> None:
        """Who has nothing left to try, not even in overtime, is lost."""
        tried_late = {step.unit for step in plan.steps}
        for given in plan.given_up:
            if given.unit in among and given.unit not in tried_late | self.outcomes.keys():
                self.end(Lost(given.unit, given.reason))


def _told_step(step: Step, now: float) -> dict[str, Any]:
    return {
        "unit": step.unit,
        "lane": step.lane,
        "generation": asdict(step.generation) if step.generation else None,
        "kind": step.kind,
        "nbytes": step.nbytes,
        "starts_in": step.starts - now,
        "ends_in": step.ends - now,
        "overtime": step.overtime,
    }
