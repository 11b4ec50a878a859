"""All ranks look for what could be restored, and hear of it alike. Every function is a collective."""

import hashlib
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace

from evac.commit import Problem
from evac.generation import METADATA
from evac.torch import blocking
from evac.torch.candidates import Choices, Found, choices, describe, find
from evac.torch.holdings import Candidate, Holding
from evac.torch.local_memory import LocalMemory
from evac.torch.reader_bodies import Contents
from evac.torch.world import World


@dataclass(frozen=True)
class Looked:
    """What there is.

    Attributes:
        stores: Those of the places that are stores.
        near: What this rank has in its own node's memory.
    """

    choices: Choices
    stores: frozenset[str]
    near: tuple[Holding, ...]


def look_for(
    world: World, memory: LocalMemory, stores: Sequence[str], prefix: str, *, weights: bool
) -> Looked:
    """What stores and all nodes' memory have; rank 0 looks through the stores.

    Args:
        weights: Weights without the rest will do.

    Raises:
        GenerationError: On all ranks alike: a store cannot be opened.
    """
    found: Found = world.led(prefix, lambda: blocking.run(lambda: find(stores, prefix)))
    near = world.each(prefix, lambda: memory.holdings(world.node))
    everybody = choices(found, _of_all(world, near), weights=weights)
    return Looked(everybody, found.stores, tuple(near))


def described(
    world: World, memory: LocalMemory, candidate: Candidate, looked: Looked, prefix: str
) -> Contents | tuple[Problem, ...]:
    """What describes a generation, on all ranks alike; or why it cannot be restored."""
    stores = [place for place in candidate.places if place in looked.stores]
    contents: Contents = world.led(
        prefix, lambda: blocking.run(lambda: describe(candidate, stores, prefix))
    )
    if contents.metadata or not candidate.made.metadata:
        return contents
    mine = world.each(prefix, lambda: memory.metadata(candidate.made))
    have = world.gather(bool(mine))
    if not any(have):
        reason = "is nowhere, or damaged everywhere: SHA-256 does not match"
        return (Problem(f"{contents.folder}/{METADATA}", reason),)
    teller = have.index(True)
    metadata = world.gather(mine if world.rank == teller else b"")[teller]
    return replace(contents, metadata=metadata)


def _of_all(world: World, near: Sequence[Holding]) -> list[Holding]:
    """What all nodes have in memory; of ranks that have the same, one speaks."""
    digest = hashlib.sha256(pickle.dumps(_plain(near))).digest()
    same = world.gather(digest)
    speaks = same.index(digest) == world.rank
    return [one for some in world.gather(near if speaks else []) for one in some]


def _plain(near: Sequence[Holding]) -> list[object]:
    return [
        (one.place, one.made, sorted(one.ranks), sorted(one.files), sorted(one.names))
        for one in near
    ]
