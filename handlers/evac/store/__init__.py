"""Stores: where bytes are safe. One small file per kind; wrappers, not flags.

A key is a relative path of plain names joined by "/"; implementations refuse any other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from evac.errors import ConfigError


@dataclass(frozen=True)
class Entry:
    """One object that a listing found."""

    key: str
    nbytes: int


@dataclass(frozen=True)
class Owner:
    """Whose files they shall be, where a store has file owners: the workload's."""

    uid: int
    gid: int


class Store(Protocol):
    """A flat, durable map from key to bytes.

    All methods raise `StoreUnavailable` (worth another try) or `StoreRejected` (not worth one).
    What a method has written when it returns survives a power loss.
    """

    @property
    def url(self) -> str:
        """What a person would configure, without secrets."""
        ...

    async def put(
        self, key: str, data: memoryview, *, progress: Callable[[int], None] | None = None
    ) -> None:
        """Write *data* (1-D, contiguous, uint8) under *key*: all of it, or nothing.

        Args:
            progress: Called from any thread with the number of further bytes written.
        """
        ...

    async def create(self, key: str, data: bytes) -> bool:
        """Write *data* only where nothing is under *key*; False where something is."""
        ...

    async def get(self, key: str) -> bytes:
        """Read a small object whole.

        Raises:
            StoreMissing: Nothing is under *key*.
        """
        ...

    async def read(self, key: str, offset: int, into: memoryview) -> int:
        """Fill *into* from byte *offset*; returns the bytes read, fewer only at the end."""
        ...

    async def list(self, prefix: str) -> Sequence[Entry]:
        """All objects whose key starts with ``<prefix>/`` ("" for all), sorted by key."""
        ...

    async def delete(self, key: str) -> None:
        """Forget *key*; it is no error that nothing is there."""
        ...

    async def clean(self, *, older_than: float = 60.0) -> int:
        """Remove what killed writers of ours left half written; others' things never.

        Args:
            older_than: Seconds since the last write to such a thing.

        Returns:
            How many were removed.
        """
        ...


def open_store(url: str, *, owner: Owner | None = None) -> Store:
    """The store behind *url* (``file:///absolute/path``).

    Args:
        owner: Whose files and folders new ones become; the process's own by default.

    Raises:
        ConfigError: No such kind of store, or a malformed URL.
    """
    scheme, _, rest = url.partition("://")
    if scheme == "file":
        from evac.store.local import LocalStore

        if not rest.startswith("/"):
            raise ConfigError("store", url, "an absolute path: file:///mnt/checkpoints")
        return LocalStore(rest, owner=owner)
    raise ConfigError("store", url, "a URL of a kind that this version knows: file://")
