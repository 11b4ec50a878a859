"""The seam to who keeps fds while this daemon is not there."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Given:
    """An fd that was kept for this daemon; it is the daemon's own now."""

    name: str
    fd: int


class FdStore(Protocol):
    """What is asked for is done in that order, and only `stop` blocks."""

    @property
    def waiting(self) -> int:
        """How much of what was asked for is not done yet."""
        ...

    def push(self, name: str, fd: int) -> None:
        """Keep *fd*, which may be closed at once."""
        ...

    def remove(self, name: str) -> None:
        """Forget all that was pushed under this name."""
        ...

    def stop(self) -> None:
        """Wait, but not for long, until all of it is done."""
        ...
