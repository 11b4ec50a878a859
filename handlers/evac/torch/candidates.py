"""Which generations could be restored, and whether not finding one is an error. One rank asks."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from evac.commit import GenerationStatus, State, finish, foreign, survey, was_ever_complete
from evac.errors import GenerationError, StoreError
from evac.generation import Generation
from evac.manifest import FULL
from evac.store import Store
from evac.torch.blocking import first
from evac.torch.reader_bodies import opened

log = logging.getLogger("evac")


@dataclass(frozen=True)
class Candidate:
    """A generation that looks whole.

    Attributes:
        store: URL of the store that holds it.
        world: How many ranks wrote it.
        kind: ``full``, or ``weights`` where these are all that is whole of it.
    """

    generation: Generation
    store: str
    world: int
    kind: str


@dataclass(frozen=True)
class Found:
    """What a look through the stores gave.

    Attributes:
        candidates: Newest first; of equals, whole ones first, and the preferred store's.
        trouble: Why starting over would be wrong where there is no candidate; "" where not.
        torn: What lies there and cannot be used, for the person who reads the log.
    """

    candidates: tuple[Candidate, ...]
    trouble: str
    torn: str


async def find(urls: Sequence[str], prefix: str, *, weights: bool) -> Found:
    """Look through all stores; what lacks only its last file is completed on the way.

    Args:
        weights: Weights without the rest will do.

    Raises:
        ConfigError: A store cannot be opened: its kind, its URL, packages that are not installed.
    """
    candidates: list[Candidate] = []
    trouble: list[str] = []
    torn: list[str] = []
    for url in urls:
        store = opened(url)
        try:
            for status in await survey(store, prefix):
                generation, kind = status.generation, status.kind
                if not await _whole(store, prefix, status):
                    torn.append(f"{generation}: {status.reason}")
                elif kind == FULL or weights:
                    candidates.append(Candidate(generation, url, status.world, kind))
                else:
                    torn.append(f"{generation}: weights only")
                    trouble.append(
                        f"{url}: of {generation} the weights are whole, and no more: "
                        "restore(allow_weights_only=True) takes them"
                    )
            if await was_ever_complete(store, prefix):
                trouble.append(f"{url}: a generation of this job was complete once")
            elif strange := await foreign(store, prefix):
                trouble.append(f"{url}: files that are not evac's: {strange[0]}")
        except* StoreError as group:
            error = first(group)
            trouble.append(f"{url}: {error}")
            log.warning("%s cannot be looked through: %s", url, error)
    order = sorted(candidates, key=preference, reverse=True)
    return Found(tuple(order), "; ".join(trouble), "; ".join(torn))


def preference(one: Candidate) -> tuple[Generation, bool]:
    """Greater is better: newer, and of equals the whole one."""
    return one.generation, one.kind == FULL


async def _whole(store: Store, prefix: str, status: GenerationStatus) -> bool:
    if status.state is not State.FINISHABLE:
        return status.state is State.COMPLETE
    try:
        return await finish(store, prefix, status.generation, kind=status.kind)
    except GenerationError as error:
        log.warning("%s", error)
        return False
