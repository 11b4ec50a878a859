"""Committing: bodies first, then manifests, `.metadata`, and last the job's marker.

DCP takes a folder with `.metadata` for a whole checkpoint, so that name appears only when all
manifests are there. Its bytes must not die with whoever writes the last manifest: they
are left under ``.metadata-<sha256>.pending`` before the first one, and whoever comes by later
(the daemon at its start, `restore()`, `evac verify --finish`) calls `finish`, which
promotes them. Turned down: base64 inside each manifest, which writes them once per rank.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from evac.commit.judge import CLAIM, State, pending_name, waits_for_metadata
from evac.commit.reading import load, marker, survey
from evac.errors import GenerationError, StoreError, StoreMissing, StoreRejected
from evac.generation import MARKER, METADATA, WEIGHTS, Generation, manifest_name
from evac.manifest import FULL, Manifest
from evac.store import Store


async def put_body(
    store: Store,
    prefix: str,
    generation: Generation,
    body: str,
    data: memoryview,
    *,
    rank: int,
    progress: Callable[[int], None] | None = None,
) -> bool:
    """Write one rank's data; it counts for nothing until its manifest is there.

    What is committed already is never written over: `put_manifest` then says whether it is
    the same. Between this look and the write nobody else commits other bytes: incarnations
    have folders of their own, and one step of one incarnation is one launch of the job, whose
    rank is staged in one place. So weights that were committed alone are not written again when the
    rest follows.

    Args:
        body: The file's name, in the generation's folder.

    Returns:
        Whether it was written; False where a manifest of *rank* is there already.
    """
    kinds = (WEIGHTS, FULL) if body.startswith(f"{WEIGHTS}/") else (FULL,)
    for kind in kinds:
        if (
            await _get(store, f"{prefix}/{generation.folder(kind)}/{manifest_name(rank)}")
            is not None
        ):
            return False
    await store.put(f"{prefix}/{generation.directory}/{body}", data, progress=progress)
    return True


async def put_metadata(
    store: Store, prefix: str, generation: Generation, metadata: bytes, kind: str = FULL
) -> None:
    """Leave the bytes of `.metadata` for whoever finishes this generation, or its weights.

    Every node calls this before its first manifest of a generation; the second to come finds
    them there.
    """
    name = pending_name(hashlib.sha256(metadata).hexdigest())
    await store.create(f"{prefix}/{generation.folder(kind)}/{name}", metadata)


async def put_manifest(
    store: Store, prefix: str, manifest: Manifest, *, metadata: bytes | None = None
) -> None:
    """Make a rank's files count. `put_body` must have been called for each.

    One that says the same is fine, whichever order or node wrote it.

    Args:
        metadata: Bytes of `.metadata`, left for `finish` before the manifest is written.

    Raises:
        GenerationError: Fenced: somebody else has committed other bytes here.
    """
    folder = f"{prefix}/{manifest.generation.folder(manifest.kind)}"
    if metadata is not None:
        _same(folder, metadata, manifest)
        await put_metadata(store, prefix, manifest.generation, metadata, manifest.kind)
    key = f"{folder}/{manifest_name(manifest.rank)}"
    if await store.create(key, manifest.encode()):
        return
    there = Manifest.decode(await store.get(key), where=key)
    # How it got there is not part of what it says.
    if replace(there, order="", node="") != _as_read(replace(manifest, order="", node="")):
        raise GenerationError(key, "fenced: another manifest is there already")


async def finish(
    store: Store,
    prefix: str,
    generation: Generation,
    metadata: bytes | None = None,
    *,
    kind: str = FULL,
) -> bool:
    """Complete a generation, if all of it is there. Anybody may, any number of times.

    Args:
        metadata: Bytes of `.metadata`, where the caller has them; else those left in the store.
        kind: ``weights`` to complete these alone.

    Returns:
        Whether it is complete now.

    Raises:
        GenerationError: *metadata*, or what lies under that name, is not what the manifests name.
    """
    loaded = await load(store, prefix, generation, kind)
    if not loaded.lacks_only_metadata:
        return False
    folder = loaded.folder
    one = loaded.manifests[0]
    if one.metadata_nbytes:
        pending = f"{folder}/{pending_name(one.metadata_sha256)}"
        if loaded.status.state is not State.COMPLETE:
            metadata = metadata or await _get(store, pending)
            if metadata is not None:
                _same(folder, metadata, one)
                await store.create(f"{folder}/{METADATA}", metadata)
        # Nothing left and nothing there, or somebody else has finished it between our two looks.
        there = await _get(store, f"{folder}/{METADATA}")
        if there is None:
            return False
        _same(folder, there, one)
        # It is whole by now, be it that we may not delete there, or cannot now: that goes with the rest.
        with suppress(StoreError):
            await store.delete(pending)
    if kind == FULL:
        await _mark(store, prefix, generation)
    return True


async def finish_all(store: Store, prefix: str) -> tuple[Generation, ...]:
    """Complete whatever lacks only its `.metadata`, weights included; returns those, newest first.

    For a daemon's start and before a restore: their last writer died in between.

    Raises:
        GenerationError: One's bytes are not what its manifests name; the others are done all the same.
    """
    done: list[Generation] = []
    refused: GenerationError | None = None
    # Of a bucket full of whole generations no manifest is read.
    for status in await survey(store, prefix, only=waits_for_metadata):
        if status.state is State.FINISHABLE:
            try:
                if await finish(store, prefix, status.generation, kind=status.kind):
                    done.append(status.generation)
            except GenerationError as error:
                refused = error
    if refused is not None:
        raise refused
    return tuple(done)


async def claim_incarnation(
    store: Store, prefix: str, *, above: int = 0, claim: Mapping[str, str]
) -> int:
    """Take the next number of a job's starts; no two callers ever get the same.

    Args:
        above: The number will be greater than this, too.
        claim: Who claims, for people who look: run id, host, date.
    """
    while True:
        highest = above
        for entry in await store.list(prefix):
            first = entry.key.removeprefix(f"{prefix}/").partition("/")[0]
            generation, claimed = Generation.parse(first), CLAIM.fullmatch(first)
            if generation is not None:
                highest = max(highest, generation.incarnation)
            elif claimed is not None:
                highest = max(highest, int(claimed[1]))
        number = highest + 1
        document = json.dumps({"incarnation": number, **claim}, indent=1, sort_keys=True)
        if await store.create(f"{prefix}/incarnation-{number}.json", document.encode()):
            return number


async def _mark(store: Store, prefix: str, generation: Generation) -> None:
    """Note that the job has a complete generation; readers trust its existence alone."""
    newest = await marker(store, prefix)
    if newest is not None and newest >= generation:
        return
    document = {"schema": 1, "newest": generation.directory}
    try:
        await store.put(f"{prefix}/{MARKER}", memoryview(json.dumps(document).encode()))
    except StoreRejected:
        # A store that lets nothing be replaced: the first one says enough.
        if newest is None:
            raise


async def _get(store: Store, key: str) -> bytes | None:
    try:
        return await store.get(key)
    except StoreMissing:
        return None


def _same(folder: str, metadata: bytes, manifest: Manifest) -> None:
    if hashlib.sha256(metadata).hexdigest() != manifest.metadata_sha256:
        raise GenerationError(folder, f"{METADATA} is not what the manifests name")


def _as_read(manifest: Manifest) -> Manifest:
    """As it would come back: JSON has no tuples inside of items."""
    return Manifest.decode(manifest.encode(), where="manifest")
