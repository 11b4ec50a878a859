"""Orders of single jobs, as the journal of an earlier daemon tells of them.

Within one boot the monotonic clock goes on over a restart, and so does such an order, with what is left of
its time. Over a reboot the memory is gone that it was about, and nobody waits for it any more.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import structlog

from evac.generation import Generation
from evac.incident import Event, Incident, JournalError, load
from evacd.facts import Confidence, Kept, Lost, Order, Outcome, Scope

log = structlog.get_logger()

SOURCE, KIND = Scope.WORKLOAD.value, "leave"
# So many of the last ones; of those that are over, somebody may still ask what became of them.
REMEMBERED = 256


@dataclass(frozen=True)
class Before:
    """One that was given in this boot.

    Attributes:
        callers: Callback workloads that were on board when it was given; 0 where what was staged
            is to be saved.
        outcome: None where nothing had become of it yet.
        gone: Ranks of those callback workloads that have left since, as finished.
    """

    order: Order
    unit: str
    callers: int
    outcome: Outcome | None
    gone: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Over:
    """One that has no end, and that cannot be gone on with.

    Attributes:
        unit: "" where that is not on record.
    """

    id: str
    unit: str
    reason: str


@dataclass(frozen=True)
class Unclosed:
    """One whose end is on record, but that nobody has closed."""

    id: str


def ordered(id: str, *, given: float, deadline: float) -> Order:
    """The order of a job that asks for it."""
    return Order(
        id, deadline, Confidence.CERTAIN, SOURCE, KIND, given=given, scope=Scope.WORKLOAD
    )  # fmt: skip


def given(order: Order, unit: str, *, callers: int, now: float) -> Mapping[str, Any]:
    """What the journal is told of *order*, at first and by each daemon that goes on with it."""
    return {
        "order": order.id,
        "scope": order.scope,
        "confidence": order.confidence.word,
        "window_seconds": round(order.deadline - now, 3),
        "unit": unit,
        "given": order.given,
        "deadline": order.deadline,
        "callers": callers,
    }


def amended(order: Order) -> Mapping[str, Any]:
    """What it is told where there is less time."""
    window = order.deadline - order.given
    return {"order": order.id, "window_seconds": window, "deadline": order.deadline}


def told(unit: str, outcome: Outcome | None) -> dict[str, Any]:
    """What became of *unit*, for the journal and for whoever waits for it."""
    kept = outcome if isinstance(outcome, Kept) else None
    return {
        "unit": unit,
        "kept": kept is not None,
        "generation": asdict(kept.generation) if kept and kept.generation else None,
        "nbytes": kept.nbytes if kept else 0,
        "seconds": kept.seconds if kept else 0.0,
        "durable": kept.durable if kept else False,
        "reason": outcome.reason if isinstance(outcome, Lost) else "",
    }


def reported(unit: str, outcome: Outcome) -> dict[str, Any]:
    """The last that the journal is told."""
    verdict = "1 saved, 0 lost" if isinstance(outcome, Kept) else "0 saved, 1 lost"
    return {"verdict": verdict, **told(unit, outcome)}


def own_orders_of(journal: Path, *, boot: str) -> "tuple[Before | Over | Unclosed, ...]":
    """All that the file *journal* tells of, oldest first. Blocks for a moment."""
    try:
        return tuple(read(load(journal, last=REMEMBERED, source=SOURCE), boot=boot))
    except JournalError as error:
        log.warning("order.forgotten", path=str(journal), reason=error.reason)
        return ()


def read(incidents: Iterable[Incident], *, boot: str) -> Iterator[Before | Over | Unclosed]:
    """What is to be done about each of them, oldest first.

    Args:
        boot: The one that this is.
    """
    for one in incidents:
        found = _before(one)
        over = any(event.name == "report.written" for event in one.events)
        if over and one.ended is None:
            yield Unclosed(one.id)
        if one.boot == boot and found is not None:
            yield found
        elif one.ended is None and not over:
            booted = "the machine has booted since, and its memory is gone"
            reason = booted if one.boot != boot else "its record cannot be read"
            yield Over(one.id, found.unit if found is not None else "", reason)


def _before(incident: Incident) -> Before | None:
    found: Before | None = None
    for event in incident.events:
        match event:
            case Event(
                name="order.given",
                data={
                    "unit": str(unit),
                    "given": float(given),
                    "deadline": float(deadline),
                    "callers": int(callers),
                },
            ) if found is None and math.isfinite(given) and math.isfinite(deadline):
                order = ordered(incident.id, given=given, deadline=deadline)
                found = Before(order, unit, callers, None)
            case Event(name="order.amended", data={"deadline": float(deadline)}) if (
                found is not None and deadline < found.order.deadline
            ):
                amendments = found.order.amendments + 1
                sooner = replace(found.order, deadline=deadline, amendments=amendments)
                found = replace(found, order=sooner)
            case Event(name="workload.left", data={"rank": int(rank)}) if found is not None:
                found = replace(found, gone=found.gone | {rank})
            case Event(name="report.written") if found is not None:
                found = replace(found, outcome=_outcome(found.unit, event.data))
    return found


def _outcome(unit: str, data: Mapping[str, Any]) -> Outcome:
    match data:
        case {
            "kept": True,
            "nbytes": int(nbytes),
            "seconds": int() | float() as seconds,
            "durable": bool(durable),
            **more,
        }:
            match more.get("generation"):
                case {"incarnation": int(incarnation), "step": int(step)}:
                    generation = Generation(incarnation, step)
                    return Kept(unit, generation, nbytes, float(seconds), durable=durable)
            return Kept(unit, None, nbytes, float(seconds), durable=durable)
    reason = data.get("reason")
    return Lost(unit, reason if isinstance(reason, str) else "")
