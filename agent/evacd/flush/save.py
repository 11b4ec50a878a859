"""Puts one generation of one unit into a store, all of it or its weights alone.

All ranks of the job on this node or none; `evac.commit.put_shares` knows in which order.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from evac.commit import Share, put_shares
from evac.errors import ConfigError, EvacError, GenerationError, StoreRejected
from evac.generation import WEIGHTS
from evac.manifest import COPY, Manifest
from evac.store import Owner, Store
from evacd.facts import Kind
from evacd.flush.there import There
from evacd.flush.thinning import Place as Place
from evacd.flush.thinning import Thinning
from evacd.workloads import Part


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
        fenced: It refused this very generation, however large it is: another one may pass.
    """

    reason: str
    for_good: bool
    fenced: bool = False


def broken(error: BaseException) -> str:
    """What no store has said: a bug of ours, or that the machine is out of something."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, OSError):
        return f"the machine refused: {error.strerror or type(error).__name__}"
    return f"a bug in evac: {type(error).__name__}: {error}"[:200]


class Saver:
    """Knows how to write and commit; where to, the plan says."""

    def __init__(
        self,
        open_store: Callable[[str, Owner], Store],
        *,
        node: str,
        thinning: Thinning | None = None,
        there: There | None = None,
    ) -> None:
        """Open nothing yet.

        Args:
            open_store: Gives the store behind a URL, whose files will be the owner's.
            node: Name that goes into the manifests.
            thinning: That of all who save on this node.
            there: The same.
        """
        self._open_store = open_store
        self._node = node
        self._thinning = thinning or Thinning()
        # What lies in which store of what all of them have written, be it in part.
        self.there = there or There()

    def through(self, open_store: Callable[[str, Owner], Store]) -> "Saver":
        """One that opens stores otherwise, and knows with this one what both do."""
        return Saver(open_store, node=self._node, thinning=self._thinning, there=self.there)

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
        if kind == "held":
            return Unsaved("what survivors hold goes with the rest", for_good=True)
        prefix, generation = parts[0].prefix, parts[0].generation
        folder = f"{prefix}/{generation.directory}"
        bodies = _bodies(parts, folder)
        try:
            shares = [self._share(lane, part, order) for part in parts]
            self.there.begin(
                parts[0].unit, generation, lane, url=shares[0].store.url, bodies=bodies
            )
            with self._thinning.spared(lane, prefix, generation):
                whole = await put_shares(
                    prefix, shares, kind=kind, progress=progress, written=self.there.written
                )
        except GenerationError as error:
            return Unsaved(str(error), for_good=True, fenced=True)
        except EvacError as error:
            # Whoever opens a store says what is wrong with its settings: that does not pass.
            for_good = isinstance(error, StoreRejected | ConfigError)
            return Unsaved(str(error), for_good)
        nbytes = sum(bodies[kind].values())
        first = next((part for part in parts if part.rank == 0), None)
        place = Place(lane, first.prefix, first.owner) if first else None
        return Saved(lane, nbytes, whole, place)

    async def thin_out(self, place: Place, *, keep: int) -> str:
        """Delete what is older than the newest *keep* generations; why not, or ""."""
        try:
            store = self._open_store(place.store, place.owner)
            await self._thinning.thin(store, place, keep=keep)
        except EvacError as error:
            return str(error)
        return ""

    def _share(self, url: str, part: Part, order: str) -> Share:
        manifest = Manifest(
            job=part.job,
            run=part.run,
            generation=part.generation,
            rank=part.rank,
            world=part.world,
            layout=part.layout,
            files=(),
            metadata_nbytes=len(part.metadata),
            metadata_sha256=sha256(part.metadata).hexdigest() if part.metadata else "",
            items=part.items,
            order=order,
            node=self._node,
        )
        return Share(
            store=self._open_store(url, part.owner),
            manifest=manifest,
            body=part.data,
            files=part.files,
            metadata=part.metadata,
            weights_metadata=part.weights_metadata,
            sums=part.checksums,
        )


def _bodies(parts: Sequence[Part], folder: str) -> Mapping[Kind, Mapping[str, int]]:
    """What each kind consists of: keys, and how many bytes."""
    every = [one for part in parts for one in part.files if one.kind != COPY]
    return {
        "full": {f"{folder}/{one.name}": one.nbytes for one in every},
        "weights": {f"{folder}/{one.name}": one.nbytes for one in every if one.kind == WEIGHTS},
    }
