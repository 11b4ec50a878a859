"""What a store must be able to do for a job's nodes to meet in it."""

from collections.abc import Sequence
from typing import Protocol

from evac.errors import EvacError


class Unreachable(EvacError):
    """The store does not answer; worth another try, over another connection."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}")
        self.where = where
        self.reason = reason


class Refused(Unreachable):
    """The store's machine answers, and says that nobody serves there: whoever did has ended."""


class Denied(Unreachable):
    """It answers, and lets nobody in who comes like this: no soon try can help, but a person can."""


class Keys(Protocol):
    """One connection to one job's keys. One thread at a time; all but `wait` return soon.

    Every method raises `Unreachable` where the store does not answer.
    """

    def create(self, key: str, value: bytes) -> bytes:
        """Write *value* unless the key is there already; what it holds now."""
        ...

    def replace(self, key: str, before: bytes, value: bytes) -> bool:
        """Write *value* if the key holds *before*, or is not there where that is empty; whether it did."""
        ...

    def put(self, key: str, value: bytes) -> None:
        """Write, whatever was there."""
        ...

    def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """What each holds now; None where it is not there."""
        ...

    def wait(self, key: str) -> None:
        """Block until the key is there, or `Unreachable`."""
        ...

    def delete(self, *keys: str) -> None:
        """Remove them; nothing where they are not there."""
        ...

    def clear(self) -> bool:
        """Remove all keys of the job at once; False where the store cannot."""
        ...

    def keep(self) -> None:
        """The job lives: said every few seconds, to a store that forgets those of which nobody says so."""
        ...

    def close(self) -> None:
        """End the connection; a `wait` that runs in another thread may end with it, or later."""
        ...
