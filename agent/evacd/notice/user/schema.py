"""What a user's own file, program or server says, as JSON. Pure.

One document tells all that stands at this moment; an empty list is "no notice"::

    {"notices": [
      {"id": "capacity-block-7",
       "kind": "capacity-block-end",
       "confidence": "planned",
       "deadline": "2026-03-01T11:30:00Z",
       "seconds_left": null,
       "detail": "the block ends at noon"}]}

``id`` is stable for the event and has no time in it; ``confidence`` is one of advisory,
planned, certain, started; of ``deadline`` (RFC 3339, with its offset) and ``seconds_left``
(>= 0, from when the document is read) each may be null or absent, and the earlier counts
where both are there; ``detail`` is for people. What is misspelt is an error and not ignored:
a notice without its deadline is another notice. `SCHEMA.md` beside this file is for users.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, NoReturn

from evacd.facts import Confidence

MOST_BYTES = 64 * 1024
MOST_NOTICES = 64

_CONFIDENCES: Mapping[str, Confidence] = MappingProxyType({c.word: c for c in Confidence})
_FIELDS = frozenset({"id", "kind", "confidence", "deadline", "seconds_left", "detail"})
_KIND = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_RFC3339 = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)


@dataclass(frozen=True)
class UserNotice:
    """One notice of a document.

    Attributes:
        deadline: Timezone-aware.
        seconds_left: From when the document was read.
        detail: Printable and short.
    """

    id: str
    kind: str
    confidence: Confidence
    deadline: datetime | None = None
    seconds_left: float | None = None
    detail: str = ""


@dataclass(frozen=True)
class Wrong:
    """A document that cannot be taken.

    Attributes:
        where: A line or a field.
        expected: What would have been right there.
    """

    where: str
    expected: str


def parse(raw: bytes) -> tuple[UserNotice, ...] | Wrong:
    """Read a document: all of it, or what is wrong with it first."""
    if len(raw) > MOST_BYTES:
        return Wrong("the document", f"at most {MOST_BYTES} bytes")
    try:
        document = json.loads(raw.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        return Wrong(f"line {line}", "UTF-8")
    except json.JSONDecodeError as error:
        return Wrong(f"line {error.lineno}, column {error.colno}", f"JSON ({error.msg})")
    except (ValueError, RecursionError) as error:
        return Wrong("the document", f"JSON ({type(error).__name__})")
    try:
        return _notices(document)
    except _Misfit as misfit:
        return misfit.wrong


def _notices(document: object) -> tuple[UserNotice, ...]:
    if not isinstance(document, dict):
        raise _Misfit("the document", 'an object {"notices": [...]}')
    if "notices" not in document:
        raise _Misfit("notices", "a list, but it is missing")
    for key in document:
        if key != "notices":
            raise _Misfit(_shown(key), "no other field than notices")
    raw = document["notices"]
    if not isinstance(raw, list) or len(raw) > MOST_NOTICES:
        raise _Misfit("notices", f"a list of at most {MOST_NOTICES}")
    notices = tuple(_notice(f"notices[{number}]", each) for number, each in enumerate(raw))
    ids = [notice.id for notice in notices]
    for number, id in enumerate(ids):
        if id in ids[:number]:
            raise _Misfit(f"notices[{number}].id", "an id of its own, but it is there twice")
    return notices


def _notice(where: str, raw: object) -> UserNotice:
    if not isinstance(raw, dict):
        raise _Misfit(where, "an object")
    for key in raw:
        if key not in _FIELDS:
            raise _Misfit(f"{where}.{_shown(key)}", f"only {', '.join(sorted(_FIELDS))}")
    return UserNotice(
        id=_id(f"{where}.id", raw.get("id")),
        kind=_kind(f"{where}.kind", raw.get("kind")),
        confidence=_confidence(f"{where}.confidence", raw.get("confidence")),
        deadline=_deadline(f"{where}.deadline", raw.get("deadline")),
        seconds_left=_seconds(f"{where}.seconds_left", raw.get("seconds_left")),
        detail=_detail(f"{where}.detail", raw.get("detail")),
    )


def _id(where: str, value: object) -> str:
    if isinstance(value, str) and 0 < len(value) <= 128 and value.isprintable():
        return value
    raise _Misfit(where, "1 to 128 printable characters")


def _kind(where: str, value: object) -> str:
    if isinstance(value, str) and _KIND.fullmatch(value):
        return value
    raise _Misfit(where, "a word of a-z, 0-9, '.', '_' and '-', 64 at most")


def _confidence(where: str, value: object) -> Confidence:
    if isinstance(value, str) and value in _CONFIDENCES:
        return _CONFIDENCES[value]
    raise _Misfit(where, f"one of {', '.join(_CONFIDENCES)}")


def _deadline(where: str, value: object) -> datetime | None:
    if value is None:
        return None
    match = _RFC3339.fullmatch(value) if isinstance(value, str) else None
    if match is not None:
        day, time, fraction, offset = match.groups()
        micros = (fraction or "")[:6].ljust(6, "0")
        offset = "+00:00" if offset in "Zz" else offset
        try:
            return datetime.fromisoformat(f"{day}T{time}.{micros}{offset}").astimezone(UTC)
        except (ValueError, OverflowError):
            pass
    raise _Misfit(where, "an RFC 3339 date with its offset, as 2026-03-01T11:30:00Z, or null")


def _seconds(where: str, value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            seconds = float(value)
        except OverflowError:
            seconds = math.inf
        if 0 <= seconds < math.inf:
            return seconds
    raise _Misfit(where, "a number of seconds, 0 or more, or null")


def _detail(where: str, value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return printable(value)
    raise _Misfit(where, "text or null")


def printable(text: str, most: int = 200) -> str:
    """*text* as it may stand in a log: one line, short."""
    return "".join(c if c.isprintable() else " " for c in text[:most]).strip()


def _shown(key: Any) -> str:
    return printable(str(key), 40) or "a blank field"


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


class _Misfit(Exception):
    def __init__(self, where: str, expected: str) -> None:
        super().__init__(where)
        self.wrong = Wrong(where, expected)
