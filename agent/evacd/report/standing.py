"""What this node has done that outlives the daemon: closed cordons, told jobs, a drain. Pure.

An order lives in the daemon's memory, but a cordon that was closed stays closed whatever
becomes of the daemon. So what was done is written down, as JSON::

    {"schema": 2, "boot": "…",
     "order": {"id": "ab12-1", "source": "operator", "kind": "drain", "confidence": "certain",
               "given": "2026-11-29T17:00:00+00:00"},
     "closed": ["command"], "told": ["alice/gpt"],
     "drain": {"id": "operator:1", "deadline": 5230.5, "reason": "…"},
     "notices": [{"source": "operator", "id": "operator:1", "boot": "…", "seen": 1630.5,
                  "deadline": 5230.5, "ends": "2026-11-29T18:00:00+00:00"}]}

``order``, the last one that was given, and ``drain`` may be null. Numbers are seconds on the
monotonic clock of the boot beside them.
"""

import json
import math
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from evacd.facts import Confidence
from evacd.report.standing_notices import Heard

SCHEMA = 2


@dataclass(frozen=True)
class Ordered:
    """The order under which things were done.

    Attributes:
        given: UTC.
    """

    id: str
    source: str
    kind: str
    confidence: Confidence
    given: datetime


@dataclass(frozen=True)
class OperatorDrain:
    """A drain that an operator asked for and did not cancel.

    Attributes:
        id: Of its notice.
        deadline: Monotonic seconds: that clock goes on over a restart of the daemon, and a
            reboot ends the drain.
    """

    id: str
    deadline: float
    reason: str


@dataclass(frozen=True)
class Standing:
    """All that has to be undone, or to stand again, after a restart.

    Attributes:
        boot: Kernel boot id under which it was done.
        closed: Names of the cordons that may be closed, by us.
        told: Jobs that were told that this node leaves; "" is the whole node.
        notices: What an order was given for: on this boot, those of the last order; on
            others, what this machine may have been through.
    """

    boot: str
    order: Ordered | None = None
    closed: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    drain: OperatorDrain | None = None
    notices: tuple[Heard, ...] = ()


class AtStart(Enum):
    """What a daemon that starts does about what an earlier one did."""

    NOTHING = "nothing"
    REOPEN = "reopen"
    DRAIN = "drain"
    HOLD = "hold"


def at_start(found: Standing | None, boot: str) -> AtStart:
    """Decide.

    A machine that has booted since is another node: no order from before is about it, and the
    new work that it waits for is kept off by a cordon of ours. On the same boot a cloud tells
    again what it announces, if it still does; an operator does not.
    """
    if found is None:
        return AtStart.NOTHING
    if found.boot != boot:
        return AtStart.REOPEN if found.closed else AtStart.NOTHING
    if found.drain is not None:
        return AtStart.DRAIN
    return AtStart.HOLD if found.closed or found.told else AtStart.NOTHING


# --- the codec ---------------------------------------------------------------------------


def encode(standing: Standing) -> bytes:
    """As it lies on the disk."""
    order, drain = standing.order, standing.drain
    document = {
        "schema": SCHEMA,
        "boot": standing.boot,
        "order": order
        and {
            **asdict(order),
            "confidence": order.confidence.word,
            "given": order.given.isoformat(),
        },
        "closed": list(standing.closed),
        "told": list(standing.told),
        "drain": drain and asdict(drain),
        "notices": [{**asdict(each), "ends": each.ends.isoformat()} for each in standing.notices],
    }
    return json.dumps(document, indent=1).encode() + b"\n"


def decode(data: bytes) -> Standing:
    """The reverse of `encode`.

    Raises:
        ValueError: It is not what `encode` makes; says why.
    """
    try:
        document = json.loads(data)
        if not isinstance(document, dict):
            raise ValueError("it is no JSON object")
        if document["schema"] != SCHEMA:
            raise ValueError(f"its schema is {document['schema']!r}, expected {SCHEMA}")
        order, drain = document["order"], document["drain"]
        return Standing(
            boot=_text(document["boot"]),
            order=None if order is None else _order(order),
            closed=_texts(document["closed"]),
            told=_texts(document["told"]),
            drain=None if drain is None else _drain(drain),
            notices=tuple(_heard(each) for each in _list(document["notices"])),
        )
    except (KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _order(value: dict[str, Any]) -> Ordered:
    words = {each.word: each for each in Confidence}
    return Ordered(
        id=_text(value["id"]),
        source=_text(value["source"]),
        kind=_text(value["kind"]),
        confidence=words[_text(value["confidence"])],
        given=_time(value["given"]),
    )


def _drain(value: dict[str, Any]) -> OperatorDrain:
    return OperatorDrain(
        id=_text(value["id"]), deadline=_seconds(value["deadline"]), reason=_text(value["reason"])
    )


def _heard(value: dict[str, Any]) -> Heard:
    return Heard(
        source=_text(value["source"]),
        id=_text(value["id"]),
        boot=_text(value["boot"]),
        seen=_seconds(value["seen"]),
        deadline=_seconds(value["deadline"]),
        ends=_time(value["ends"]),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _texts(value: object) -> tuple[str, ...]:
    return tuple(_text(each) for each in _list(value))


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{value!r} is no list")
    return value


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no number of seconds")
    return float(value)


def _time(value: object) -> datetime:
    time = datetime.fromisoformat(_text(value))
    if time.tzinfo is None:
        raise ValueError(f"{value!r} has no time zone")
    return time
