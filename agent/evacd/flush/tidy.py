"""Ends what a killed predecessor left in a store: torn files go, and whole generations count."""

from collections.abc import Callable
from dataclasses import dataclass

from evac.commit import finish_all, jobs
from evac.errors import EvacError
from evac.generation import Generation
from evac.store import Store
from evacd.flush.measure import PROBES, is_probe


@dataclass(frozen=True)
class Tidied:
    """What was found.

    Attributes:
        removed: Files that killed writers of ours had left, probes included.
        finished: Prefix and generation of what only lacked its last file.
        reason: What could not be looked at; "" where all could.
    """

    removed: int = 0
    finished: tuple[tuple[str, Generation], ...] = ()
    reason: str = ""


async def tidy(store: Store, *, node: str, stop: Callable[[], bool] = lambda: False) -> Tidied:
    """Look through the whole store; one job that cannot be read costs no other anything.

    Args:
        node: Whose old probes are ours.
        stop: Asked between two jobs: whether the link is wanted for something better.
    """
    finished: list[tuple[str, Generation]] = []
    reasons: list[str] = []
    removed = 0
    try:
        removed = await store.clean()
        for entry in await store.list(PROBES):
            if is_probe(entry.key, node):
                await store.delete(entry.key)
                removed += 1
        prefixes = await jobs(store)
    except EvacError as error:
        return Tidied(removed, reason=str(error))
    for prefix in prefixes:
        if stop():
            break
        try:
            finished += [(prefix, generation) for generation in await finish_all(store, prefix)]
        except EvacError as error:
            reasons.append(str(error))
    return Tidied(removed, tuple(finished), "; ".join(reasons))
