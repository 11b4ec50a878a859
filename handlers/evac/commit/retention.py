"""Forgetting generations that nobody will need; only rank 0's node does."""

from evac.commit.judge import expendable, is_ours, manifest_rank
from evac.commit.reading import survey
from evac.generation import METADATA, WEIGHTS, Generation
from evac.store import Store


async def retain(store: Store, prefix: str, *, keep: int) -> tuple[Generation, ...]:
    """Delete what `expendable` names; returns that, oldest first.

    Only files with names that we give are deleted. A generation stops looking whole with its
    first file, wherever this is interrupted.

    Args:
        keep: Number of newest complete generations that stay, at least 1.
    """
    doomed = expendable(await survey(store, prefix), keep=keep)
    for generation in doomed:
        entries = await store.list(f"{prefix}/{generation.directory}")
        folder = f"{prefix}/{generation.directory}"
        names = [entry.key.removeprefix(f"{folder}/") for entry in entries]
        for name in sorted(filter(is_ours, names), key=_turn):
            await store.delete(f"{folder}/{name}")
    return doomed


def _turn(name: str) -> int:
    """Whatever could finish it, then `.metadata`, manifests, bodies; its weights' alike."""
    name = name.removeprefix(f"{WEIGHTS}/")
    if name == METADATA:
        return 1
    if name.startswith(METADATA):
        return 0
    return 2 if manifest_rank(name) is not None else 3
