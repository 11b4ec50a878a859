"""The socket protocol as a pure core: packets in, messages out, and back.

One SEQPACKET packet is one JSON object of at most 64 KiB with a ``type``; the fds that
belong to it travel in the same packet. A request carries ``id`` (a positive integer) and
its answer repeats it as ``re``. Unknown fields are ignored, so that either end may be newer;
unknown types and wrong values are `ProtocolError`. PROTOCOL.md says the same for people
who write a client in another language.

The daemon, the blocking client and the asyncio client share this file; it does no I/O.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import StrEnum
from typing import Any, ClassVar

from evac.errors import ProtocolError
from evac.generation import BODY, NAME

PROTOCOL = 1
MAX_PACKET = 64 * 1024
# Linux refuses more than 253 fds in a packet; nothing here ever sends more than one.
MAX_FDS = 1

# 2**53: what every JSON reader can hold exactly.
_BIG = 2**53
# JSON can spell it, UTF-8 cannot: it would raise wherever the text is written next.
_SURROGATE = re.compile("[\ud800-\udfff]")


def _text(limit: int, pattern: "re.Pattern[str] | None" = None, default: Any = MISSING) -> Any:
    return field(default=default, metadata={"kind": str, "limit": limit, "pattern": pattern})


def _count(low: int = 0, high: int = _BIG, default: Any = MISSING) -> Any:
    return field(default=default, metadata={"kind": int, "low": low, "high": high})


def _seconds(default: Any = MISSING) -> Any:
    return field(default=default, metadata={"kind": float, "low": 0.0, "high": 1e9})


def _flag(default: Any = MISSING) -> Any:
    return field(default=default, metadata={"kind": bool})


def _texts(limit: int, default: Any = MISSING) -> Any:
    return field(default=default, metadata={"kind": tuple, "limit": limit})


class Mode(StrEnum):
    """How a workload takes part."""

    STAGED = "staged"
    CALLBACK = "callback"


@dataclass(frozen=True)
class Message:
    """The root of all messages; `type` is the word on the wire."""

    type: ClassVar[str]


# --- workload -> daemon -----------------------------------------------------------------


@dataclass(frozen=True)
class Hello(Message):
    """First packet of a connection, answered by `Welcome` or `Refuse`."""

    type: ClassVar[str] = "hello"
    version: int = _count(1, 1000)
    client: str = _text(128, default="")


@dataclass(frozen=True)
class Register(Message):
    """Who is on board. Answered by `Registered` or `Refuse`.

    Attributes:
        need_seconds: Callback mode: how long the workload's own flush takes, at most.
        run: Names one launch of the job (torchrun's or Slurm's id); "" where unknown.
    """

    type: ClassVar[str] = "register"
    job: str = _text(63, NAME)
    rank: int = _count(0, 10_000_000)
    world: int = _count(1, 10_000_000)
    priority: int = _count(-1_000_000, 1_000_000, default=0)
    mode: str = _text(16, default=Mode.STAGED.value)
    run: str = _text(128, default="")
    need_seconds: float = _seconds(default=0.0)


@dataclass(frozen=True)
class Reserve(Message):
    """Ask for sealed memory. Each slot arrives as one `Slot` with its fd.

    A second `reserve` replaces the first: its free slots are freed, complete ones kept
    until they are superseded.

    Attributes:
        nbytes: Size of one slot, header and tail included.
        slots: How many are wanted; fewer may come.
        body: File name of the body in a store.
        layout: Hex SHA-256 of DCP's `.metadata`, or any stable name of the layout.
    """

    type: ClassVar[str] = "reserve"
    nbytes: int = _count(4096, 2**46)
    body: str = _text(80, BODY)
    incarnation: int = _count(default=0)
    slots: int = _count(1, 16, default=3)
    layout: str = _text(128, default="")


@dataclass(frozen=True)
class Acquire(Message):
    """Ask for a slot to write in. Answered by `Granted` or, at once, by `Refuse`."""

    type: ClassVar[str] = "acquire"


@dataclass(frozen=True)
class Staged(Message):
    """The acquired slot holds a whole generation; answered by `Accepted` or `Refuse`."""

    type: ClassVar[str] = "staged"
    slot: int = _count(0, 1_000_000)
    step: int = _count()


@dataclass(frozen=True)
class Release(Message):
    """Give an acquired slot back unwritten. No answer."""

    type: ClassVar[str] = "release"
    slot: int = _count(0, 1_000_000)


@dataclass(frozen=True)
class Done(Message):
    """A callback workload's turn is over. No answer."""

    type: ClassVar[str] = "done"
    turn: int = _count(0)
    ok: bool = _flag()
    nbytes: int = _count(default=0)
    reason: str = _text(512, default="")


@dataclass(frozen=True)
class Leave(Message):
    """The work is finished: free its slots, save nothing. Answered by `Accepted`."""

    type: ClassVar[str] = "leave"


@dataclass(frozen=True)
class AskStatus(Message):
    """Answered by `Status`, whose fd holds the JSON."""

    type: ClassVar[str] = "status"


# --- admin -> daemon (admin.sock only) --------------------------------------------------


@dataclass(frozen=True)
class Drain(Message):
    """Evacuate now, as if a notice with this many seconds had come."""

    type: ClassVar[str] = "drain"
    seconds: float = _seconds()
    reason: str = _text(256, default="")


@dataclass(frozen=True)
class Cancel(Message):
    """Withdraw what an operator ordered by `drain`."""

    type: ClassVar[str] = "cancel"


# --- daemon -> anyone -------------------------------------------------------------------


@dataclass(frozen=True)
class Welcome(Message):
    """The daemon's half of the hello."""

    type: ClassVar[str] = "welcome"
    version: int = _count(1, 1000)
    daemon: str = _text(64, default="")
    node: str = _text(256, default="")
    boot: str = _text(64, default="")


@dataclass(frozen=True)
class Registered(Message):
    """You are on board.

    Attributes:
        workload: The roster's id, for logs.
        prefix: Where this job's generations go in each store: ``<owner>/<job>``.
        stores: URLs, in order of preference.
    """

    type: ClassVar[str] = "registered"
    workload: int = _count()
    prefix: str = _text(256)
    stores: tuple[str, ...] = _texts(1024, default=())


@dataclass(frozen=True)
class Slot(Message):
    """One sealed slot; its memfd is this packet's only fd.

    Attributes:
        last: No further slot of this reservation follows.
    """

    type: ClassVar[str] = "slot"
    slot: int = _count(0, 1_000_000)
    nbytes: int = _count()
    last: bool = _flag()


@dataclass(frozen=True)
class Granted(Message):
    """Write in this slot."""

    type: ClassVar[str] = "granted"
    slot: int = _count(0, 1_000_000)


@dataclass(frozen=True)
class Accepted(Message):
    """Done as asked."""

    type: ClassVar[str] = "accepted"


@dataclass(frozen=True)
class Refuse(Message):
    """Not done, and why. Where ``fatal``, the connection is closed next."""

    type: ClassVar[str] = "refused"
    reason: str = _text(1024)
    fatal: bool = _flag(default=False)


@dataclass(frozen=True)
class OrderGiven(Message):
    """This node is to be evacuated; sent again when the deadline shortens.

    Attributes:
        order: Stable id of the order.
        seconds_left: Until the deadline, at the moment of sending; 0 in overtime.
        confidence: ``planned``, ``certain`` or ``started``.
    """

    type: ClassVar[str] = "order"
    order: str = _text(64)
    seconds_left: float = _seconds()
    confidence: str = _text(16)
    source: str = _text(64, default="")
    kind: str = _text(64, default="")
    amended: bool = _flag(default=False)


@dataclass(frozen=True)
class Advice(Message):
    """An advisory notice: worth a checkpoint if it is cheap; nothing is ordered."""

    type: ClassVar[str] = "advice"
    source: str = _text(64)
    kind: str = _text(64)


@dataclass(frozen=True)
class Turn(Message):
    """Callback mode: flush now, and answer `Done` within ``seconds``."""

    type: ClassVar[str] = "turn"
    turn: int = _count()
    seconds: float = _seconds()
    order: str = _text(64)


@dataclass(frozen=True)
class StandDown(Message):
    """The order is withdrawn: carry on."""

    type: ClassVar[str] = "stand-down"
    order: str = _text(64)
    reason: str = _text(512, default="")


@dataclass(frozen=True)
class Status(Message):
    """The answer to `AskStatus`: the JSON lies in the sealed memfd of this packet."""

    type: ClassVar[str] = "status-report"
    nbytes: int = _count()


_KINDS: tuple[type[Message], ...] = (
    Hello, Register, Reserve, Acquire, Staged, Release, Done, Leave, AskStatus, Drain, Cancel,
    Welcome, Registered, Slot, Granted, Accepted, Refuse, OrderGiven, Advice, Turn, StandDown,
    Status,
)  # fmt: skip
MESSAGES: Mapping[str, type[Message]] = {kind.type: kind for kind in _KINDS}


@dataclass(frozen=True)
class Packet:
    """A message with the number that ties an answer to its request.

    Attributes:
        id: Of a request that wants an answer.
        re: The request that this packet answers.
    """

    message: Message
    id: int | None = None
    re: int | None = None


def encode(message: Message, *, id: int | None = None, re: int | None = None) -> bytes:
    """One packet.

    Raises:
        ProtocolError: It would not fit in 64 KiB.
    """
    document: dict[str, Any] = {"type": message.type}
    document |= {k: v for k, v in (("id", id), ("re", re)) if v is not None}
    document |= {item.name: getattr(message, item.name) for item in fields(message)}
    packet = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    if len(packet) > MAX_PACKET:
        raise ProtocolError(f"{message.type}: {len(packet)} bytes, at most {MAX_PACKET}")
    return packet


def decode(packet: bytes) -> Packet:
    """Read one packet.

    Raises:
        ProtocolError: Says which field is wrong and what it should be.
    """
    if len(packet) > MAX_PACKET:
        raise ProtocolError(f"packet of {len(packet)} bytes, at most {MAX_PACKET}")
    try:
        document = json.loads(packet)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("packet is not JSON") from error
    if not isinstance(document, dict):
        raise ProtocolError("packet is not a JSON object")
    word = document.get("type")
    kind = MESSAGES.get(word) if isinstance(word, str) else None
    if kind is None:
        raise ProtocolError(f"unknown type {str(word)[:40]!r}")
    values = {item.name: _value(kind, item, document) for item in fields(kind)}
    return Packet(kind(**values), _number(document, "id"), _number(document, "re"))


def _number(document: Mapping[str, Any], name: str) -> int | None:
    value = document.get(name)
    if value is None:
        return None
    if type(value) is not int or not 0 < value <= _BIG:
        raise ProtocolError(f"{name}: expected a positive integer")
    return value


def _value(kind: type[Message], item: "Field[Any]", document: Mapping[str, Any]) -> Any:
    where = f"{kind.type}.{item.name}"
    if item.name not in document:
        if item.default is MISSING:
            raise ProtocolError(f"{where}: missing")
        return item.default
    value, rule = document[item.name], item.metadata
    if rule["kind"] is float and type(value) is int:
        value = float(value) if -_BIG <= value <= _BIG else None
    if rule["kind"] is tuple:
        return _strings(where, value, rule["limit"])
    if type(value) is not rule["kind"]:
        raise ProtocolError(f"{where}: expected {rule['kind'].__name__}")
    if rule["kind"] is str:
        if len(value) > rule["limit"]:
            raise ProtocolError(f"{where}: longer than {rule['limit']} characters")
        if rule["pattern"] is not None and not rule["pattern"].fullmatch(value):
            raise ProtocolError(f"{where}: {value!r} does not match {rule['pattern'].pattern}")
        if not value.isascii() and _SURROGATE.search(value):
            raise ProtocolError(f"{where}: half of a surrogate pair")
    elif rule["kind"] is not bool and not rule["low"] <= value <= rule["high"]:
        raise ProtocolError(f"{where}: {str(value)[:24]} is outside {rule['low']}..{rule['high']}")
    return value


def _strings(where: str, value: object, limit: int) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > 64:
        raise ProtocolError(f"{where}: expected a list of at most 64 strings")
    for one in value:
        if not isinstance(one, str) or len(one) > limit:
            raise ProtocolError(f"{where}: expected strings of at most {limit} characters")
        if _SURROGATE.search(one):
            raise ProtocolError(f"{where}: half of a surrogate pair")
    return tuple(value)
