"""The key-value store that the ranks met in, for what they arrange without a collective."""

from typing import Protocol

import torch.distributed as dist


class KeyStore(Protocol):
    """As much of torch's stores as is used here. Raises RuntimeError where the store is gone."""

    def set(self, key: str, value: str, /) -> None:
        """Write it, whatever was there."""
        ...

    def get(self, key: str, /) -> bytes:
        """Read it; waits for it where it is not there, so `check` first."""
        ...

    def add(self, key: str, amount: int, /) -> int:
        """Add to a count that starts at 0; returns the sum."""
        ...

    def check(self, keys: list[str], /) -> bool:
        """Whether all of them are there."""
        ...

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Write *desired* where *expected* is; "" is where nothing is. Returns what is there."""
        ...

    def delete_key(self, key: str, /) -> bool:
        """Forget it."""
        ...


def keystore(prefix: str, *, own: bool = False) -> KeyStore:
    """The default process group's store, below *prefix*.

    Args:
        own: With a connection of its own, for a thread: else each call waits for the others'.
    """
    # torch has no public name for it, and a second store would want a second address.
    from torch.distributed.distributed_c10d import _get_default_store

    store = _get_default_store()
    if own and hasattr(store, "clone"):  # since torch 2.10
        store = store.clone()
    below: KeyStore = dist.PrefixStore(prefix, store)  # type: ignore[attr-defined] # public, but not in __all__
    return below
