"""What the text of a key says. Pure: text in, facts out; nothing here raises.

Sources: docs.aws.amazon.com/AWSEC2/latest/UserGuide, "Spot Instance interruption notices"
(RFC 3339 dates) and "Instance metadata categories" (scheduled events: ``21 Jan 2019 09:00:43
GMT``, where the day may have one digit).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from evacd.facts import Confidence

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_RFC3339 = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)", re.ASCII | re.IGNORECASE
)
_EVENT = re.compile(
    r"(\d{1,2}) (" + "|".join(_MONTHS) + r") (\d{4}) (\d\d):(\d\d):(\d\d) (?:GMT|UTC)",
    re.ASCII,
)


@dataclass(frozen=True)
class Found:
    """One thing that a key announces.

    Attributes:
        id: Stable, without a time; the whole `Notice.id`.
        kind: The source's own word.
        date: When it happens, by the provider's wall clock; None where there is no usable one.
        most: Seconds that this kind gives from its first sight; 0 is now, None has no limit.
        detail: For people; the same for as long as the same thing is announced.
    """

    id: str
    kind: str
    confidence: Confidence
    date: datetime | None
    most: float | None
    detail: str


@dataclass(frozen=True)
class Reading:
    """A valid answer.

    Attributes:
        found: What stands announced.
        gone: By id, why something is over that is still listed.
        unread: Why a part could not be read; then what is missing may be that part.
    """

    found: tuple[Found, ...] = ()
    gone: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    unread: str = ""


@dataclass(frozen=True)
class Unreadable:
    """An answer that is not this key's."""

    reason: str


NOTHING = Reading()


def parsed(text: str) -> Any:
    """The JSON value, or `Unreadable`."""
    if not text.strip():
        return Unreadable("the answer is empty")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return Unreadable(f"not JSON: {shown(text)}")


def rfc3339(value: object) -> datetime | None:
    """A date such as ``2017-09-18T08:22:00Z``, in UTC; None where it is none."""
    if not isinstance(value, str) or not _RFC3339.fullmatch(value.strip()):
        return None
    try:
        return datetime.fromisoformat(value.strip().upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def event_date(value: object) -> datetime | None:
    """A date such as ``1 Jan 2019 09:00:43 GMT``, in UTC; None where it is none."""
    if not isinstance(value, str):
        return None
    match = _EVENT.fullmatch(value.strip())
    if match is None:
        # Not documented there, but all other keys have it.
        return rfc3339(value)
    day, month, year, hour, minute, second = match.groups()
    try:
        return datetime(
            int(year),
            _MONTHS.index(month) + 1,
            int(day),
            int(hour),
            int(minute),
            int(second),
            tzinfo=UTC,
        )
    except ValueError:
        return None


def shown(value: object, *, most: int = 60) -> str:
    """*value* for people: bounded, printable, quoted."""
    text = value if isinstance(value, str) else str(type(value).__name__)
    return ascii(text[:most]) + ("..." if len(text) > most else "")


def joined(*parts: str) -> str:
    """An id of its parts, without those that are empty."""
    return ":".join(part for part in parts if part)
