"""The life of one notice as a table; the node is where its furthest notice is."""

from collections.abc import Mapping
from enum import IntEnum, StrEnum


class State(IntEnum):
    """How far a notice has come, and so the node; without a cancel it only rises."""

    CALM = 0
    ADVISED = 1
    WAITING = 2
    LEAVING = 3

    @property
    def word(self) -> str:
        """As it stands in status and logs."""
        return self.name.lower()


class Event(StrEnum):
    """What can happen to a notice."""

    ADVISED = "advised"
    PLANNED = "planned"
    DUE = "due"
    CERTAIN = "certain"
    CANCELLED = "cancelled"


NEXT: Mapping[tuple[State, Event], State] = {
    (State.CALM, Event.ADVISED): State.ADVISED,
    (State.CALM, Event.PLANNED): State.WAITING,
    (State.CALM, Event.DUE): State.LEAVING,
    (State.CALM, Event.CERTAIN): State.LEAVING,
    (State.CALM, Event.CANCELLED): State.CALM,
    (State.ADVISED, Event.ADVISED): State.ADVISED,
    (State.ADVISED, Event.PLANNED): State.WAITING,
    (State.ADVISED, Event.DUE): State.LEAVING,
    (State.ADVISED, Event.CERTAIN): State.LEAVING,
    (State.ADVISED, Event.CANCELLED): State.CALM,
    (State.WAITING, Event.ADVISED): State.WAITING,
    (State.WAITING, Event.PLANNED): State.WAITING,
    (State.WAITING, Event.DUE): State.LEAVING,
    (State.WAITING, Event.CERTAIN): State.LEAVING,
    (State.WAITING, Event.CANCELLED): State.CALM,
    (State.LEAVING, Event.ADVISED): State.LEAVING,
    (State.LEAVING, Event.PLANNED): State.LEAVING,
    (State.LEAVING, Event.DUE): State.LEAVING,
    (State.LEAVING, Event.CERTAIN): State.LEAVING,
    (State.LEAVING, Event.CANCELLED): State.CALM,
}
