"""The Scheduled Events document: text in, facts out. Pure.

Source: learn.microsoft.com/azure/virtual-machines/linux/scheduled-events, "Query for events"
(fields, event types and statuses, RFC 1123 dates that are blank once an event has started).
`DocumentIncarnation` is not used: an event can start without a change of it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

_MOST_ID = 128
_MOST_TEXT = 160


@dataclass(frozen=True)
class Event:
    """One event of the placement group; whose it is, its resources say.

    Attributes:
        type: As it came: ``Preempt``; may be one that nobody knew when this was written.
        status: As it came: ``Scheduled``, ``Started``, ``Advisory``, or unheard of.
        resources: Names of the machines.
        not_before: As it came; blank once the event has started.
        description: Printable and short; may be empty.
    """

    id: str
    type: str
    status: str
    resources: tuple[str, ...]
    not_before: str = ""
    description: str = ""
    by: str = ""

    def concerns(self, machine: str) -> bool:
        """Whether *machine* is among its resources; names differ in case between services."""
        return machine.casefold() in (name.casefold() for name in self.resources)


@dataclass(frozen=True)
class Document:
    """All that could be read, and what could not.

    Attributes:
        wrong: For each event that could not be read, the field and what was expected.
    """

    events: tuple[Event, ...]
    wrong: tuple[str, ...] = ()


@dataclass(frozen=True)
class Foreign:
    """Not a Scheduled Events document; *reason* says what was expected."""

    reason: str


def parse(text: str) -> Document | Foreign:
    """Read a document, event by event: one that is broken does not hide the others."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return Foreign(f"the body is {text[:40]!r}, expected a JSON document")
    if not isinstance(document, dict):
        return Foreign(f"the body is {text[:40]!r}, expected a JSON object")
    if "DocumentIncarnation" not in document:
        return Foreign("DocumentIncarnation is missing from the document")
    raw = document.get("Events")
    if not isinstance(raw, list):
        return Foreign("Events is missing from the document, or is no list")
    events, wrong = list[Event](), list[str]()
    for number, each in enumerate(raw):
        event = _event(each)
        if isinstance(event, Event):
            events.append(event)
        else:
            wrong.append(f"Events[{number}]{event}")
    return Document(tuple(events), tuple(wrong))


def date(text: str) -> datetime | None:
    """An RFC 1123 date; None where it is blank or unreadable."""
    try:
        read = parsedate_to_datetime(text)
        return read.replace(tzinfo=UTC) if read.tzinfo is None else read.astimezone(UTC)
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def printable(text: str, most: int = _MOST_TEXT) -> str:
    """*text* as it may stand in a log: one line, short."""
    clean = "".join(c if c.isprintable() else " " for c in text[:most])
    return clean.strip()


def _event(raw: object) -> Event | str:
    """The event, or where it is wrong and what was expected there."""
    if not isinstance(raw, dict):
        return ": expected an object"
    id, resources = raw.get("EventId"), raw.get("Resources")
    if not (isinstance(id, str) and 0 < len(id) <= _MOST_ID and id.isprintable()):
        return f".EventId: expected 1 to {_MOST_ID} printable characters"
    if not (isinstance(resources, list) and all(isinstance(name, str) for name in resources)):
        return ".Resources: expected a list of names"
    type, status = _word(raw, "EventType"), _word(raw, "EventStatus")
    if not type:
        return ".EventType: expected a word"
    if not status:
        return ".EventStatus: expected a word"
    return Event(
        id=id,
        type=type,
        status=status,
        resources=tuple(resources),
        not_before=_word(raw, "NotBefore"),
        description=_word(raw, "Description"),
        by=_word(raw, "EventSource"),
    )


def _word(raw: Mapping[str, Any], field: str) -> str:
    """What is there if it is text, printable and short; else ""."""
    value = raw.get(field)
    return printable(value) if isinstance(value, str) else ""
