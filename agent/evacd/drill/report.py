"""What a drill has found, beside what was predicted. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from evac.human import lacking
from evacd.facts import Kept, Lost, Outcome
from evacd.plan.risk import Risk, UnitRisk


@dataclass(frozen=True)
class Ended:
    """What became of a unit in the drill, and when; *at* in monotonic seconds."""

    outcome: Outcome
    at: float


@dataclass(frozen=True)
class Drilled:
    """One unit. Margins are seconds to the end of the window less the commit reserve.

    Attributes:
        step: Training step that was written, or else would have been.
        nbytes: What was written, or else was to be.
        predicted_margin_seconds: None where it needed no time, or could not be saved at all.
        drilled_margin_seconds: None also where nothing was flushed.
        predicted_lost: It would not be saved in time, says the plan.
        drilled_lost: It was not; None where nothing was flushed.
        reason: Why it would be or was lost, or what else is to be known.
    """

    unit: str
    step: int | None
    nbytes: int
    predicted_margin_seconds: float | None
    drilled_margin_seconds: float | None
    predicted_lost: bool
    drilled_lost: bool | None
    reason: str

    @property
    def lost(self) -> bool:
        """As far as is known: what was tried counts more than what was planned."""
        return self.predicted_lost if self.drilled_lost is None else self.drilled_lost


@dataclass(frozen=True)
class Report:
    """The whole drill.

    Attributes:
        predicted_margin_seconds: Of the whole node.
        drilled_margin_seconds: None where nothing was flushed.
        units: Most urgent first.
    """

    window_seconds: float
    reserve_seconds: float
    predicted_margin_seconds: float
    drilled_margin_seconds: float | None
    units: tuple[Drilled, ...]

    @property
    def lost(self) -> tuple[str, ...]:
        """Who would have been lost."""
        return tuple(unit.unit for unit in self.units if unit.lost)


def compare(
    predicted: Risk, *, reserve: float, began: float, ended: Mapping[str, Ended] | None
) -> Report:
    """Lay what was drilled beside what was predicted.

    Args:
        began: When the drill began; monotonic seconds.
        ended: What became of each unit so far; None where nothing was flushed.
    """
    window = predicted.window_seconds
    limit = began + window - reserve
    units = tuple(
        _of(unit, None if ended is None else ended.get(unit.unit), began + window, limit, ended)
        for unit in predicted.units
    )
    margins = [one.drilled_margin_seconds for one in units]
    return Report(
        window_seconds=window,
        reserve_seconds=reserve,
        predicted_margin_seconds=predicted.margin_seconds,
        drilled_margin_seconds=None
        if ended is None
        else min((margin for margin in margins if margin is not None), default=window - reserve),
        units=units,
    )


def _of(
    unit: UnitRisk,
    end: Ended | None,
    deadline: float,
    limit: float,
    ended: Mapping[str, Ended] | None,
) -> Drilled:
    foreseen = unit.saved or unit.newest
    step, nbytes = foreseen.step if foreseen else None, unit.at_risk_bytes
    margin: float | None = None
    lost: bool | None = None if ended is None else True
    reason = unit.reason
    match end.outcome if end is not None else None:
        case Kept() as kept if end is not None:
            step = kept.generation.step if kept.generation else None
            nbytes = kept.nbytes
            lost = end.at > deadline
            reason = f"was whole {end.at - deadline:.1f} s after the window" if lost else ""
            reason = reason or lacking(kept.durable, kept.store, kept.kind)
            if not reason and kept.generation is not None and not kept.nbytes and not kept.seconds:
                reason = "was durable already: no byte of it moved in this drill"
            # What was safe before has taken no time.
            margin = None if unit.margin_seconds is None else limit - end.at
        case Lost(_, why):
            reason = why
        case _ if ended is not None:
            reason = reason or "its turn never came"
    return Drilled(
        unit=unit.unit,
        step=step,
        nbytes=nbytes,
        predicted_margin_seconds=unit.margin_seconds,
        drilled_margin_seconds=margin,
        predicted_lost=unit.lost,
        drilled_lost=lost,
        reason=reason,
    )
