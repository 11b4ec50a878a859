"""What became of each workload in an incident, from its events alone. Pure.

The record may end anywhere, because the machine may: whatever is not written down did not
happen. What was kept once stays kept, whatever a later try for a newer generation came to.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from evac.human import lacking, size
from evac.human import seconds as seconds_text
from evac.incident.record import Event, Incident


class Ending(StrEnum):
    """What became of a unit."""

    KEPT = "kept"
    LOST = "lost"
    TORN = "torn"
    OPEN = "open"


@dataclass(frozen=True)
class Try:
    """One flush or turn; seconds since the notice.

    Attributes:
        ended: None where the record ends first.
        kept: Its bytes are safe.
    """

    started: float
    ended: float | None = None
    kept: bool = False


@dataclass(frozen=True)
class UnitSummary:
    """What became of one unit.

    Attributes:
        priority: None where the record does not say.
        step: Training step of what was kept, or else was tried last; None in callback mode.
        nbytes: What was written of it, or else was to be written.
        already: Bytes of it that were durable before the order, and did not have to move.
        seconds: What that took; None unless kept.
        finished: When it counted, its commit included; seconds since the notice.
        margin: Seconds from there to the deadline; negative in overtime.
        durable: False where this node's part is safe, but other nodes' parts are missing, or
            only a peer's memory has it, or only its weights are.
        store: URL of the store that has it; "" where the record does not say.
        kind: How much of it is kept: ``full`` or ``weights``.
        reason: Why it is not kept; "" where it is.
        tries: In order of time.
    """

    unit: str
    ending: Ending = Ending.OPEN
    priority: int | None = None
    step: int | None = None
    nbytes: int = 0
    already: int = 0
    seconds: float | None = None
    finished: float | None = None
    margin: float | None = None
    durable: bool = True
    store: str = ""
    kind: str = "full"
    reason: str = ""
    tries: tuple[Try, ...] = ()


@dataclass(frozen=True)
class Summary:
    """What became of an incident.

    Attributes:
        deadline: Seconds since the notice, as last amended.
        units: Highest priority first, then as they came up.
        nbytes: Of all that was kept.
        margin: Of the kept unit that came last; None where nothing was kept.
        verdict: One sentence for people.
    """

    deadline: float
    units: tuple[UnitSummary, ...]
    nbytes: int
    margin: float | None
    verdict: str

    @property
    def whole(self) -> bool:
        """Whether nothing was lost: every unit was kept."""
        return self.count(Ending.KEPT) == len(self.units)

    def count(self, ending: Ending) -> int:
        """How many units ended so."""
        return sum(unit.ending is ending for unit in self.units)


def summary(incident: Incident, *, running: bool = False) -> Summary:
    """Judge an incident.

    Args:
        running: The daemon still works on it, so what moves is open, not torn.
    """
    deadline = _deadline(incident)
    found = _Reading()
    for event in incident.events:
        found.take(event)
    units = [found.judge(unit, deadline, incident.ended, running) for unit in found.units.values()]
    units.sort(key=lambda unit: -(unit.priority or 0))
    kept = [unit for unit in units if unit.ending is Ending.KEPT]
    margin = min((unit.margin for unit in kept if unit.margin is not None), default=None)
    result = Summary(deadline, tuple(units), sum(unit.nbytes for unit in kept), margin, "")
    return replace(result, verdict=_verdict(result, found.withdrawn))


def as_json(incident: Incident, *, running: bool = False) -> dict[str, Any]:
    """The incident and its summary as JSON values."""
    judged = summary(incident, running=running)
    return {**asdict(incident), "summary": {**asdict(judged), "whole": judged.whole}}


def _deadline(incident: Incident) -> float:
    """In an order's events, ``window_seconds`` counts from when the order was given."""
    given, deadline = 0.0, incident.window_seconds
    for event in incident.events:
        if event.name == "order.given":
            given = event.at
        window = number(event.data, "window_seconds")
        if event.name in ("order.given", "order.amended") and window is not None:
            deadline = given + window
    return deadline


@dataclass
class _Reading:
    """What the events so far say of each unit."""

    units: dict[str, UnitSummary] = field(default_factory=dict)
    withdrawn: str | None = None

    def take(self, event: Event) -> None:
        """One more event; unknown ones say nothing."""
        data = event.data
        if event.name == "order.stood_down":
            self.withdrawn = text(data, "reason") or "no reason given"
        if event.name == "plan.made":
            self._plan(data)
            return
        name = data.get("unit")
        if not isinstance(name, str) or event.name not in _READERS:
            return
        before = self.units.get(name, UnitSummary(name))
        self.units[name] = _READERS[event.name](before, event)

    def _plan(self, data: Mapping[str, Any]) -> None:
        steps = {text(step, "unit"): step for step in listed(data, "steps")}
        reasons = {text(item, "unit"): text(item, "reason") for item in listed(data, "given_up")}
        for name in dict.fromkeys((*steps, *reasons)):
            unit = self.units.setdefault(name, UnitSummary(name))
            if unit.tries or not name:
                continue
            if step := steps.get(name):
                # What has a step is tried, if need be in overtime.
                unit = replace(unit, ending=Ending.OPEN, step=_step(step))
                unit = replace(unit, nbytes=_nbytes(step, unit))
            else:
                unit = replace(unit, ending=Ending.LOST)
            self.units[name] = replace(unit, reason=reasons.get(name, ""))
        self.units.pop("", None)

    def judge(
        self, unit: UnitSummary, deadline: float, ended: float | None, running: bool
    ) -> UnitSummary:
        """The last word on a unit."""
        if unit.ending is Ending.KEPT:
            margin = None if unit.finished is None else deadline - unit.finished
            return replace(unit, margin=margin, reason=lacking(unit.durable, unit.store, unit.kind))
        if unit.ending is not Ending.OPEN:
            return unit
        moving = bool(unit.tries) and unit.tries[-1].ended is None
        if self.withdrawn is not None:
            return replace(unit, reason="the order was withdrawn before it was written")
        if running:
            return replace(unit, reason="is being written" if moving else unit.reason)
        if moving:
            why = "still being written when the record ends; no reader takes that as whole"
            return replace(unit, ending=Ending.TORN, reason=why)
        if ended is not None:
            return replace(unit, ending=Ending.LOST, reason=unit.reason or "its turn never came")
        why = "the record ends before its turn came"
        return replace(unit, reason=f"{unit.reason}; {why}" if unit.reason else why)


def _started(unit: UnitSummary, event: Event) -> UnitSummary:
    priority = number(event.data, "priority")
    unit = replace(unit, tries=(*unit.tries, Try(event.at)))
    if priority is not None:
        unit = replace(unit, priority=int(priority))
    if unit.ending is Ending.KEPT:
        return unit
    return replace(
        unit,
        ending=Ending.OPEN,
        step=_step(event.data),
        nbytes=_nbytes(event.data, unit),
        reason="",
    )


def _given(unit: UnitSummary, event: Event) -> UnitSummary:
    """A turn; where it is of those who came later than the others of its unit, not all of that is safe."""
    late = event.data.get("late") is True
    return _started(replace(unit, ending=Ending.OPEN) if late else unit, event)


def _finished(unit: UnitSummary, event: Event) -> UnitSummary:
    nbytes, kind = _nbytes(event.data, unit), text(event.data, "kind") or "full"
    if kind == "held":
        # The rest of what was kept before.
        nbytes, kind = nbytes + unit.nbytes, "full"
    return replace(
        unit,
        ending=Ending.KEPT,
        step=_step(event.data),
        nbytes=nbytes,
        already=int(number(event.data, "already") or 0),
        kind=kind,
        seconds=number(event.data, "seconds"),
        finished=event.at,
        durable=event.data.get("durable", True) is not False,
        tries=_ended(unit, event.at, kept=True),
    )


def _committed(unit: UnitSummary, event: Event) -> UnitSummary:
    if unit.ending is not Ending.KEPT:
        return unit
    whole = event.data.get("durable", True) is not False
    return replace(unit, finished=event.at, durable=whole, store=text(event.data, "store"))


def _failed(unit: UnitSummary, event: Event) -> UnitSummary:
    """One try is over; another store or generation may follow."""
    unit = replace(unit, tries=_ended(unit, event.at, kept=False))
    if unit.ending is Ending.KEPT:
        return unit
    return replace(unit, reason=text(event.data, "reason") or unit.reason)


def _lost(unit: UnitSummary, event: Event) -> UnitSummary:
    unit = replace(unit, tries=_ended(unit, event.at, kept=False))
    if unit.ending is Ending.KEPT:
        return unit
    reason = text(event.data, "reason") or "no reason was recorded"
    return replace(unit, ending=Ending.LOST, reason=reason)


def _turned(unit: UnitSummary, event: Event) -> UnitSummary:
    return _finished(unit, event) if event.data.get("ok") is True else _lost(unit, event)


def _ended(unit: UnitSummary, at: float, *, kept: bool) -> tuple[Try, ...]:
    if not unit.tries or unit.tries[-1].ended is not None:
        return unit.tries
    return (*unit.tries[:-1], replace(unit.tries[-1], ended=at, kept=kept))


_READERS = {
    "flush.started": _started,
    "flush.finished": _finished,
    "commit.finished": _committed,
    "flush.failed": _failed,
    "flush.stopped": _failed,
    "flush.lost": _lost,
    "turn.given": _given,
    "turn.finished": _turned,
}


def _verdict(result: Summary, withdrawn: str | None) -> str:
    if not result.units:
        what = "nothing was on board, nothing was lost"
    else:
        kept, total = result.count(Ending.KEPT), len(result.units)
        what = f"{kept} of {total} workload{'s' if total != 1 else ''} kept"
        if kept:
            what += f", {size(result.nbytes)}"
            if already := sum(u.already for u in result.units if u.ending is Ending.KEPT):
                what += f" and {size(already)} that were durable already"
        if result.margin is not None:
            side = "before" if result.margin >= 0 else "after"
            what += f", {seconds_text(abs(result.margin))} {side} the deadline"
        counts = [
            f"{result.count(ending)} {ending}"
            for ending in (Ending.LOST, Ending.TORN, Ending.OPEN)
            if result.count(ending)
        ]
        if counts:
            what += f"; {', '.join(counts)}"
    return f"order withdrawn ({withdrawn}): {what}" if withdrawn is not None else what


# --- reading what may be anything --------------------------------------------------------


def number(data: Mapping[str, Any], key: str) -> float | None:
    """The number under *key*; None where there is none."""
    value = data.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # Neither infinite, nor a not-a-number, nor an integer that no float holds.
    return value if abs(value) < 1e300 else None


def text(data: Mapping[str, Any], key: str) -> str:
    """The text under *key*; "" where there is none."""
    value = data.get(key)
    return value if isinstance(value, str) else ""


def listed(data: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """The objects in the list under *key*."""
    value = data.get(key)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _step(data: Mapping[str, Any]) -> int | None:
    generation = data.get("generation")
    step = number(generation, "step") if isinstance(generation, dict) else None
    return None if step is None else int(step)


def _nbytes(data: Mapping[str, Any], unit: UnitSummary) -> int:
    value = number(data, "nbytes")
    return unit.nbytes if value is None else int(value)
