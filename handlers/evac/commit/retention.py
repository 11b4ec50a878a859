"""Forgetting generations that nobody will need; only rank 0's node does."""

from collections.abc import Callable

from evac.commit.judge import expendable, is_ours, manifest_rank
from evac.commit.known import Known
from evac.commit.reading import survey
from evac.generation import METADATA, WEIGHTS, Generation
from evac.store import Store


async def retain(
    store: Store,
    prefix: str,
    *,
    keep: int,
    known: Known | None = None,
    busy: Callable[[Generation], bool] = lambda _: False,
) -> tuple[Generation, ...]:
    """Delete what `expendable` names and nobody is at; returns that, oldest first.

    Only files with names that we give are deleted. A generation stops looking whole with its
    first file, wherever this is interrupted.

    Args:
        keep: Number of newest complete generations that stay, at least 1.
        known: As for `survey`.
        busy: Whether it is being written right now, torn as it is: that is left to the next time.
    """
    gone: list[Generation] = []
    for generation in expendable(await survey(store, prefix, known=known), keep=keep):
        if busy(generation):
            continue
        entries = await store.list(f"{prefix}/{generation.directory}")
        folder = f"{prefix}/{generation.directory}"
        names = [entry.key.removeprefix(f"{folder}/") for entry in entries]
        for name in sorted(filter(is_ours, names), key=_turn):
            await store.delete(f"{folder}/{name}")
        gone.append(generation)
    return tuple(gone)


def _turn(name: str) -> int:
    """Whatever could finish it, then `.metadata`, manifests, bodies; its weights' alike."""
    name = name.removeprefix(f"{WEIGHTS}/")
    if name == METADATA:
        return 1
    if name.startswith(METADATA):
        return 0
    return 2 if manifest_rank(name) is not None else 3
