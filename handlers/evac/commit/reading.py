"""Reading what a store holds: manifests and sizes, never bodies."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass

from evac.commit.judge import (
    CLAIM,
    GenerationStatus,
    State,
    by_generation,
    is_ours,
    judge,
    manifest_rank,
    of_weights,
    pending_name,
)
from evac.commit.known import Known
from evac.errors import GenerationError, StoreMissing
from evac.generation import MARKER, METADATA, WEIGHTS, Generation
from evac.groups import one_error
from evac.manifest import FULL, Manifest
from evac.store import Store

# Requests on their way at once: enough to hide an object store's latency.
WINDOW = 32
# Of a store that a whole fleet shares, so many names are looked at before others have their turn: some milliseconds.
_AT_ONCE = 1000


@dataclass(frozen=True)
class Loaded:
    """A generation, or its weights alone, as it was found.

    Attributes:
        folder: Its key in the store.
        files: Names and sizes of all that lies in its folder.
        manifests: The sound ones, by rank.
        lacks_only_metadata: It is complete, or would be with `.metadata`.
    """

    status: GenerationStatus
    folder: str
    files: Mapping[str, int]
    manifests: Mapping[int, Manifest]
    lacks_only_metadata: bool


async def load(store: Store, prefix: str, generation: Generation, kind: str = FULL) -> Loaded:
    """List the folder of one generation, or of its weights, read the manifests and judge them."""
    entries = await store.list(f"{prefix}/{generation.folder(kind)}")
    files = by_generation(prefix, entries).get(generation, {})
    return await _load(store, prefix, generation, files, kind)


async def survey(
    store: Store,
    prefix: str,
    *,
    only: Callable[[Mapping[str, int]], bool] = lambda _: True,
    among: Collection[Generation] | None = None,
    known: Known | None = None,
) -> tuple[GenerationStatus, ...]:
    """Every generation of a job, newest first; then its weights, where these are all it has.

    Args:
        only: By the names and sizes of what lies in its folder, whether to look at it at all.
        among: Look at these alone.
        known: What earlier surveys of this job in this store have found; this one adds to it.
    """
    there = by_generation(prefix, await store.list(prefix))
    if known is not None:
        known.only(there)
    wanted = {
        generation: files
        for generation, files in there.items()
        if only(files) and (among is None or generation in among)
    }
    return tuple([status async for status in _judged(store, prefix, wanted, known or Known())])


async def newest_complete(
    store: Store, prefix: str, *, below: Generation | None = None, kind: str = "full"
) -> Generation | None:
    """The generation to restore; None where there is none.

    A FINISHABLE one is passed over: call `finish` on those first.

    Args:
        below: Only older ones: where the newest turned out to be corrupt.
        kind: ``full``, or ``weights`` for one of which only these are whole.
    """
    there = by_generation(prefix, await store.list(prefix))
    wanted = {one: files for one, files in there.items() if below is None or one < below}
    async for status in _judged(store, prefix, wanted, Known()):
        if status.state is State.COMPLETE and status.kind == kind:
            return status.generation
    return None


async def was_ever_complete(store: Store, prefix: str) -> bool:
    """Whether the job's marker is there: then a store without generations has lost some."""
    try:
        await store.get(f"{prefix}/{MARKER}")
    except StoreMissing:
        return False
    return True


async def marker(store: Store, prefix: str) -> Generation | None:
    """The generation that the job's marker names; None where it is missing or damaged."""
    try:
        document = json.loads(await store.get(f"{prefix}/{MARKER}"))
        return Generation.parse(document["newest"])
    except (StoreMissing, ValueError, KeyError, TypeError):
        return None


async def jobs(store: Store) -> tuple[str, ...]:
    """The prefixes under which generations lie, sorted."""
    found: set[str] = set()
    for number, entry in enumerate(await store.list("")):
        if not number % _AT_ONCE:
            await asyncio.sleep(0)
        above, _, name = entry.key.rpartition("/")
        prefix, _, folder = above.removesuffix(f"/{WEIGHTS}").rpartition("/")
        if prefix and Generation.parse(folder) is not None and is_ours(name):
            found.add(prefix)
    return tuple(sorted(found))


async def foreign(store: Store, prefix: str) -> tuple[str, ...]:
    """Keys under a job's prefix that nothing of ours would write, sorted."""
    found = []
    for entry in await store.list(prefix):
        first, _, name = entry.key.removeprefix(f"{prefix}/").partition("/")
        if name:
            ours = Generation.parse(first) is not None and is_ours(name)
        else:
            ours = first == MARKER or CLAIM.fullmatch(first) is not None
        if not ours:
            found.append(entry.key)
    return tuple(found)


async def _judged(
    store: Store, prefix: str, found: Mapping[Generation, Mapping[str, int]], known: Known
) -> AsyncIterator[GenerationStatus]:
    """One after the other, and of each its weights where these are all it has.

    Args:
        found: Names and sizes of what lies in their folders.
    """

    async def look(generation: Generation, kind: str) -> GenerationStatus:
        files = found[generation]
        status = known.get(generation, kind, files)
        if status is None:
            status = (await _load(store, prefix, generation, files, kind)).status
            known.note(status, files)
        return status

    for generation, files in found.items():
        weights = any(manifest_rank(name) is not None for name in of_weights(files))
        whole = False
        if not weights or not files.keys() <= {f"{WEIGHTS}/{name}" for name in of_weights(files)}:
            full = await look(generation, FULL)
            whole = full.state in (State.COMPLETE, State.FINISHABLE)
            yield full
        if weights and not whole:
            yield await look(generation, WEIGHTS)


async def _load(
    store: Store, prefix: str, generation: Generation, files: Mapping[str, int], kind: str
) -> Loaded:
    """Judge what lies there.

    Args:
        files: In the generation's own folder, whichever *kind* is asked for.
    """
    folder = f"{prefix}/{generation.folder(kind)}"
    files = of_weights(files) if kind == WEIGHTS else files
    manifests = await _manifests(store, folder, files)
    status = judge(generation, files, manifests, kind)
    sound = {rank: m for rank, m in manifests.items() if isinstance(m, Manifest)}
    whole = status.state in (State.COMPLETE, State.FINISHABLE)
    if not whole and METADATA not in files and 0 in sound:
        # Judge it as if the bytes had been left.
        left = {**files, pending_name(sound[0].metadata_sha256): sound[0].metadata_nbytes}
        whole = judge(generation, left, manifests, kind).state is State.FINISHABLE
    return Loaded(status, folder, files, sound, lacks_only_metadata=whole)


async def _manifests(
    store: Store, folder: str, files: Mapping[str, int]
) -> dict[int, Manifest | GenerationError]:
    found: dict[int, Manifest | GenerationError] = {}
    window = asyncio.Semaphore(WINDOW)

    async def fetch(rank: int, name: str) -> None:
        key = f"{folder}/{name}"
        async with window:
            try:
                found[rank] = Manifest.decode(await store.get(key), where=key)
            except StoreMissing:
                found[rank] = GenerationError(key, "manifest was removed while it was looked at")
            except GenerationError as error:
                found[rank] = error

    with one_error():
        async with asyncio.TaskGroup() as tasks:
            for name in files:
                rank = manifest_rank(name)
                if rank is not None:
                    tasks.create_task(fetch(rank, name))
    return found
