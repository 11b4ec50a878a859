"""Departure: tells the job's rendezvous that this node leaves, and what became of its bytes."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from evac.generation import Generation


class Word(StrEnum):
    """What a departure says. It never says "shutdown": the job goes on elsewhere.

    ``written`` is this node's share of a generation of which other nodes' shares are not in
    the store yet; only a whole generation is ``durable``.
    """

    LEAVING = "leaving"
    WRITTEN = "written"
    DURABLE = "durable"
    LOST = "lost"
    STAYING = "staying"


@dataclass(frozen=True)
class Departure:
    """One announcement about one job, or about the whole node where ``job`` is "".

    Attributes:
        node: Name of the node.
        boot: Kernel boot id: the same name after a reboot is another node.
        order: Id of the order.
        seconds_left: Until the deadline, when this was made.
        generation: The one that is flushed or was; None where there is none.
        store: Where it goes or went; "" where nowhere.
        reason: Why it was lost, or why the node stays.
        sequence: Rises from each word of this node to the next, over restarts of the daemon
            too, for as long as `boot` is the same: whoever was told a higher one drops this.
    """

    word: Word
    node: str
    boot: str
    order: str
    seconds_left: float
    job: str = ""
    generation: Generation | None = None
    store: str = ""
    reason: str = ""
    sequence: int = 0


@dataclass(frozen=True)
class Agreed:
    """What the nodes of a job that leave go with, as its rendezvous has it.

    Attributes:
        node: Whose choice it was.
        boot: Of that node.
    """

    job: str
    generation: Generation
    node: str
    boot: str


class Announcer(Protocol):
    """One rendezvous' way to be told. Failures are answers, not exceptions."""

    @property
    def name(self) -> str:
        """For logs and the report: ``webhook``, ``rendezvous``."""
        ...

    def concerns(self, departure: Departure) -> bool:
        """Whether there is anybody to tell of it; else it is not announced at all."""
        ...

    async def announce(self, departure: Departure) -> str | None:
        """Tell it; retried within the implementation's time limit. None, or what went wrong."""
        ...
