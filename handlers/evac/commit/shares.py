"""Puts the shares of some ranks of a generation into a store, in the one order that is safe.

Weights first. What they are is made to count while the rest is still on its way, so that a machine
that goes meanwhile leaves the newest weights behind. All ranks or none: no manifest before the
files of all of them are in place.
"""

from asyncio import TaskGroup
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from evac.commit.writing import finish, put_body, put_manifest
from evac.commit.written import Written
from evac.errors import GenerationError, StoreError
from evac.generation import WEIGHTS, Generation
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
    written: Written | None = None,
) -> bool:
    """Write all *shares* and make them count.

    Args:
        shares: Of one generation; at least one.
        kind: ``weights`` to write these alone.
        progress: Told of further bytes that are written, from any thread.
        written: What earlier tries have left there; told what this one does.

    Returns:
        Whether the generation, or its weights, is whole now, all ranks of the job included.

    Raises:
        GenerationError: Fenced, or *kind* is ``weights`` and they are not apart from the rest.
    """
    with one_error():
        return await _put_shares(
            prefix, shares, kind, progress, Written() if written is None else written
        )


async def _put_shares(
    prefix: str,
    shares: Sequence[Share],
    kind: str,
    progress: Callable[[int], None] | None,
    written: Written,
) -> bool:
    parted = all(share.parted for share in shares)
    if kind == WEIGHTS and not parted:
        raise GenerationError(prefix, "the weights do not lie apart from the rest")
    generation, last = shares[0].manifest.generation, shares[-1]
    named: list[dict[str, File]] = [{} for _ in shares]
    left = _Left(prefix, generation, written, progress, await _there(prefix, last, written))
    for share, found in zip(shares, named, strict=True):
        found.update(await left.put(share, WEIGHTS))
    if kind == WEIGHTS:
        await left.count(shares, named, WEIGHTS)
        return await finish(
            last.store, prefix, generation, last.weights_metadata or None, kind=kind
        )
    async with TaskGroup() as tasks:
        if parted:
            tasks.create_task(left.count(shares, [dict(found) for found in named], WEIGHTS))
        for share, found in zip(shares, named, strict=True):
            found.update(await left.put(share, REST))
    await left.count(shares, named, FULL)
    written.forget(last.store.url, f"{prefix}/{generation.directory}")
    whole = await finish(last.store, prefix, generation, last.metadata or None)
    if parted and not whole:
        # Another node may save no more than its weights.
        await finish(last.store, prefix, generation, last.weights_metadata or None, kind=WEIGHTS)
    return whole


async def _there(prefix: str, share: Share, written: Written) -> Mapping[str, int]:
    """Names and sizes in the generation's folder, where an earlier try has left anything there."""
    folder = f"{prefix}/{share.manifest.generation.directory}"
    if not written.any_below(share.store.url, folder):
        return {}
    try:
        there = {entry.key: entry.nbytes for entry in await share.store.list(folder)}
    except StoreError:
        # One of several peers is silent, say; what is sent once more may go to another.
        there = {}
    written.only(share.store.url, folder, there)
    return there


@dataclass(frozen=True)
class _Left:
    """Writes what is not there yet.

    Attributes:
        there: Names and sizes of what is.
    """

    prefix: str
    generation: Generation
    written: Written
    progress: Callable[[int], None] | None
    there: Mapping[str, int]

    async def count(
        self, shares: Sequence[Share], named: Sequence[Mapping[str, File]], kind: str
    ) -> None:
        """Write the manifests; from then on nobody sends again what they name."""
        await _count(self.prefix, shares, named, kind)
        folder = f"{self.prefix}/{self.generation.directory}"
        for share, found in zip(shares, named, strict=True):
            sizes = {f"{folder}/{one.name}": one.nbytes for one in found.values()}
            self.written.named(share.store.url, sizes)

    async def put(self, share: Share, kind: str) -> Mapping[str, File]:
        """Write the files of *kind*; what they are, by name."""
        found: dict[str, File] = {}
        for place, one in enumerate(share.files):
            if one.kind == kind:
                sums = await self._put(share, place, one)
                found[one.name] = File(one.name, one.nbytes, sums, one.kind, one.held)
        return found

    async def _put(self, share: Share, place: int, one: BodyFile) -> tuple[int, ...]:
        url, key = share.store.url, f"{self.prefix}/{self.generation.directory}/{one.name}"
        if key in self.there:
            # An earlier try has waited for these already.
            sums = await share.sums(place)
            if self.written.is_there(url, key, sums, self.there):
                return sums
        data = share.body[one.offset : one.offset + one.nbytes]

        async def put(summed: Awaitable[tuple[int, ...]]) -> None:
            store, rank = share.store, share.manifest.rank
            if await put_body(
                store, self.prefix, self.generation, one.name, data,
                rank=rank, progress=self.progress,
            ):  # fmt: skip
                # At once: what is beside it may fail any moment, and end this.
                self.written.note(url, key, one.nbytes, await summed)

        try:
            # Checksums that the quiet time did not get to are made while the bytes move.
            async with TaskGroup() as tasks:
                sums_there = tasks.create_task(_awaited(share.sums(place)))
                tasks.create_task(put(sums_there))
        finally:
            # Whoever still reads it keeps it alive.
            with suppress(BufferError):
                data.release()
        return sums_there.result()


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
