"""Puts one generation of one unit into a store: bodies, then manifests, then the whole.

All ranks of the job on this node or none: every body is in place before the first manifest
makes any of it count.
"""

from asyncio import Task, TaskGroup
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256

from evac.commit import finish, put_body, put_manifest, retain
from evac.errors import EvacError, StoreRejected
from evac.manifest import Manifest
from evac.store import Owner, Store
from evacd.facts import Kind
from evacd.workloads import Part


@dataclass(frozen=True)
class Place:
    """Where a job's generations lie, for whoever thins them out."""

    store: str
    prefix: str
    owner: Owner


@dataclass(frozen=True)
class Saved:
    """It is safe.

    Attributes:
        store: URL of the store that has it.
        whole: All ranks of the job are there, those of other nodes included.
        place: Where older generations may go now; None where another node's rank 0 sees to it.
    """

    store: str
    nbytes: int
    whole: bool
    place: Place | None = None


@dataclass(frozen=True)
class Unsaved:
    """The store did not take it.

    Attributes:
        reason: What it said.
        for_good: It refused in a way that another try does not help.
    """

    reason: str
    for_good: bool


class Saver:
    """Knows how to write and commit; where to, the plan says."""

    def __init__(self, open_store: Callable[[str, Owner], Store], *, node: str) -> None:
        """Open nothing yet.

        Args:
            open_store: Gives the store behind a URL, whose files will be the owner's.
            node: Name that goes into the manifests.
        """
        self._open_store = open_store
        self._node = node

    async def save(
        self,
        parts: Sequence[Part],
        *,
        lane: str,
        order: str,
        kind: Kind = "full",
        progress: Callable[[int], None] | None = None,
    ) -> Saved | Unsaved:
        """See `Saves`."""
        if kind != "full":
            return Unsaved(f"there are no {kind} apart from the rest", for_good=True)
        try:
            whole = await self._save_in(lane, parts, order, progress)
        except* EvacError as group:
            error = _first(group)
            refused = Unsaved(str(error), isinstance(error, StoreRejected))
        else:
            nbytes = sum(part.data.nbytes for part in parts)
            first = next((part for part in parts if part.rank == 0), None)
            place = Place(lane, first.prefix, first.owner) if first else None
            return Saved(lane, nbytes, whole, place)
        return refused

    async def thin_out(self, place: Place, *, keep: int) -> str:
        """Delete what is older than the newest *keep* generations; why not, or ""."""
        try:
            await retain(self._open_store(place.store, place.owner), place.prefix, keep=keep)
        except EvacError as error:
            return str(error)
        return ""

    async def _save_in(
        self,
        url: str,
        parts: Sequence[Part],
        order: str,
        progress: Callable[[int], None] | None,
    ) -> bool:
        manifests = []
        for part in parts:
            store = self._open_store(url, part.owner)
            # Checksums that the quiet time did not get to are made while the bytes move.
            async with TaskGroup() as tasks:
                sums = tasks.create_task(part.checksums())
                tasks.create_task(
                    put_body(
                        store,
                        part.prefix,
                        part.generation,
                        part.body,
                        part.data,
                        rank=part.rank,
                        progress=progress,
                    )
                )
            manifests.append((store, part, self._manifest(part, sums, order)))
        for store, part, manifest in manifests:
            await put_manifest(store, part.prefix, manifest, metadata=part.metadata or None)
        store, part, _ = manifests[0]
        return await finish(store, part.prefix, part.generation, part.metadata or None)

    def _manifest(self, part: Part, sums: Task[tuple[int, ...]], order: str) -> Manifest:
        return Manifest(
            job=part.job,
            run=part.run,
            generation=part.generation,
            rank=part.rank,
            world=part.world,
            layout=part.layout,
            body=part.body,
            nbytes=part.data.nbytes,
            crc32c=sums.result(),
            metadata_nbytes=len(part.metadata),
            metadata_sha256=sha256(part.metadata).hexdigest() if part.metadata else "",
            items=part.items,
            order=order,
            node=self._node,
        )


def _first(group: BaseExceptionGroup[EvacError]) -> BaseException:
    """The first error in a group, however deep."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
