"""Back to the newest whole generation, on all ranks alike, or a clear reason why not."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan

from evac._clock import monotonic
from evac.commit import Problem
from evac.errors import GenerationError
from evac.generation import METADATA, WEIGHTS, Generation
from evac.torch import rank_state
from evac.torch.damage import Unsound, sound, soundly
from evac.torch.extra import EXTRA
from evac.torch.gathering import Gathering
from evac.torch.holdings import Candidate
from evac.torch.local_memory import LocalMemory
from evac.torch.looking import Looked, described, look_for
from evac.torch.origins import Origins, together
from evac.torch.rank_state import RankObjects
from evac.torch.reader import StoreReader
from evac.torch.reader_bodies import Contents, opened
from evac.torch.state import MODEL, OPTIMIZER, TrainingState
from evac.torch.target import Ranks, load_optimizer, settle, target
from evac.torch.world import World

log = logging.getLogger("evac")


class Restore:
    """One restore. Every rank makes one; rank 0's *stores*, *prefix* and *weights* count.

    Args:
        weights: Weights that are newer than all that is whole will do.

    Attributes:
        remark: A warning that is left to the caller: rank 0 found nothing, and starts at step 0.
        origins: What all ranks together have read where; nothing before.
    """

    def __init__(
        self,
        world: World,
        state: TrainingState,
        objects: RankObjects,
        stores: Sequence[str],
        prefix: str,
        memory: LocalMemory | None = None,
        *,
        weights: bool = False,
    ) -> None:
        self._world = world
        self._memory = memory or LocalMemory(None)
        self._state = state
        self._objects = objects
        self.remark = ""
        self.origins = Origins({})
        self._stores, self._prefix, self._weights = world.broadcast(
            (tuple(stores), prefix, weights)
        )

    def run(self) -> Generation | None:
        """Restore; see `Checkpointer.restore`. Collective."""
        looked = look_for(
            self._world, self._memory, self._stores, self._prefix, weights=self._weights
        )
        found = looked.choices
        for candidate in found.candidates:
            problems = self._try(candidate, looked)
            if not problems:
                return candidate.generation
            if self._world.rank == 0:
                for problem in problems:
                    log.warning("%s: %s", problem.key, problem.reason)
                log.warning("%s is not whole: walking back", candidate.generation)
        if found.candidates or found.trouble:
            torn = f" ({found.torn})" if found.torn else ""
            why = found.trouble or "every generation is damaged"
            raise GenerationError(self._prefix, f"nothing usable, and {why}{torn}")
        if self._world.rank == 0 and self._stores:
            place = " and ".join(self._stores)
            torn = f" (torn: {found.torn})" if found.torn else ""
            self.remark = f"{place} has nothing of {self._prefix}: starting at step 0{torn}"
        return None

    def _try(self, candidate: Candidate, looked: Looked) -> tuple[Problem, ...]:
        """Load one generation; what any rank found damaged in it."""
        contents = described(self._world, self._memory, candidate, looked, self._prefix)
        if not isinstance(contents, Contents):
            return contents
        world, memory = self._world, self._memory
        near = world.each(self._prefix, lambda: memory.bodies(candidate.made, contents))
        bodies = Gathering(world, opened, contents, near)
        try:
            self._load(candidate, contents, bodies)
        except Unsound as error:
            return error.problems
        finally:
            bodies.drop()  # on every rank, whichever failed: the next generation needs as much
        return ()

    def _load(self, candidate: Candidate, contents: Contents, bodies: Gathering) -> None:
        """As `dcp.load` does, but that all ranks read and check together, and no rank hears all plans."""
        started, where = monotonic(), str(candidate.generation)
        described = f"{contents.folder}/{METADATA}"
        names = frozenset().union(*self._world.agree(where, self._state.names))
        ranks = Ranks(self._world.rank, self._world.size, candidate.world, names)
        planner = DefaultLoadPlanner()

        def shape() -> tuple[StoreReader, dict[str, Any], LoadPlan]:
            reader = StoreReader(bodies, where, contents)
            with sound(where, described):
                extra = self._objects.likenesses
                tree = target(reader.metadata, self._state, extra, ranks, where=where)
            if candidate.kind != WEIGHTS:
                tree.update(self._block(reader.metadata))
            planner.set_up_planner(tree, reader.metadata, self._world.rank == 0)
            return reader, tree, planner.create_local_plan()

        reader, tree, plan = soundly(self._world, where, shape)
        # What is a collective in it fails on all ranks, or on none.
        soundly(self._world, where, lambda: reader.prepare_local_plan(plan))

        def settled() -> tuple[dict[str, Any], dict[str, Any] | None]:
            reader.read_data(plan, planner)
            with sound(where, described):
                loaded = settle(tree, reader.metadata, self._state, ranks)
                document = self._own(tree, reader, where)
                if document is not None:
                    self._objects.put_back(document, loaded.get(EXTRA, {}))
                return loaded, document

        loaded, document = soundly(self._world, where, settled)
        self._world.agree(where, lambda: self._apply(candidate, loaded, document, ranks))
        self._tell(candidate, contents, reader, monotonic() - started)

    def _tell(
        self, candidate: Candidate, contents: Contents, reader: StoreReader, took: float
    ) -> None:
        mine, every = reader.origins, self._world.gather(reader.origins)
        self.origins = together(every)
        stores = contents.stores.keys()
        places = [
            f"{contents.folder} in {place}" if place in stores else place for place in mine.places
        ]
        text = "%s restored from %s: %s bytes read and checked in %.2f s, loaded in %.2f s%s"
        place = " and ".join(places) or "what others of this node have read"
        more = f"; {mine.told()}" if len(places) > 1 else ""
        if reader.unsummed:
            more += f"; for {reader.unsummed:,} bytes more there was no checksum yet"
        nbytes, loading = f"{reader.nbytes:,}", took - reader.seconds
        log.info(text, candidate.generation, place, nbytes, reader.seconds, loading, more)
        if self._world.size > 1 and self._world.rank == 0:
            log.info("all %d ranks have read %s", self._world.size, self.origins.told())

    def _block(self, metadata: Metadata) -> dict[str, torch.Tensor]:
        """Where this rank's own state goes; rank 0's, where this rank wrote none."""
        for name in (rank_state.name(self._world.rank), rank_state.name(0)):
            saved = metadata.state_dict_metadata.get(name)
            if isinstance(saved, TensorStorageMetadata):
                return {name: torch.empty(saved.size, dtype=torch.uint8)}
        return {}

    def _own(
        self, tree: Mapping[str, Any], reader: StoreReader, where: str
    ) -> dict[str, Any] | None:
        """What there is of this rank's own state, or of rank 0's in its place."""
        for name in (rank_state.name(self._world.rank), rank_state.name(0)):
            if name in tree:
                with sound(where, name, unpickles=True):
                    return rank_state.unpack(tree[name], reader.beyond(name))
        return None

    def _apply(
        self,
        candidate: Candidate,
        tree: Mapping[str, Any],
        document: dict[str, Any] | None,
        ranks: Ranks,
    ) -> None:
        self._state.load_model(tree[MODEL])
        if candidate.kind == WEIGHTS:
            if self._world.rank == 0:
                text = (
                    "%s: weights only: optimizer, schedule, loader and random numbers start afresh"
                )
                log.warning(text, candidate.generation)
            return
        load_optimizer(self._state, tree[OPTIMIZER], ranks, where=str(candidate.generation))
        rank = self._world.rank
        own = rank_state.name(rank) in tree
        if document is None:
            log.warning("%s: no schedule, loader or random numbers in it", candidate.generation)
            return
        if afresh := self._objects.load(document, own=own, rank=rank, world=self._world.size):
            log.warning("rank %d starts afresh with %s", rank, " and ".join(afresh))
        unused = candidate.world - self._world.size
        if unused > 0 and rank == 0:
            text = "%d ranks wrote %s: the random numbers of %d are not used"
            log.warning(text, candidate.world, candidate.generation, unused)
        # Last: nothing that comes before may draw from it.
        if own:
            rank_state.load_rng(document["rng"])
