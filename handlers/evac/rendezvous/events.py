"""What nodes tell each other: one JSON object per entry of the job's log. Pure.

Agents write joins and the like; evacd writes departures. Whoever reads believes nothing: an
entry that is not one of these, in form or in size, says nothing to anybody.
"""

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, ClassVar

from evac.rendezvous.address import is_endpoint

MOST_BYTES = 8192
LEAVING, STAYING = "leaving", "staying"
_MOST_TEXT = 1024
# Whoever reads one connects to it.
_PLACES = frozenset({"at", "standby"})


@dataclass(frozen=True)
class Event:
    """The root of all events; `do` is the word in the log."""

    do: ClassVar[str] = ""


@dataclass(frozen=True)
class Join(Event):
    """An agent wants to be in the next round.

    Attributes:
        agent: Unique in the life of the job.
        boot: Kernel boot id: the same name after a reboot is another node.
        standby: ``host:port`` at which this agent would serve the log; "" if it could not.
        hosts: It serves the log now.
        minimum: Of nodes, as torchrun was told; `maximum` likewise.
        seen: Number of the last round that the agent knew of: said twice, it counts once.
    """

    do: ClassVar[str] = "join"
    agent: str
    node: str
    boot: str
    minimum: int
    maximum: int
    seen: int = 0
    standby: str = ""
    hosts: bool = False


@dataclass(frozen=True)
class Call(Event):
    """Last call: the first round begins with who is there."""

    do: ClassVar[str] = "call"
    agent: str


@dataclass(frozen=True)
class Open(Event):
    """The first rank serves the round's own store there (``host:port``)."""

    do: ClassVar[str] = "open"
    agent: str
    number: int
    at: str


@dataclass(frozen=True)
class Confirm(Event):
    """An agent has reached the round's store; once all have, the round stands."""

    do: ClassVar[str] = "confirm"
    agent: str
    number: int


@dataclass(frozen=True)
class Dissolve(Event):
    """The round that forms was not confirmed in time; said by one of it."""

    do: ClassVar[str] = "dissolve"
    agent: str
    number: int


@dataclass(frozen=True)
class Met(Event):
    """An agent knows that the round is over, and has not stopped its workers yet."""

    do: ClassVar[str] = "met"
    agent: str
    number: int


@dataclass(frozen=True)
class Leave(Event):
    """An agent goes, by itself."""

    do: ClassVar[str] = "leave"
    agent: str


@dataclass(frozen=True)
class Gone(Event):
    """An agent was not heard of for too long."""

    do: ClassVar[str] = "gone"
    agent: str
    by: str = ""


@dataclass(frozen=True)
class Close(Event):
    """An agent has ended, and so has the job: nobody meets again in this run of it.

    Attributes:
        well: Its workers have finished; else they have failed.
        epoch: The run of the job that this is about.
    """

    do: ClassVar[str] = "close"
    agent: str
    well: bool = False
    epoch: int = 0


@dataclass(frozen=True)
class Anew(Event):
    """All of the job have ended, and it is run again."""

    do: ClassVar[str] = "anew"
    agent: str


@dataclass(frozen=True)
class Begin(Event):
    """The host of a new log has made sure that the job has none already; see `State.held`."""

    do: ClassVar[str] = "begin"
    agent: str


@dataclass(frozen=True)
class Moved(Event):
    """The log goes on elsewhere: nothing behind this counts.

    Attributes:
        agent: Who serves it there; "" where it is a store of its own.
        at: ``host:port``.
        term: Of its service there.
    """

    do: ClassVar[str] = "moved"
    agent: str
    at: str
    term: int


@dataclass(frozen=True)
class Depart(Event):
    """evacd: a node leaves, and what of its bytes.

    Attributes:
        word: ``leaving``, ``written``, ``durable``, ``lost`` or ``staying``.
        sequence: Rises over the words of one boot of one node; what is older says nothing.
        seconds_left: Until the node goes, when this was said.
        step: Of the generation; -1 where there is none.
        store: Where its bytes go or lie.
        job: Whose generation that is, by its prefix in each store; "" for the whole node.
    """

    do: ClassVar[str] = "depart"
    word: str
    node: str
    boot: str
    sequence: int = 0
    order: str = ""
    seconds_left: float = 0.0
    step: int = -1
    incarnation: int = 0
    store: str = ""
    reason: str = ""
    job: str = ""


_KINDS: tuple[type[Event], ...] = (
    Join, Call, Open, Confirm, Dissolve, Met, Leave, Gone, Close, Anew, Begin, Moved, Depart
)  # fmt: skip
EVENTS: Mapping[str, type[Event]] = {kind.do: kind for kind in _KINDS}


def encode(event: Event, *, mark: str = "") -> bytes:
    """One entry.

    Args:
        mark: Makes it different from an equal event of somebody else.
    """
    document = {"do": event.do, **asdict(event)}
    if mark:
        document["mark"] = mark
    return json.dumps(document, separators=(",", ":")).encode()


def decode(entry: bytes) -> Event | None:
    """Read one entry; None where it says nothing."""
    if len(entry) > MOST_BYTES:
        return None
    try:
        document = json.loads(entry)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    word = document.get("do")
    kind = EVENTS.get(word) if isinstance(word, str) else None
    return None if kind is None else read(kind, document)


def read(kind: type[Any], document: Mapping[str, Any]) -> Any:
    """*kind* of plain fields from *document*; None where one is missing or of another type."""
    values: dict[str, Any] = {}
    for item in fields(kind):
        if item.name not in document:
            if item.default is MISSING:
                return None
            continue
        value = document[item.name]
        # Before it becomes a float: not every integer can.
        if isinstance(value, int) and not -(2**53) <= value <= 2**53:
            return None
        if item.type is float and type(value) is int:
            value = float(value)
        if type(value) is not item.type:
            return None
        if isinstance(value, str) and len(value) > _MOST_TEXT:
            return None
        if item.name in _PLACES and value and not is_endpoint(value):
            return None
        values[item.name] = value
    return kind(**values)
