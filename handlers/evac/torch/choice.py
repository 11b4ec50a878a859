"""Which staged generation do all ranks commit, where no daemon plans it?

A rank that picked for itself would pick another one than its neighbour, and none would ever
be whole. So rank 0 picks and publishes; the others follow. Ranks train in step: when one of
them stages generation n + 1, rank 0 has finished staging n, so what it has not picked by the
time that n + 2 is staged it never will.
"""

from typing import Protocol

import torch.distributed as dist

from evac.torch.world import World

_YES = "1"


class Choice(Protocol):
    """May be called from any thread; never waits for another rank."""

    @property
    def leads(self) -> bool:
        """Whether this rank picks."""
        ...

    def choose(self, step: int) -> None:
        """Publish the pick."""
        ...

    def chosen(self, step: int) -> bool:
        """Whether *step* was picked."""
        ...

    def end(self) -> None:
        """This rank has ended: it picks nothing more, or listens no more."""
        ...

    def ended(self) -> bool:
        """Whether the others have: for the leader all of them, for them the leader."""
        ...


class _Store(Protocol):
    """As much of torch's key-value stores as is used here."""

    def set(self, key: str, value: str, /) -> None: ...

    def check(self, keys: list[str], /) -> bool: ...


class Alone:
    """The choice of a world of one."""

    leads = True

    def choose(self, step: int) -> None:
        """See `Choice.choose`."""

    def chosen(self, step: int) -> bool:
        """See `Choice.chosen`."""
        return True

    def end(self) -> None:
        """See `Choice.end`."""

    def ended(self) -> bool:
        """See `Choice.ended`."""
        return True


class Shared:
    """Through the store that the ranks met in; where the store is gone, so is its rank."""

    def __init__(self, store: _Store, *, rank: int, world: int) -> None:
        self.leads = rank == 0
        self._store = store
        self._mine = f"end-{rank}"
        self._theirs = [f"end-{one}" for one in (range(1, world) if self.leads else [0])]

    def choose(self, step: int) -> None:
        """See `Choice.choose`."""
        self._store.set(str(step), _YES)

    def chosen(self, step: int) -> bool:
        """See `Choice.chosen`."""
        return self._has([str(step)], gone=False)

    def end(self) -> None:
        """See `Choice.end`."""
        try:
            self._store.set(self._mine, _YES)
        except RuntimeError:  # the store lived in a rank that is gone
            return

    def ended(self) -> bool:
        """See `Choice.ended`."""
        return self._has(self._theirs, gone=True)

    def _has(self, keys: list[str], *, gone: bool) -> bool:
        try:
            return self._store.check(keys)
        except RuntimeError:
            return gone


def choice(world: World, incarnation: int) -> Choice:
    """The choice for this world; incarnations do not hear each other."""
    if world.size == 1:
        return Alone()
    from torch.distributed.distributed_c10d import _get_default_store

    store: _Store = dist.PrefixStore(  # type: ignore[attr-defined] # public, but not in __all__
        f"evac/{incarnation}", _get_default_store()
    )
    return Shared(store, rank=world.rank, world=world.size)
