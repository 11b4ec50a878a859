"""Ends what a killed predecessor left in a store: torn files go, and whole generations count."""

from dataclasses import dataclass

from evac.commit import finish_all, jobs
from evac.errors import EvacError
from evac.generation import Generation
from evac.store import Store


@dataclass(frozen=True)
class Tidied:
    """What was found.

    Attributes:
        removed: Files that killed writers of ours had left.
        finished: Prefix and generation of what only lacked its last file.
        reason: What could not be looked at; "" where all could.
    """

    removed: int = 0
    finished: tuple[tuple[str, Generation], ...] = ()
    reason: str = ""


async def tidy(store: Store) -> Tidied:
    """Look through the whole store; one job that cannot be read costs no other anything."""
    finished: list[tuple[str, Generation]] = []
    reasons: list[str] = []
    removed = 0
    try:
        removed = await store.clean()
        prefixes = await jobs(store)
    except EvacError as error:
        return Tidied(removed, reason=str(error))
    for prefix in prefixes:
        try:
            finished += [(prefix, generation) for generation in await finish_all(store, prefix)]
        except EvacError as error:
            reasons.append(str(error))
    return Tidied(removed, tuple(finished), "; ".join(reasons))
