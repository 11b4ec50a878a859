"""What the daemon says, to anyone."""

from dataclasses import dataclass
from typing import ClassVar

from evac.wire import fields as of
from evac.wire.fields import Message


@dataclass(frozen=True)
class Welcome(Message):
    """The daemon's half of the hello."""

    type: ClassVar[str] = "welcome"
    version: int = of.count(1, 1000)
    daemon: str = of.text(64, default="")
    node: str = of.text(256, default="")
    boot: str = of.text(64, default="")


@dataclass(frozen=True)
class Registered(Message):
    """You are on board.

    Attributes:
        workload: The roster's id, for logs.
        prefix: Where this job's generations go in each store: ``<owner>/<job>``.
        stores: URLs, in order of preference.
    """

    type: ClassVar[str] = "registered"
    workload: int = of.count()
    prefix: str = of.text(256)
    stores: tuple[str, ...] = of.texts(1024, default=())


@dataclass(frozen=True)
class Slot(Message):
    """One sealed slot; its memfd is this packet's only fd.

    Attributes:
        last: No further slot of this reservation follows.
    """

    type: ClassVar[str] = "slot"
    slot: int = of.count(0, 1_000_000)
    nbytes: int = of.count()
    last: bool = of.flag()


@dataclass(frozen=True)
class Granted(Message):
    """Write in this slot."""

    type: ClassVar[str] = "granted"
    slot: int = of.count(0, 1_000_000)


@dataclass(frozen=True)
class Lent(Message):
    """One complete slot of the job, to be read; a read-only memfd is this packet's only fd.

    Attributes:
        slot: For `Release`, which ends the loan.
    """

    type: ClassVar[str] = "lent"
    slot: int = of.count(0, 1_000_000)
    nbytes: int = of.count()


@dataclass(frozen=True)
class Adopted(Message):
    """What the slots that were `Lent` hold: JSON in the sealed memfd of this packet.

    Attributes:
        slots: How many were lent.
        nbytes: Of the JSON.
    """

    type: ClassVar[str] = "adopted"
    slots: int = of.count()
    nbytes: int = of.count()


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
    order: str = of.text(64)
    unit: str = of.text(256)


@dataclass(frozen=True)
class Refuse(Message):
    """Not done, and why. Where ``fatal``, the connection is closed next."""

    type: ClassVar[str] = "refused"
    reason: str = of.text(1024)
    fatal: bool = of.flag(default=False)


@dataclass(frozen=True)
class OrderGiven(Message):
    """This node is to be evacuated; sent again when the deadline shortens.

    Attributes:
        order: Stable id of the order.
        seconds_left: Until the deadline, at the moment of sending; 0 in overtime.
        confidence: ``planned``, ``certain`` or ``started``.
    """

    type: ClassVar[str] = "order"
    order: str = of.text(64)
    seconds_left: float = of.seconds()
    confidence: str = of.text(16)
    source: str = of.text(64, default="")
    kind: str = of.text(64, default="")
    amended: bool = of.flag(default=False)


@dataclass(frozen=True)
class Advice(Message):
    """An advisory notice: worth a checkpoint if it is cheap; nothing is ordered."""

    type: ClassVar[str] = "advice"
    source: str = of.text(64)
    kind: str = of.text(64)


@dataclass(frozen=True)
class Turn(Message):
    """Callback mode: flush now, and answer `Done` within ``seconds``."""

    type: ClassVar[str] = "turn"
    turn: int = of.count()
    seconds: float = of.seconds()
    order: str = of.text(64)


@dataclass(frozen=True)
class StandDown(Message):
    """The order is withdrawn: carry on."""

    type: ClassVar[str] = "stand-down"
    order: str = of.text(64)
    reason: str = of.text(512, default="")


@dataclass(frozen=True)
class Status(Message):
    """The answer to `AskStatus`: the JSON lies in the sealed memfd of this packet."""

    type: ClassVar[str] = "status-report"
    nbytes: int = of.count()
