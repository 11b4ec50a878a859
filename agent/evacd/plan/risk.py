"""What would be lost if the notice came now. Pure.

Two questions in one: what the planner would still save in the cloud's window, and how far what
is safe already lies behind what was staged last.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

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
) -> Risk:
    """Plan as if a notice with this window came now, and tell what that plan is worth.

    Args:
        window_seconds: What the cloud gives, from its notice on.
        rates: As `schedule`, and so are the others.

    Raises:
        ValueError: As `schedule`.
    """
    known = in_order(units)
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
    return Risk(
        window_seconds,
        limit - max((step.ends for step in plan.steps), default=now),
        tuple(_judge(unit, steps.get(unit.name), given_up.get(unit.name), limit) for unit in known),
    )


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
