"""One memory budget per node: how many slots fit, and what has to go for them. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from evac.generation import Generation


@dataclass(frozen=True)
class Evictable:
    """A slot that may be freed for another workload's sake.

    Attributes:
        durable: Its generation, or a newer one of the job, is in a durable store.
    """

    key: int
    nbytes: int
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


def fit(*, free: int, each: int, wanted: int, evictable: Iterable[Evictable]) -> Fit | None:
    """As many slots as fit, at the price of as little as possible.

    Args:
        free: Bytes of the budget that nobody uses; may be negative.
        each: Bytes of one slot, whole pages.
        wanted: The most slots that are of use.

    Returns:
        None where not even one fits. Durable generations go first, then older before newer.
    """
    order = sorted(evictable, key=lambda one: (not one.durable, one.generation, one.key))
    reachable = free + sum(one.nbytes for one in order)
    slots = min(wanted, reachable // each)
    if slots < 1:
        return None
    evict: list[int] = []
    for one in order:
        if free >= slots * each:
            break
        evict.append(one.key)
        free += one.nbytes
    return Fit(slots, tuple(evict))


def human(nbytes: int) -> str:
    """Bytes for a person: ``1.5 GiB``."""
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} TiB"
