"""Stores: where bytes are safe. One small file per kind; wrappers, not flags.

A key is a relative path of plain names joined by "/"; implementations refuse any other.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from evac.errors import ConfigError
from evac.store.durability import is_durable as is_durable


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
            progress: Called with the number of further bytes written, from any thread but the
                event loop's; as long as it does not return, that thread writes no more. What it raises
                ends the put.
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

    async def prepare(self, prefix: str) -> None:
        """Make the place where the owner, by itself, may write below *prefix*.

        Nothing where a store has no owners. What is there already is left as it is.
        """
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
    """The store behind *url*.

    ``file:///absolute/path``, ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``az://container/prefix``, or a
    peer's memory, ``evac://host:port/prefix`` (``evac://job``: that of the job's other nodes); options follow as ``?endpoint=http://host:port&connections=8``
    ``&timeout=60``, for S3 ``region``, for Azure ``account``, for a peer ``token_file``. What opens a store never stands in its URL.

    Args:
        owner: Whose files and folders new ones become, where a store has such; the process's own by default.

    Raises:
        ConfigError: No such kind of store, a malformed URL, or the packages for it are not installed.
    """
    scheme, _, rest = url.partition("://")
    # Each library is loaded by the store that needs it, when a URL asks for that one.
    if scheme == "file":
        from evac.store.local import LocalStore

        if not rest.startswith("/"):
            raise ConfigError("store", url, "an absolute path: file:///mnt/checkpoints")
        return LocalStore(rest, owner=owner)
    if scheme == "s3":
        with _needs("s3"):
            from evac.store.s3 import S3Store
        return S3Store.from_url(url)
    if scheme == "gs":
        with _needs("gcs"):
            from evac.store.gcs import GcsStore
        return GcsStore.from_url(url)
    if scheme == "az":
        with _needs("azure"):
            from evac.store.azure import AzureStore
        return AzureStore.from_url(url)
    if scheme == "evac":
        with _needs("peer"):
            from evac.store.location import is_of_peers
            from evac.store.peer import PeerStore
            from evac.store.peer_group import PeerGroup
        return PeerGroup.from_url(url) if is_of_peers(url) else PeerStore.from_url(url)
    expected = "a URL of a kind that this version knows: file, s3, gs, az or evac"
    raise ConfigError("store", url, f"file://{url}" if os.path.isabs(url) else expected)


@contextmanager
def _needs(extra: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        cure = f"the packages of evac[{extra}]: pip install 'evac[{extra}]'"
        raise ConfigError("store", f"no module named {error.name}", cure) from error
