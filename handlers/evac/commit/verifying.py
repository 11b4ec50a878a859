"""Reading a generation back, byte for byte, against its checksums."""

import asyncio
import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from threading import Event

from evac.commit.checksum import chunk_sums
from evac.commit.judge import State
from evac.commit.reading import load
from evac.errors import StoreError
from evac.generation import METADATA, Generation, manifest_name
from evac.manifest import CHUNK, FULL, File, Manifest
from evac.store import Store
from evac.store.threads import in_thread

# Two bodies at once, 16 MiB of each in memory: one is read while the other is summed.
BODIES = 2
BUFFER = 4 * CHUNK


@dataclass(frozen=True)
class Problem:
    """Something that is not as its manifest says.

    Attributes:
        key: The file.
        reason: What is wrong with it, for a person.
    """

    key: str
    reason: str


async def verify(
    store: Store,
    prefix: str,
    generation: Generation,
    *,
    kind: str = FULL,
    ranks: Iterable[int] | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[Problem, ...]:
    """Check every byte of a generation; nothing to report means that it can be trusted.

    Args:
        kind: ``weights`` to check these alone.
        ranks: Only these ranks' bodies; all by default.
        progress: Called with the number of further bytes checked.
    """
    loaded = await load(store, prefix, generation, kind)
    folder = loaded.folder
    problems: list[Problem] = []
    if loaded.status.state is not State.COMPLETE:
        problems.append(Problem(folder, f"{loaded.status.state}: {loaded.status.reason}"))
    wanted = set(loaded.manifests if ranks is None else ranks)
    problems += [
        Problem(f"{folder}/{manifest_name(rank)}", "no sound manifest")
        for rank in wanted - set(loaded.manifests)
    ]
    window = asyncio.Semaphore(BODIES)

    async def check(file: File) -> None:
        key = f"{folder}/{file.name}"
        async with window:
            try:
                reason = await _check_file(store, key, file, progress)
            except StoreError as error:
                reason = error.reason
        if reason:
            problems.append(Problem(key, reason))

    async with asyncio.TaskGroup() as tasks:
        for rank in sorted(wanted & set(loaded.manifests)):
            for file in loaded.manifests[rank].files:
                tasks.create_task(check(file))
    if METADATA in loaded.files and loaded.manifests:
        one = next(iter(loaded.manifests.values()))
        reason = await _check_metadata(store, f"{folder}/{METADATA}", one)
        if reason:
            problems.append(Problem(f"{folder}/{METADATA}", reason))
    return tuple(sorted(problems, key=lambda problem: problem.key))


async def _check_metadata(store: Store, key: str, manifest: Manifest) -> str:
    if not manifest.metadata_nbytes:
        return ""
    try:
        there = await store.get(key)
    except StoreError as error:  # thinned out since it was listed, say
        return error.reason
    matches = hashlib.sha256(there).hexdigest() == manifest.metadata_sha256
    return "" if matches else "SHA-256 does not match"


def _sums(data: memoryview, _: Event) -> tuple[int, ...]:
    return chunk_sums(data)  # 16 MiB at most: over before anybody could ask it to stop


async def _check_file(
    store: Store, key: str, file: File, progress: Callable[[int], None] | None
) -> str:
    buffer = bytearray(min(BUFFER, file.nbytes))
    bad: list[int] = []
    for start in range(0, file.nbytes, BUFFER):
        wanted = min(BUFFER, file.nbytes - start)
        with memoryview(buffer)[:wanted] as into:
            got = await store.read(key, start, into)
            if got < wanted:
                return f"ends at byte {start + got} of {file.nbytes}"
            sums = await in_thread(partial(_sums, into))
        first = start // CHUNK
        named = file.crc32c[first : first + len(sums)]
        bad += [
            first + i for i, pair in enumerate(zip(sums, named, strict=True)) if len(set(pair)) > 1
        ]
        if progress is not None:
            progress(wanted)
    if not bad:
        return ""
    where = f"the first at byte {bad[0] * CHUNK}"
    return f"CRC-32C differs in {len(bad)} of {len(file.crc32c)} chunks, {where}"
