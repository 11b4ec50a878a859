"""Which generations could be restored, and whether not finding one is an error. One rank asks the stores."""

import hashlib
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass

from evac.commit import State, finish, foreign, was_ever_complete
from evac.commit.judge import by_generation, of_weights, pending_name
from evac.commit.reading import Loaded, load
from evac.errors import EvacError, GenerationError, StoreError, StoreMissing
from evac.generation import METADATA, WEIGHTS, Generation
from evac.manifest import FULL, Manifest
from evac.store import Store
from evac.torch.blocking import first
from evac.torch.holdings import Candidate, Holding, Kept, Made, candidates
from evac.torch.reader_bodies import Contents, Sums, opened

log = logging.getLogger("evac")


@dataclass(frozen=True)
class Torn:
    """What one store has of a generation is not whole by itself."""

    generation: Generation
    kind: str
    reason: str


@dataclass(frozen=True)
class Found:
    """What a look through the stores gave. Travels between ranks.

    Attributes:
        stores: Those that were looked through.
        trouble: Why starting over would be wrong where nothing is whole.
    """

    stores: frozenset[str]
    holdings: tuple[Holding, ...]
    torn: tuple[Torn, ...]
    trouble: tuple[str, ...]


@dataclass(frozen=True)
class Choices:
    """What may be restored.

    Attributes:
        candidates: Newest first; of equals, whole ones first.
        trouble: Why starting over would be wrong where there is no candidate; "" where not.
        torn: What lies there and cannot be used, for the person who reads the log.
    """

    candidates: tuple[Candidate, ...]
    trouble: str
    torn: str


async def find(urls: Sequence[str], prefix: str) -> Found:
    """Look through all stores; what lacks only its last file is completed on the way.

    Raises:
        ConfigError: A store cannot be opened: its kind, its URL, packages that are not installed.
    """
    holdings: list[Holding] = []
    torn: list[Torn] = []
    trouble: list[str] = []
    for url in urls:
        store = opened(url)
        try:
            async for loaded in _each(store, prefix):
                status = loaded.status
                whole = await _whole(store, prefix, loaded)
                if not whole:
                    torn.append(Torn(status.generation, status.kind or FULL, status.reason))
                holdings += _holding(url, loaded, whole=whole)
            if await was_ever_complete(store, prefix):
                trouble.append(f"{url}: a generation of this job was complete once")
            elif strange := await foreign(store, prefix):
                trouble.append(f"{url}: files that are not evac's: {strange[0]}")
        except* StoreError as group:
            error = first(group)
            trouble.append(f"{url}: {error}")
            log.warning("%s cannot be looked through: %s", url, error)
    return Found(frozenset(urls), tuple(holdings), tuple(torn), tuple(trouble))


def choices(found: Found, near: Iterable[Holding], *, weights: bool) -> Choices:
    """Judge what stores and memory have together.

    Args:
        near: What all nodes have in memory.
        weights: Weights without the rest will do.
    """
    whole = candidates([*near, *found.holdings])
    full = {one.generation for one in whole if one.kind == FULL}
    trouble, torn = [], []
    for one in whole:
        if one.kind != FULL and not weights and one.generation not in full:
            torn.append(f"{one.generation}: weights only")
            trouble.append(
                f"{' and '.join(one.places)}: of {one.generation} the weights are whole, and no "
                "more: restore(allow_weights_only=True) takes them"
            )
    done = {(one.generation, one.kind) for one in whole}
    torn += [
        f"{one.generation}: {one.reason}"
        for one in found.torn
        if (one.generation, one.kind) not in done
    ]
    usable = tuple(one for one in whole if one.kind == FULL or weights)
    return Choices(usable, "; ".join([*trouble, *found.trouble]), "; ".join(torn))


async def describe(candidate: Candidate, stores: Iterable[str], prefix: str) -> Contents:
    """Read what describes a generation, no body.

    Args:
        stores: Of the places that have it those that are stores.

    Returns:
        Its contents; without the bytes of `.metadata`, where no store has them.
    """
    made = candidate.made
    folder = f"{prefix}/{made.generation.folder(made.kind)}"
    bodies: dict[str, Sums] = {}
    has: dict[str, frozenset[str]] = {}
    metadata = b""
    for url in stores:
        try:
            store = opened(url)
            loaded = await load(store, prefix, made.generation, made.kind)
            there = _sums(loaded, made)
            has[url] = frozenset(n for n, its in there.items() if bodies.setdefault(n, its) == its)
            metadata = metadata or await _metadata(store, folder, made)
        except* EvacError as group:
            log.warning("%s: %s", url, first(group))
    for one in candidate.holdings:
        for name, kept in one.files.items():
            bodies.setdefault(name, Sums(kept.nbytes, ()))
    return Contents(folder, metadata, bodies, has)


async def _metadata(store: Store, folder: str, made: Made) -> bytes:
    """The bytes of `.metadata`, or those left for it; b"" where they are not here, or damaged."""
    for name in (METADATA, pending_name(made.metadata)) if made.metadata else ():
        try:
            data = await store.get(f"{folder}/{name}")
        except StoreMissing:
            continue
        if hashlib.sha256(data).hexdigest() == made.metadata:
            return data
        log.warning("%s/%s: SHA-256 does not match", folder, name)
    return b""


async def _each(store: Store, prefix: str) -> AsyncIterator[Loaded]:
    """Every generation of the job, newest first; then its weights, where these are all it has."""
    for generation, files in by_generation(prefix, await store.list(prefix)).items():
        weights = of_weights(files)
        if len(files) > len(weights):
            full = await load(store, prefix, generation)
            yield full
            if full.status.state in (State.COMPLETE, State.FINISHABLE):
                continue
        if weights:
            yield await load(store, prefix, generation, WEIGHTS)


async def _whole(store: Store, prefix: str, loaded: Loaded) -> bool:
    status = loaded.status
    if status.state is not State.FINISHABLE:
        return status.state is State.COMPLETE
    try:
        return await finish(store, prefix, status.generation, kind=status.kind)
    except GenerationError as error:
        log.warning("%s", error)
        return False


def _holding(url: str, loaded: Loaded, *, whole: bool) -> list[Holding]:
    """What a store has of a generation; nothing where parts of several lie there.

    Args:
        whole: What it needs beside its files is there.
    """
    status = loaded.status
    manifests = list(loaded.manifests.values())
    if not manifests or status.state is State.MIXED:
        return []
    one, made = manifests[0], _made(manifests[0])
    files = {name: Kept(its.nbytes, _digest(its)) for name, its in _sums(loaded, made).items()}
    ranks = (m.rank for m in manifests if all(file.name in files for file in m.files))
    left = (METADATA, pending_name(one.metadata_sha256))
    described = whole or (
        # What could not be finished with it is not it.
        status.state is not State.FINISHABLE
        and any(loaded.files.get(name) == one.metadata_nbytes for name in left)
    )
    return [Holding(url, made, frozenset(ranks), files, described)]


def _sums(loaded: Loaded, made: Made) -> Mapping[str, Sums]:
    """Of the files that are there, as long as their manifests say."""
    return {
        file.name: Sums(file.nbytes, file.crc32c)
        for manifest in loaded.manifests.values()
        if _made(manifest) == made
        for file in manifest.files
        if loaded.files.get(file.name) == file.nbytes
    }


def _made(one: Manifest) -> Made:
    return Made(one.generation, one.kind, one.run, one.layout, one.world, one.metadata_sha256)


def _digest(sums: Sums) -> str:
    return hashlib.sha256(repr(sums.crc32c).encode()).hexdigest()
