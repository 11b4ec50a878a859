"""Departure: tells the job's rendezvous that this node leaves, and what became of its bytes."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from evac.generation import Generation


class Word(StrEnum):
    """What a departure says. It never says "shutdown": the job goes on elsewhere."""

    LEAVING = "leaving"
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


class Announcer(Protocol):
    """One rendezvous' way to be told. Failures are answers, not exceptions."""

    @property
    def name(self) -> str:
        """For logs and the report: ``webhook``."""
        ...

    async def announce(self, departure: Departure) -> str | None:
        """Tell it; retried within the implementation's time limit. None, or what went wrong."""
        ...
