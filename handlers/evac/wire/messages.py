"""Every message, and what each of its fields may hold.

The rules lie beside the fields, for the codec to check; PROTOCOL.md says the same in words.
"""

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from evac.generation import BODY, NAME

# 2**53: what every JSON reader can hold exactly.
BIG = 2**53


def _text(limit: int, pattern: re.Pattern[str] | None = None, default: Any = MISSING) -> Any:
    return field(default=default, metadata={"kind": str, "limit": limit, "pattern": pattern})


def _count(low: int = 0, high: int = BIG, default: Any = MISSING) -> Any:
    return field(default=default, metadata={"kind": int, "low": low, "high": high})


def _seconds(default: Any = MISSING) -> Any:
    return field(default=default, metadata={"kind": float, "low": 0.0, "high": 1e9})


def _part(default: Any = MISSING) -> Any:
    return field(default=default, metadata={"kind": float, "low": 0.0, "high": 1.0})


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
        resume: `HandBack` follows for each slot that this process still has.
        rendezvous: Where the job's nodes meet, to be told of a departure:
            ``tcpstore://host:port/prefix`` or ``etcd://host:port/prefix``; "" for nowhere.
        peers: Where the job's nodes keep bytes for each other, ``host:port``; this node may be among
            them. A job of more nodes names some.
    """

    type: ClassVar[str] = "register"
    job: str = _text(63, NAME)
    rank: int = _count(0, 10_000_000)
    world: int = _count(1, 10_000_000)
    priority: int = _count(-1_000_000, 1_000_000, default=0)
    mode: str = _text(16, default=Mode.STAGED.value)
    run: str = _text(128, default="")
    need_seconds: float = _seconds(default=0.0)
    resume: bool = _flag(default=False)
    rendezvous: str = _text(512, default="")
    peers: tuple[str, ...] = _texts(270, default=())


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
    """The acquired slot holds a whole generation; answered by `Accepted` or `Refuse`.

    Attributes:
        every_seconds: From one stage to the next; 0 where that is not known, and the others are 0.
        stall_seconds: For which a stage holds the job up.
        restart_seconds: From a reclaim until it goes on.
        between_seconds: From one reclaim of the job to the next, on average.
        stall_share: Most of the time that stalls may take, a part of 1.
    """

    type: ClassVar[str] = "staged"
    slot: int = _count(0, 1_000_000)
    step: int = _count()
    every_seconds: float = _seconds(default=0.0)
    stall_seconds: float = _seconds(default=0.0)
    restart_seconds: float = _seconds(default=0.0)
    between_seconds: float = _seconds(default=0.0)
    stall_share: float = _part(default=0.0)


@dataclass(frozen=True)
class Release(Message):
    """Give an acquired slot back unwritten, or end a loan. No answer."""

    type: ClassVar[str] = "release"
    slot: int = _count(0, 1_000_000)


@dataclass(frozen=True)
class HandBack(Message):
    """After a `Register` that resumes: a slot of before, its memfd this packet's only fd.

    Answered by `Accepted`, and then it is as if the connection had never been lost, or by `Refuse`.

    Attributes:
        held: It was granted, and neither `Staged` nor `Release` was sent for it.
        last: No further one follows.
    """

    type: ClassVar[str] = "hand-back"
    slot: int = _count(0, 1_000_000)
    held: bool = _flag()
    last: bool = _flag()


@dataclass(frozen=True)
class Adopt(Message):
    """Ask for all that the job's processes of the same run, dead ones above all, hold complete here.

    Answered by a `Lent` for each slot and then `Adopted`, or by `Refuse`.
    """

    type: ClassVar[str] = "adopt"


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
    """Throw away what was staged: free its slots, save nothing. Answered by `Accepted`."""

    type: ClassVar[str] = "leave"


@dataclass(frozen=True)
class AskStatus(Message):
    """Answered by `Status`, whose fd holds the JSON."""

    type: ClassVar[str] = "status"


@dataclass(frozen=True)
class Save(Message):
    """Save all that a job of one's own user has staged here: an order of scope workload.

    Answered by `Ordered` at once; what becomes of it stands under ``leaving`` in the status.

    Attributes:
        seconds: Until whoever asks is gone.
    """

    type: ClassVar[str] = "save"
    job: str = _text(63, NAME)
    seconds: float = _seconds()


@dataclass(frozen=True)
class Pin(Message):
    """Keep a generation that the job's nodes have agreed on. Answered by `Accepted` or `Refuse`.

    Attributes:
        prefix: Of the job in each store, as `Registered` told it.
        keep: False where nobody leaves with it after all.
    """

    type: ClassVar[str] = "pin"
    prefix: str = _text(256)
    incarnation: int = _count()
    step: int = _count()
    keep: bool = _flag(default=True)


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


@dataclass(frozen=True)
class Drill(Message):
    """Rehearse an evacuation: nobody is told to leave. Its report stands in the status.

    Attributes:
        seconds: Of the window that is rehearsed; 0 for the one that the daemon reckons with.
        flush: Move the newest generations for real; else only plan.
    """

    type: ClassVar[str] = "drill"
    seconds: float = _seconds(default=0.0)
    flush: bool = _flag(default=False)


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
class Lent(Message):
    """One complete slot of the job, to be read; a read-only memfd is this packet's only fd.

    Attributes:
        slot: For `Release`, which ends the loan.
    """

    type: ClassVar[str] = "lent"
    slot: int = _count(0, 1_000_000)
    nbytes: int = _count()


@dataclass(frozen=True)
class Adopted(Message):
    """What the slots that were `Lent` hold: JSON in the sealed memfd of this packet.

    Attributes:
        slots: How many were lent.
        nbytes: Of the JSON.
    """

    type: ClassVar[str] = "adopted"
    slots: int = _count()
    nbytes: int = _count()


@dataclass(frozen=True)
class Accepted(Message):
    """Done as asked."""

    type: ClassVar[str] = "accepted"


@dataclass(frozen=True)
class Ordered(Message):
    """The answer to `Save`.

    Attributes:
        order: Its id in the status and the report.
        unit: The job's prefix in each store.
    """

    type: ClassVar[str] = "ordered"
    order: str = _text(64)
    unit: str = _text(256)


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
    Hello, Register, Reserve, Acquire, Staged, Release, HandBack, Adopt, Done, Leave, AskStatus,
    Save, Pin, Drain, Cancel, Drill, Welcome, Registered, Slot, Granted, Lent, Adopted, Accepted,
    Ordered, Refuse, OrderGiven, Advice, Turn, StandDown, Status,
)  # fmt: skip
MESSAGES: Mapping[str, type[Message]] = {kind.type: kind for kind in _KINDS}
