"""Which staged generation do all ranks commit, where no daemon plans it?

A rank that picked for itself would pick another one than its neighbour, and none would ever
be whole. So rank 0 picks one at a time, and the next one only when all have done with the last.

Ranks train in step: when one of them stages generation n + 2, rank 0 has finished staging
n + 1. So of a pick that is out by then it is known that it is not n, and n may give way: with
three slots (the pick, n, n + 1) no rank ever has to leave out a generation that rank 0 may
still pick.
"""

from contextlib import suppress
from typing import Protocol

from evac.torch.keystore import KeyStore, keystore
from evac.torch.world import World

_YES = "1"


class Choice(Protocol):
    """Never waits for another rank; its caller sees to it that one thread at a time calls."""

    @property
    def leads(self) -> bool:
        """Whether this rank picks."""
        ...

    def settled(self) -> bool:
        """The leader asks: have all others done with the last pick?"""
        ...

    def pick(self, step: int) -> None:
        """The leader publishes its pick."""
        ...

    def picked(self) -> int | None:
        """The others ask: which step is the pick that this rank has not done with?"""
        ...

    def done(self) -> None:
        """The others say that they have done with it, whatever came of it."""
        ...

    def end(self) -> None:
        """This rank has ended: it picks nothing more, or listens no more."""
        ...

    def ended(self) -> bool:
        """Whether the others have: for the leader all of them, for them the leader."""
        ...


class Alone:
    """The choice of a world of one."""

    leads = True

    def settled(self) -> bool:
        """See `Choice.settled`."""
        return True

    def pick(self, step: int) -> None:
        """See `Choice.pick`."""

    def picked(self) -> int | None:
        """See `Choice.picked`."""
        return None

    def done(self) -> None:
        """See `Choice.done`."""

    def end(self) -> None:
        """See `Choice.end`."""

    def ended(self) -> bool:
        """See `Choice.ended`."""
        return True


class Shared:
    """Through the store that the ranks met in; where the store is gone, so is its rank."""

    def __init__(self, store: KeyStore, *, rank: int, world: int) -> None:
        self.leads = rank == 0
        self._store = store
        self._others = world - 1
        self._mine = f"end-{rank}"
        self._theirs = [f"end-{one}" for one in (range(1, world) if self.leads else [0])]
        # Of the last pick, for the leader; of the one to come or to be done with, for others.
        self._number = 0 if self.leads else 1
        self._pick: int | None = None

    def settled(self) -> bool:
        """See `Choice.settled`."""
        with suppress(RuntimeError):
            return not self._number or self._store.add(self._count, 0) >= self._others
        return False

    def pick(self, step: int) -> None:
        """See `Choice.pick`."""
        with suppress(RuntimeError):
            if self._number:
                # Everybody has read it.
                self._store.delete_key(self._key)
                self._store.delete_key(self._count)
            self._number += 1
            self._store.set(self._key, str(step))

    def picked(self) -> int | None:
        """See `Choice.picked`."""
        if self._pick is None:
            with suppress(RuntimeError):
                if self._store.check([self._key]):
                    self._pick = int(self._store.get(self._key))
        return self._pick

    def done(self) -> None:
        """See `Choice.done`."""
        if self.leads:
            return
        with suppress(RuntimeError):
            self._store.add(self._count, 1)
        self._number += 1
        self._pick = None

    def end(self) -> None:
        """See `Choice.end`."""
        with suppress(RuntimeError):
            self._store.set(self._mine, _YES)

    def ended(self) -> bool:
        """See `Choice.ended`."""
        with suppress(RuntimeError):
            return self._store.check(self._theirs)
        return True

    @property
    def _key(self) -> str:
        return f"pick-{self._number}"

    @property
    def _count(self) -> str:
        return f"done-{self._number}"


def choice(world: World, incarnation: int) -> Choice:
    """The choice for this world; incarnations do not hear each other."""
    if world.size == 1:
        return Alone()
    return Shared(keystore(f"evac/{incarnation}"), rank=world.rank, world=world.size)
