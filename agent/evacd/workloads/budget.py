"""One memory budget per node, and a share of it per user: how many slots fit, and what has to go.

Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from evac.generation import Generation


@dataclass(frozen=True)
class Evictable:
    """A slot that may be freed for another workload's sake.

    Attributes:
        mine: It counts against the share of the user who asks.
        durable: Its generation, or a newer one of the job, is in a durable store.
    """

    key: int
    nbytes: int
    mine: bool
    durable: bool
    generation: Generation


@dataclass(frozen=True)
class Fit:
    """What a reserve can have.

    Attributes:
        slots: How many, >= 1.
        evict: Keys of what must be freed first, in that order.
    """

    slots: int
    evict: tuple[int, ...]


@dataclass(frozen=True)
class Room:
    """So many bytes, and how many of them are taken; possibly more than there are."""

    nbytes: int
    used: int

    @property
    def free(self) -> int:
        """Bytes; may be negative."""
        return self.nbytes - self.used


def fit(
    *, budget: Room, share: Room, each: int, wanted: int, evictable: Iterable[Evictable]
) -> Fit | str:
    """As many slots as fit, at the price of as little as possible.

    What the share asks for goes first; then durable generations, then older before newer.

    Args:
        budget: Of the node.
        share: Of the user who asks; what is `mine` counts in it.
        each: Bytes of one slot, whole pages.
        wanted: The most slots that are of use.

    Returns:
        Why not, with the numbers, where not even one fits.
    """
    if wanted >= 1 and wanted * each <= min(budget.free, share.free):
        return Fit(wanted, ())  # nothing has to go, so nobody is asked for it
    order = sorted(evictable, key=lambda one: (not one.durable, one.generation, one.key))
    own = [one for one in order if one.mine]
    slots = wanted
    for whose, room, spare in (
        ("the budget of this node", budget, sum(one.nbytes for one in order)),
        ("your user's share of this node", share, sum(one.nbytes for one in own)),
    ):
        slots = min(slots, (room.free + spare) // each)
        if slots < 1:
            return (
                f"a slot of {human(each)} does not fit: {whose} is {human(room.nbytes)}, of which "
                f"{human(room.used)} are in use and {human(spare)} of those could be freed"
            )
    gone: dict[int, int] = {}
    for need, candidates in (
        (slots * each - share.free, own),
        (slots * each - budget.free, order),
    ):
        for one in candidates:
            if sum(gone.values()) >= need:
                break
            gone[one.key] = one.nbytes
    return Fit(slots, tuple(gone))


def human(nbytes: int) -> str:
    """Bytes for a person: ``1.5 GiB``."""
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} TiB"
