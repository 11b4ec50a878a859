"""What a Scheduled Event means for this machine. Pure.

Source: learn.microsoft.com/azure/virtual-machines/linux/scheduled-events, "Event properties"
and "Event scheduling" (minimum notice by type: Freeze and Reboot 15 min, Redeploy 10 min,
Preempt 30 s at best, Terminate 5 to 15 min as its user chose). That spot machines are in
practice often gone in less than 10 s: Azure/karpenter-provider-azure#1769.

An event that has started and is no longer listed was not called off: what has started can no
longer be, and Azure drops an event when it is done with it, which may be just before the
machine goes. So it stands on for `LINGER_SECONDS`, in which whoever has nothing safe still
gets a turn. A machine that runs on after that has outlived it, and the order is withdrawn.

A blank date of a scheduled event is taken for now, as "it is about to start" is written in no
other way; one that cannot be read, for the shortest notice of its type.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from evacd.facts import Confidence
from evacd.notice.azure.document import Event, date
from evacd.notice.standing import Said
from evacd.notice.when import Sight, deadline

PREEMPT_SECONDS = 30.0
LINGER_SECONDS = 60.0

_OVER = frozenset({"completed", "canceled", "cancelled"})


@dataclass(frozen=True)
class _Kind:
    """What a type of event starts.

    Attributes:
        scheduled: What it may start before it has begun.
        started: And after.
        least: Seconds of notice at the least: taken where its date is unreadable.
        most: Seconds of notice at the most; None where there is no such limit.
    """

    name: str
    scheduled: Confidence
    started: Confidence
    least: float
    most: float | None = None


_KINDS: Mapping[str, _Kind] = MappingProxyType(
    {
        "preempt": _Kind(
            "preempt", Confidence.CERTAIN, Confidence.STARTED, PREEMPT_SECONDS, PREEMPT_SECONDS
        ),
        "terminate": _Kind("terminate", Confidence.CERTAIN, Confidence.STARTED, 300.0, 900.0),
        "redeploy": _Kind("redeploy", Confidence.CERTAIN, Confidence.STARTED, 600.0),
        "reboot": _Kind("reboot", Confidence.PLANNED, Confidence.STARTED, 900.0),
        # It pauses the machine for seconds and takes nothing from it.
        "freeze": _Kind("freeze", Confidence.ADVISORY, Confidence.ADVISORY, 900.0),
        "spotrebalancerecommendation": _Kind(
            "rebalance", Confidence.ADVISORY, Confidence.ADVISORY, 0.0
        ),
    }
)
_UNKNOWN = _Kind("unknown", Confidence.ADVISORY, Confidence.ADVISORY, 0.0)


def is_over(event: Event) -> bool:
    """Whether its status says so; Azure itself only removes an event that is over."""
    return event.status.casefold() in _OVER


def is_preempt(event: Event) -> bool:
    """Whether it takes this spot machine away."""
    return event.type.casefold() == "preempt"


def is_started(event: Event) -> bool:
    """Whether it has begun."""
    return event.status.casefold() == "started"


def meaning(event: Event, *, sight: Sight, preempt_assume_seconds: float) -> Said:
    """What *event* says, as of *sight*.

    Args:
        event: One of this machine's own that is not over.
        preempt_assume_seconds: A preemption is planned to come at most so long after it was
            seen, whatever its date says.
    """
    kind = _KINDS.get(event.type.casefold(), _UNKNOWN)
    suspect, at = "", None
    if is_started(event):
        confidence, at = kind.started, sight.monotonic
    elif event.status.casefold() == "scheduled":
        confidence = kind.scheduled
        when = deadline(date(event.not_before), sight=sight, most=kind.most)
        at, suspect = when.deadline, when.suspect
        if date(event.not_before) is None and confidence > Confidence.ADVISORY:
            # Whoever gives no readable date gives no more than the shortest notice, and whoever
            # gives none at all does not promise even that.
            at = sight.monotonic + (kind.least if event.not_before.strip() else 0.0)
        if kind.name == "preempt":
            planned = sight.monotonic + min(preempt_assume_seconds, PREEMPT_SECONDS)
            at = planned if at is None else min(at, planned)
    else:  # Advisory, and what was unheard of when this was written
        confidence = Confidence.ADVISORY
    return Said(
        id=event.id,
        kind=kind.name,
        confidence=confidence,
        deadline=at,
        dated=f"{event.status.casefold()} {event.not_before}",
        detail=_detail(event, suspect),
        gone="the event is over" if is_started(event) else "the event is no longer announced",
        linger=LINGER_SECONDS if confidence is Confidence.STARTED else 0.0,
    )


def _detail(event: Event, suspect: str) -> str:
    parts = [f"{event.type[:48]} {event.status[:48]}"]
    if event.not_before:
        parts.append(f"not before {event.not_before[:40]}")
    if event.by:
        parts.append(f"by {event.by[:24]}")
    if event.description:
        parts.append(event.description)
    if suspect and not is_started(event):
        parts.append(suspect)
    return "; ".join(parts)
