"""What is said to the daemon: by workloads, and by who administers the node."""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from evac.generation import BODY, NAME
from evac.wire import fields as of
from evac.wire.fields import Message


class Mode(StrEnum):
    """How a workload takes part."""

    STAGED = "staged"
    CALLBACK = "callback"


# --- workload -> daemon ---


@dataclass(frozen=True)
class Hello(Message):
    """First packet of a connection, answered by `Welcome` or `Refuse`."""

    type: ClassVar[str] = "hello"
    version: int = of.count(1, 1000)
    client: str = of.text(128, default="")


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
    job: str = of.text(63, NAME)
    rank: int = of.count(0, 10_000_000)
    world: int = of.count(1, 10_000_000)
    priority: int = of.count(-1_000_000, 1_000_000, default=0)
    mode: str = of.text(16, default=Mode.STAGED.value)
    run: str = of.text(128, default="")
    need_seconds: float = of.seconds(default=0.0)
    resume: bool = of.flag(default=False)
    rendezvous: str = of.text(512, default="")
    peers: tuple[str, ...] = of.texts(270, default=())


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
    nbytes: int = of.count(4096, 2**46)
    body: str = of.text(80, BODY)
    incarnation: int = of.count(default=0)
    slots: int = of.count(1, 16, default=3)
    layout: str = of.text(128, default="")


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
    slot: int = of.count(0, 1_000_000)
    step: int = of.count()
    every_seconds: float = of.seconds(default=0.0)
    stall_seconds: float = of.seconds(default=0.0)
    restart_seconds: float = of.seconds(default=0.0)
    between_seconds: float = of.seconds(default=0.0)
    stall_share: float = of.part(default=0.0)


@dataclass(frozen=True)
class Release(Message):
    """Give an acquired slot back unwritten, or end a loan. No answer."""

    type: ClassVar[str] = "release"
    slot: int = of.count(0, 1_000_000)


@dataclass(frozen=True)
class HandBack(Message):
    """After a `Register` that resumes: a slot of before, its memfd this packet's only fd.

    Answered by `Accepted`, and then it is as if the connection had never been lost, or by `Refuse`.

    Attributes:
        held: It was granted, and neither `Staged` nor `Release` was sent for it.
        last: No further one follows.
    """

    type: ClassVar[str] = "hand-back"
    slot: int = of.count(0, 1_000_000)
    held: bool = of.flag()
    last: bool = of.flag()


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
    turn: int = of.count(0)
    ok: bool = of.flag()
    nbytes: int = of.count(default=0)
    reason: str = of.text(512, default="")


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
    job: str = of.text(63, NAME)
    seconds: float = of.seconds()


@dataclass(frozen=True)
class Pin(Message):
    """Keep a generation that the job's nodes have agreed on. Answered by `Accepted` or `Refuse`.

    Attributes:
        prefix: Of the job in each store, as `Registered` told it.
        keep: False where nobody leaves with it after all.
    """

    type: ClassVar[str] = "pin"
    prefix: str = of.text(256)
    incarnation: int = of.count()
    step: int = of.count()
    keep: bool = of.flag(default=True)


# --- admin -> daemon (admin.sock only) ---


@dataclass(frozen=True)
class Drain(Message):
    """Evacuate now, as if a notice with this many seconds had come."""

    type: ClassVar[str] = "drain"
    seconds: float = of.seconds()
    reason: str = of.text(256, default="")


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
    seconds: float = of.seconds(default=0.0)
    flush: bool = of.flag(default=False)
