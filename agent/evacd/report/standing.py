"""What this node has done that outlives the daemon: closed cordons, told jobs, a drain. Pure.

An order lives in the daemon's memory, but a cordon that was closed stays closed whatever
becomes of the daemon. So what was done is written down, as JSON::

    {"schema": 1, "boot": "…",
     "order": {"id": "ab12-1", "source": "operator", "kind": "drain", "confidence": "certain",
               "given": "2026-11-29T17:00:00+00:00"},
     "closed": ["command"], "told": ["alice/gpt"],
     "drain": {"id": "operator:1", "deadline": "2026-11-29T18:00:00+00:00", "reason": "…"}}

``order``, the last one that was given, and ``drain`` may be null.
"""

import json
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from evacd.facts import Confidence

SCHEMA = 1


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
        deadline: UTC: only the wall clock goes on over a restart.
    """

    id: str
    deadline: datetime
    reason: str


@dataclass(frozen=True)
class Standing:
    """All that has to be undone, or to stand again, after a restart.

    Attributes:
        boot: Kernel boot id under which it was done.
        closed: Names of the cordons that may be closed, by us.
        told: Jobs that were told that this node leaves; "" is the whole node.
    """

    boot: str
    order: Ordered | None = None
    closed: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    drain: OperatorDrain | None = None


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
        "drain": drain and {**asdict(drain), "deadline": drain.deadline.isoformat()},
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
        )
    except (KeyError, TypeError, RecursionError) as error:
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
        id=_text(value["id"]), deadline=_time(value["deadline"]), reason=_text(value["reason"])
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{value!r} is no list")
    return tuple(_text(each) for each in value)


def _time(value: object) -> datetime:
    time = datetime.fromisoformat(_text(value))
    if time.tzinfo is None:
        raise ValueError(f"{value!r} has no time zone")
    return time
