"""Puts the shares of some ranks of a generation into a store, in the one order that is safe.

Weights first. What they are is made to count while the rest is still on its way, so that a machine
that goes meanwhile leaves the newest weights behind. All ranks or none: no manifest before the
files of all of them are in place.
"""

from asyncio import TaskGroup
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from evac.commit.writing import finish, put_body, put_manifest
from evac.errors import GenerationError
from evac.generation import WEIGHTS
from evac.groups import one_error
from evac.manifest import FULL, REST, File, Manifest
from evac.segment import BodyFile
from evac.store import Store


@dataclass(frozen=True, eq=False)
class Share:
    """One rank's share of a generation.

    Attributes:
        store: Where it goes.
        manifest: All that it says but its files: of kind ``full``.
        body: What *files* lie in, end to end.
        metadata: Bytes of `.metadata`; b"" where the files are no DCP files.
        weights_metadata: Those of the weights' own; b"" likewise, or where weights have no files apart.
        sums: The checksums of a file, by its place in *files*.
    """

    store: Store
    manifest: Manifest
    body: memoryview
    files: tuple[BodyFile, ...]
    metadata: bytes
    weights_metadata: bytes
    sums: Callable[[int], Awaitable[tuple[int, ...]]]

    @property
    def parted(self) -> bool:
        """Whether the weights can be committed alone."""
        return bool(self.weights_metadata) or any(one.kind == WEIGHTS for one in self.files)


async def put_shares(
    prefix: str,
    shares: Sequence[Share],
    *,
    kind: str = FULL,
    progress: Callable[[int], None] | None = None,
) -> bool:
    """Write all *shares* and make them count.

    Args:
        shares: Of one generation; at least one.
        kind: ``weights`` to write these alone.
        progress: Told of further bytes that are written, from any thread.

    Returns:
        Whether the generation, or its weights, is whole now, all ranks of the job included.

    Raises:
        GenerationError: Fenced, or *kind* is ``weights`` and they are not apart from the rest.
    """
    with one_error():
        return await _put_shares(prefix, shares, kind, progress)


async def _put_shares(
    prefix: str, shares: Sequence[Share], kind: str, progress: Callable[[int], None] | None
) -> bool:
    parted = all(share.parted for share in shares)
    if kind == WEIGHTS and not parted:
        raise GenerationError(prefix, "the weights do not lie apart from the rest")
    generation, last = shares[0].manifest.generation, shares[-1]
    named: list[dict[str, File]] = [{} for _ in shares]
    for share, found in zip(shares, named, strict=True):
        found.update(await _put(prefix, share, WEIGHTS, progress))
    if kind == WEIGHTS:
        await _count(prefix, shares, named, WEIGHTS)
        return await finish(
            last.store, prefix, generation, last.weights_metadata or None, kind=kind
        )
    async with TaskGroup() as tasks:
        if parted:
            tasks.create_task(_count(prefix, shares, [dict(found) for found in named], WEIGHTS))
        for share, found in zip(shares, named, strict=True):
            found.update(await _put(prefix, share, REST, progress))
    await _count(prefix, shares, named, FULL)
    whole = await finish(last.store, prefix, generation, last.metadata or None)
    if parted and not whole:
        # Another node may save no more than its weights.
        await finish(last.store, prefix, generation, last.weights_metadata or None, kind=WEIGHTS)
    return whole


async def _put(
    prefix: str, share: Share, kind: str, progress: Callable[[int], None] | None
) -> Mapping[str, File]:
    """Write the files of *kind*; what they are, by name."""
    found: dict[str, File] = {}
    for place, one in enumerate(share.files):
        if one.kind != kind:
            continue
        data = share.body[one.offset : one.offset + one.nbytes]
        put = partial(put_body, share.store, prefix, share.manifest.generation, one.name, data)
        try:
            # Checksums that the quiet time did not get to are made while the bytes move.
            async with TaskGroup() as tasks:
                sums = tasks.create_task(_awaited(share.sums(place)))
                tasks.create_task(put(rank=share.manifest.rank, progress=progress))
        finally:
            # Whoever still reads it keeps it alive.
            with suppress(BufferError):
                data.release()
        found[one.name] = File(one.name, one.nbytes, sums.result(), one.kind, one.held)
    return found


async def _count(
    prefix: str, shares: Sequence[Share], named: Sequence[Mapping[str, File]], kind: str
) -> None:
    for share, found in zip(shares, named, strict=True):
        files = tuple(found.values())
        end = sum(one.nbytes for one in files)
        # Behind the files lie copies of what others write.
        items = tuple(one for one in share.manifest.items if one["offset"] + one["nbytes"] <= end)
        manifest = replace(share.manifest, files=files, items=items)
        metadata = share.metadata
        if kind == WEIGHTS:
            metadata = share.weights_metadata
            manifest = manifest.of_weights(metadata)
        await put_manifest(share.store, prefix, manifest, metadata=metadata or None)


async def _awaited(sums: Awaitable[tuple[int, ...]]) -> tuple[int, ...]:
    return await sums
