"""`events/maintenance/scheduled`: EC2 plans to reboot, stop or retire this instance.

Source: docs.aws.amazon.com/AWSEC2/latest/UserGuide, "Instance metadata categories" and
"Scheduled events for your instances". Traps: ``NotAfter`` may be missing or empty
(aws-node-termination-handler#315); what is over stays listed for up to a week, by its state or
by "[Completed]" before its description (its PR#363); the state lags behind the reboot, so that
an event can still be active after it (its PR#75): `ignored` is for those.
"""

from collections.abc import Collection, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypeGuard

from evacd.facts import Confidence
from evacd.notice.aws.reading import (
    Found,
    Reading,
    Unreadable,
    event_date,
    joined,
    parsed,
    shown,
)

NAME = "aws/maintenance"
KEY = "events/maintenance/scheduled"


class Policy(StrEnum):
    """What a scheduled event starts.

    ``early``: an order at once, with the event's time as its deadline: the hardware is failing,
    and may not last (aws-node-termination-handler#361). ``planned``: an order in time before
    the event. ``advise``: workloads are told. ``ignore``: nothing.
    """

    EARLY = "early"
    PLANNED = "planned"
    ADVISE = "advise"
    IGNORE = "ignore"


POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        "instance-stop": Policy.EARLY,
        "instance-retirement": Policy.EARLY,
        "instance-reboot": Policy.PLANNED,
        "system-reboot": Policy.PLANNED,
        "system-maintenance": Policy.PLANNED,
    }
)
_CONFIDENCE = {
    Policy.EARLY: Confidence.CERTAIN,
    Policy.PLANNED: Confidence.PLANNED,
    Policy.ADVISE: Confidence.ADVISORY,
}
_OVER = {"completed": "completed", "canceled": "canceled", "cancelled": "canceled"}


def read_events(
    text: str,
    *,
    policies: Mapping[str, Policy] = POLICIES,
    ignored: Collection[str] = (),
) -> Reading | Unreadable:
    """What ``events/maintenance/scheduled`` says.

    Args:
        policies: By event code; a code that it lacks only advises.
        ignored: Event ids, or ids of their notices, that say nothing: what this machine has
            already been rebooted for.
    """
    value = parsed(text)
    if isinstance(value, Unreadable):
        return value
    if not isinstance(value, list):
        return Unreadable(f"no list of events: {shown(text)}")
    found: dict[str, Found] = {}
    gone: dict[str, str] = {}
    unread = 0
    for each in value:
        match _event(each, policies, ignored):
            case Found() as event:
                # Of twins the surer one, the earlier of equals.
                found[event.id] = max(found.get(event.id, event), event, key=_urgency)
            case (id, reason):
                gone[id] = reason
            case None:
                unread += 1
    gone = {id: reason for id, reason in gone.items() if id not in found}
    return Reading(
        tuple(found.values()),
        MappingProxyType(gone),
        f"{unread} of {len(value)} events cannot be read" if unread else "",
    )


def _event(
    value: object, policies: Mapping[str, Policy], ignored: Collection[str]
) -> Found | tuple[str, str] | None:
    """One entry: what it announces, or its id and why it announces nothing; else None."""
    if not isinstance(value, dict):
        return None
    event_id, code = value.get("EventId"), value.get("Code")
    if not _is_word(event_id) or not _is_word(code):
        return None
    id = joined(NAME, event_id)
    if event_id in ignored or id in ignored:
        return id, "it is ignored: this machine has been through it"
    over = _over(value)
    if over:
        return id, f"{code} is {over}"
    policy = policies.get(code, Policy.ADVISE)
    if policy is Policy.IGNORE:
        return id, f"{code} is ignored by its policy"
    state = value.get("State") or "active"
    description = value.get("Description")
    text = shown(description, most=120) if isinstance(description, str) else "no description"
    detail = f"EC2 scheduled {code}: {text}"
    if not isinstance(state, str) or state.strip().lower() != "active":
        policy, detail = Policy.ADVISE, f"{detail}, in the unknown state {shown(state)}"
    date = event_date(value.get("NotBefore"))
    if date is None:
        detail += ", at a time that cannot be read"
    # Early and without a time is now; planned and without one can only advise.
    most = 0.0 if date is None and policy is Policy.EARLY else None
    return Found(id, code, _CONFIDENCE[policy], date, most, detail)


def _over(value: Mapping[str, Any]) -> str:
    state, description = value.get("State"), value.get("Description")
    if isinstance(state, str) and state.strip().lower() in _OVER:
        return _OVER[state.strip().lower()]
    if isinstance(description, str) and description.lstrip().startswith("["):
        return _OVER.get(description.lstrip()[1:].partition("]")[0].strip().lower(), "")
    return ""


def _urgency(found: Found) -> tuple[int, float]:
    return found.confidence, -found.date.timestamp() if found.date else 0.0


def _is_word(value: object) -> TypeGuard[str]:
    return (
        isinstance(value, str)
        and 0 < len(value) <= 128
        and value.isascii()
        and value.isprintable()
        and " " not in value
    )
