"""What would be lost if the notice came now. Pure.

Two questions in one: what the planner would still save in the cloud's window, and how far what
is safe already lies behind what was staged last.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from evac.generation import Generation
from evacd.facts import GivenUp, Step, Unit
from evacd.plan import in_order, schedule


@dataclass(frozen=True)
class UnitRisk:
    """One unit, and what the notice would mean for it.

    Attributes:
        newest: The newest generation that all its ranks here hold, or that is durable already.
        durable: The newest that is whole in a durable store.
        at_risk_bytes: Of the newest generation, what no durable store holds.
        at_risk_steps: Steps from the newest durable generation to the newest; None before the
            first durable one.
        saved: What the plan would write in time; None where that is nothing.
        weights_only: Of that generation the weights alone.
        margin_seconds: From the planned end of its step to the end of the window less the
            commit reserve: negative is what is short. None where no step is needed or possible.
        lost: Nothing of it would be saved in time, and what it has is not durable already.
        reason: Why it would be lost; "" where it would not.
    """

    unit: str
    newest: Generation | None
    durable: Generation | None
    at_risk_bytes: int
    at_risk_steps: int | None
    saved: Generation | None
    weights_only: bool
    margin_seconds: float | None
    lost: bool
    reason: str


@dataclass(frozen=True)
class Risk:
    """The node, and each unit on it.

    Attributes:
        window_seconds: From the notice to the end of the machine, as it was reckoned with.
        margin_seconds: From the planned end of the last step to the end of the window less
            the commit reserve; negative: so much is short for everything to be saved.
        units: Most urgent first.
    """

    window_seconds: float
    margin_seconds: float
    units: tuple[UnitRisk, ...]

    @property
    def at_risk_bytes(self) -> int:
        """Of the whole node."""
        return sum(unit.at_risk_bytes for unit in self.units)

    @property
    def lost(self) -> tuple[UnitRisk, ...]:
        """Who would be lost."""
        return tuple(unit for unit in self.units if unit.lost)


def risk(
    units: Iterable[Unit],
    *,
    window_seconds: float,
    rates: Mapping[str, float],
    reserve: float,
    commit_seconds: float | Mapping[str, float],
    now: float,
    dead: Mapping[str, str] | None = None,
    lost: Mapping[str, str] | None = None,
) -> Risk:
    """Plan as if a notice with this window came now, and tell what that plan is worth.

    Args:
        window_seconds: What the cloud gives, from its notice on.
        dead: Lanes of which it is known that they take nothing, and why.
        lost: Units that were tried and are lost already, and why.
        rates: As `schedule`, and so are the others.

    Raises:
        ValueError: As `schedule`.
    """
    known = [_without(unit, dead or {}) for unit in in_order(units)]
    # Who has nothing that is not durable asks for no time.
    plan = schedule(
        [unit for unit in known if not is_safe(unit)],
        deadline=now + window_seconds,
        rates=rates,
        reserve=reserve,
        commit_seconds=commit_seconds,
        now=now,
    )
    limit = now + window_seconds - max(reserve, 0.0)
    steps = {step.unit: step for step in plan.steps}
    given_up = {given.unit: given for given in plan.given_up}
    judged = [_judge(u, steps.get(u.name), given_up.get(u.name), limit) for u in known]
    told = lost or {}
    found = tuple(
        replace(one, saved=None, lost=True, reason=told[one.unit]) if one.unit in told else one
        for one in judged
    )
    margin = limit - max((step.ends for step in plan.steps), default=now)
    if any(one.unit in told for one in found) or any(
        unit.candidates and not unit.lanes for unit in known
    ):
        # No window is long enough: all of it is short.
        margin = min(margin, -max(window_seconds, 0.0))
    return Risk(window_seconds, margin, found)


def _without(unit: Unit, dead: Mapping[str, str]) -> Unit:
    """*unit* with no lane that takes nothing; a callback workload has a store of its own."""
    lanes = tuple(lane for lane in unit.lanes if lane not in dead)
    if unit.turn_seconds is not None or lanes == unit.lanes:
        return unit
    if lanes or not unit.candidates:
        return replace(unit, lanes=lanes)
    return replace(unit, lanes=(), empty_because="; ".join({dead[lane]: 0 for lane in unit.lanes}))


def is_safe(unit: Unit) -> bool:
    """Whether its newest generation is durable already, so that nothing is left to do."""
    return unit.turn_seconds is None and not unit.candidates and unit.durable is not None


def bytes_of(unit: Unit) -> int:
    """Of the newest generation of it, those that no durable store holds."""
    newest = next((one for one in unit.candidates if one.kind == "full"), None)
    return newest.nbytes + newest.held_nbytes if newest is not None else 0


def newest_of(unit: Unit) -> Generation | None:
    """The newest generation of it that anybody could save, or that is durable."""
    return unit.candidates[0].generation if unit.candidates else unit.durable


def _judge(unit: Unit, step: Step | None, given_up: GivenUp | None, limit: float) -> UnitRisk:
    newest = newest_of(unit)
    in_time = step is not None and not step.overtime
    return UnitRisk(
        unit=unit.name,
        newest=newest,
        durable=unit.durable,
        at_risk_bytes=bytes_of(unit),
        at_risk_steps=steps_between(unit.durable, newest),
        saved=step.generation if step is not None and in_time else None,
        weights_only=step is not None and in_time and step.kind == "weights",
        margin_seconds=limit - step.ends if step is not None else None,
        lost=not (in_time or is_safe(unit)),
        reason=given_up.reason if given_up is not None else "",
    )


def steps_between(durable: Generation | None, newest: Generation | None) -> int | None:
    """Training steps that lie between; 0 where a new start has gone back behind *durable*."""
    if durable is None or newest is None:
        return None
    return max(newest.step - durable.step, 0)
