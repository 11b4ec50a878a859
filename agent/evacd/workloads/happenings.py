"""What the board tells its owner as it happens: frozen, and said once each."""

from dataclasses import dataclass
from typing import TypeAlias

from evac.generation import Generation


@dataclass(frozen=True)
class Joined:
    """A workload registered, or registered again after it lost its connection."""

    unit: str
    rank: int
    pid: int


@dataclass(frozen=True)
class Died:
    """A workload's process ended; what it had staged is kept for a while."""

    unit: str
    rank: int
    pid: int


@dataclass(frozen=True)
class Left:
    """A workload said that its work is finished.

    Attributes:
        calls: It is one that has turns, a callback workload.
    """

    unit: str
    rank: int
    calls: bool = False


@dataclass(frozen=True)
class StagedOne:
    """One rank holds one more complete generation."""

    unit: str
    rank: int
    generation: Generation


@dataclass(frozen=True)
class Dropped:
    """A connection was closed by the daemon; the process may live on.

    Attributes:
        pid: As the kernel names the peer; 0 where it lives outside the daemon's namespace.
    """

    pid: int
    reason: str
    uid: int


@dataclass(frozen=True)
class Denied:
    """A peer was refused what it asked for, and stays.

    Attributes:
        what: The word that was refused: ``register``, ``reserve``, ``staged``, ``adopt``.
        uid: Whose process it is.
    """

    what: str
    pid: int
    uid: int
    reason: str


Happening: TypeAlias = Joined | Died | Left | StagedOne | Dropped | Denied
