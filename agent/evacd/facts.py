"""What crosses the daemon's seams: frozen values, in the order of the path.

notice → order → plan → flush → commit → report. All times are seconds on the monotonic
clock, all sizes bytes. Nothing here opens, waits or logs.
"""

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Literal, TypeAlias

from evac.generation import Generation

# --- notice -----------------------------------------------------------------------------


class Confidence(IntEnum):
    """How sure a notice is, and so what it may start."""

    ADVISORY = 1
    PLANNED = 2
    CERTAIN = 3
    STARTED = 4

    @property
    def word(self) -> str:
        """As it stands on the wire and in logs."""
        return self.name.lower()


class Scope(StrEnum):
    """What an order empties."""

    NODE = "node"
    WORKLOAD = "workload"


@dataclass(frozen=True)
class Notice:
    """One fact from one source.

    Attributes:
        source: Who says so: ``gcp``, ``aws``, ``operator``.
        kind: The source's own word: ``preempted``, ``drain``.
        id: Stable for one event; never contains its time field.
        confidence: What it may start.
        deadline: When the machine goes, or None where the notice has no usable time.
        seen: When this daemon first saw it.
        detail: For people; may be empty.
    """

    source: str
    kind: str
    id: str
    confidence: Confidence
    deadline: float | None
    seen: float
    detail: str = ""


@dataclass(frozen=True)
class Quiet:
    """The source answered: there is no notice."""

    source: str


@dataclass(frozen=True)
class Noticed:
    """The source answered: there is one."""

    notice: Notice


@dataclass(frozen=True)
class Cancelled:
    """The source took a notice back, explicitly."""

    source: str
    id: str
    reason: str = ""


@dataclass(frozen=True)
class Unknown:
    """The source did not answer in a way that means anything: neither fires nor clears.

    Attributes:
        reason: What happened, in a few words.
        cure: What a person can most likely do about it; may be empty.
    """

    source: str
    reason: str
    cure: str = ""


Probe: TypeAlias = Quiet | Noticed | Cancelled | Unknown

# --- order ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Order:
    """The one evacuation order that many notices become.

    Attributes:
        id: Stable over its amendments.
        deadline: When the machine is expected to go; may already be past.
        confidence: The highest of its notices.
        source: Of the notice that set the deadline.
        kind: Of that notice.
        given: When the order was given.
        amendments: How often the deadline was shortened or the confidence raised.
    """

    id: str
    deadline: float
    confidence: Confidence
    source: str
    kind: str
    given: float
    scope: Scope = Scope.NODE
    amendments: int = 0


# --- plan -------------------------------------------------------------------------------


# ``full``: all that nobody else holds of a generation. ``weights``: the weights alone, worth
# having where nothing full gets out. ``held``: the rest of a full one, which survivors hold.
Kind: TypeAlias = Literal["full", "weights", "held"]


@dataclass(frozen=True)
class Candidate:
    """A generation that every rank of the job on this node holds complete, or its weights.

    Attributes:
        nbytes: What is still to be written: bytes that neither a durable store nor a survivor
            holds.
        kind: How much of the generation that is.
        held_nbytes: What survivors hold of it, beside `nbytes`: it goes after everybody's own
            bytes, or not at all.
        begun: The lane on which it is moving, and what is left there; None where it is not.
        there: Lanes in whose stores part of it lies already, from a try that has ended, and how
            many bytes: these do not move again.
    """

    generation: Generation
    nbytes: int
    kind: Kind = "full"
    held_nbytes: int = 0
    begun: tuple[str, int] | None = None
    there: tuple[tuple[str, int], ...] = ()

    def left_on(self, lane: str) -> int:
        """Bytes that *lane* would have to carry."""
        if self.begun is not None and self.begun[0] == lane:
            return self.begun[1]
        there = max((nbytes for other, nbytes in self.there if other == lane), default=0)
        return max(self.nbytes - there, 0)


@dataclass(frozen=True)
class Unit:
    """A job's ranks on this node: what is saved or lost as one.

    Attributes:
        name: ``<owner>/<job>``; unique on the node.
        priority: Higher goes first.
        arrived: When its first rank registered; the earlier goes first among equals.
        lanes: URLs of the stores that it may go to, the most preferred one first.
        candidates: Newest first; empty where nothing is complete.
        turn_seconds: Callback mode: how long its own flush takes, at most; None if staged.
        callers: Likewise: its callback workloads on board, by ids that none of a later one's is.
        empty_because: Why there is no candidate, for the report.
        durable: The newest generation that is whole in a durable store; None before the first.
        durable_in: That store's URL; "" where nobody knows.
        deadline: Its own, where it leaves before the rest of the node; the sooner one counts.
        agreed: What all nodes of the job that leave go with, if they can; None for the newest.
        alone: All ranks of the job are on this node.
    """

    name: str
    priority: int
    arrived: float
    lanes: tuple[str, ...]
    candidates: tuple[Candidate, ...] = ()
    turn_seconds: float | None = None
    callers: frozenset[int] = frozenset()
    empty_because: str = "nothing was staged"
    durable: Generation | None = None
    durable_in: str = ""
    deadline: float | None = None
    agreed: Generation | None = None
    alone: bool = False


@dataclass(frozen=True)
class Step:
    """One unit's time on one lane.

    Attributes:
        generation: What is flushed; None for a callback workload's turn.
        starts: Planned; monotonic seconds.
        ends: Planned, its commit included.
        overtime: Planned to end after the deadline.
        kind: How much of the generation.
    """

    unit: str
    lane: str
    generation: Generation | None
    nbytes: int
    starts: float
    ends: float
    overtime: bool = False
    kind: Kind = "full"


@dataclass(frozen=True)
class GivenUp:
    """A unit for which nothing can be done, or not in time, and why."""

    unit: str
    reason: str


@dataclass(frozen=True)
class Plan:
    """Who goes when, over which lane.

    Attributes:
        steps: In the order of their start; on one lane they never overlap.
        given_up: Units with no step that ends in time. A unit that also has an overtime
            step is tried after all others.
    """

    steps: tuple[Step, ...]
    given_up: tuple[GivenUp, ...] = ()


# What was tried and failed, or was given up for something better: unit, generation, kind, lane.
Try: TypeAlias = tuple[str, Generation | None, Kind, str]

# --- flush and commit -------------------------------------------------------------------


@dataclass(frozen=True)
class Kept:
    """A unit whose bytes are safe.

    Attributes:
        generation: None for a callback workload, which knows best what it wrote.
        seconds: What it took.
        durable: The whole generation, all ranks of the job, is complete in the store; else
            the ranks of other nodes are still missing there.
        store: URL of the store; "" for a callback workload.
        kind: How much of the generation is safe: ``full``, or the ``weights`` alone.
        already: Bytes of it that were durable before, and did not have to move; 0 also where
            nobody knows how many.
    """

    unit: str
    generation: Generation | None
    nbytes: int
    seconds: float
    durable: bool = True
    store: str = ""
    kind: Kind = "full"
    already: int = 0


@dataclass(frozen=True)
class Lost:
    """A unit that did not make it, and why."""

    unit: str
    reason: str


Outcome: TypeAlias = Kept | Lost
