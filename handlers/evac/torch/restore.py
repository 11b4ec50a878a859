"""Back to the newest whole generation, on all ranks alike, or a clear reason why not."""

import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from evac._clock import monotonic
from evac.commit import Problem
from evac.errors import GenerationError
from evac.generation import METADATA, WEIGHTS, Generation
from evac.manifest import FULL
from evac.torch import blocking, rank_state
from evac.torch.candidates import Candidate, Found, find, preference
from evac.torch.damage import Unsound, sound, soundly, together
from evac.torch.local_memory import HERE, LocalBodies, LocalMemory, NearestBodies, whole
from evac.torch.rank_state import RankObjects
from evac.torch.reader import StoreReader
from evac.torch.reader_bodies import Bodies, Contents, look, opened
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
        self._stores, self._prefix, self._weights = world.broadcast(
            (tuple(stores), prefix, weights)
        )

    def run(self) -> Generation | None:
        """Restore; see `Checkpointer.restore`. Collective."""
        found = self._find()
        for candidate in found.candidates:
            if problems := self._try(candidate):
                if self._world.rank == 0:
                    for problem in problems:
                        log.warning("%s: %s", problem.key, problem.reason)
                    log.warning("%s is not whole: walking back", candidate.generation)
                continue
            return candidate.generation
        if found.candidates or found.trouble:
            torn = f" ({found.torn})" if found.torn else ""
            why = found.trouble or "every generation is damaged"
            raise GenerationError(self._prefix, f"nothing usable, and {why}{torn}")
        if self._world.rank == 0 and self._stores:
            place = " and ".join(self._stores)
            torn = f" (torn: {found.torn})" if found.torn else ""
            self.remark = f"{place} has nothing of {self._prefix}: starting at step 0{torn}"
        return None

    def _find(self) -> Found:
        def look() -> Found | None:
            if self._world.rank != 0:
                return None
            return blocking.run(lambda: find(self._stores, self._prefix, weights=self._weights))

        found = self._world.agree(self._prefix, look)[0]
        assert found is not None
        here = [
            Candidate(one, HERE, world, FULL)
            for one, world in whole(self._world.gather(self._memory.offers()))
        ]
        # Of equals the nearest first: the order of a sort is kept.
        order = sorted([*here, *found.candidates], key=preference, reverse=True)
        return replace(found, candidates=tuple(order))

    def _look(self, candidate: Candidate) -> Contents | tuple[Problem, ...]:
        """Rank 0 reads what describes a generation, and all hear of it; or all look in memory."""
        kept: list[Contents] = []
        if candidate.store == HERE:
            mine = self._memory.look(candidate.generation)
            failed = self._world.gather(() if isinstance(mine, Contents) else mine)
            return next(filter(None, failed), mine)

        def act() -> tuple[Problem, ...]:
            if self._world.rank == 0:
                where = (candidate.store, self._prefix, candidate.generation, candidate.kind)
                found = look(*where)
                if not isinstance(found, Contents):
                    return found
                kept.append(found)
            return ()

        problems = self._world.agree(self._prefix, act)[0]
        # Large, and a gather would take that much for every rank.
        return problems or self._world.broadcast(kept[0] if kept else None)

    def _try(self, candidate: Candidate) -> tuple[Problem, ...]:
        """Load one generation; what any rank found damaged in it."""
        contents = self._look(candidate)
        if not isinstance(contents, Contents):
            return contents
        try:
            self._load(candidate, contents)
        except Unsound as error:
            return error.problems
        return ()

    def _load(self, candidate: Candidate, contents: Contents) -> None:
        started, where = monotonic(), str(candidate.generation)
        plan = f"{contents.folder}/{METADATA}"
        names = frozenset().union(*self._world.agree(where, self._state.names))
        ranks = Ranks(self._world.rank, self._world.size, candidate.world, names)

        def shape() -> tuple[StoreReader, dict[str, Any]]:
            reader = StoreReader(
                partial(opened, candidate.store), where, contents, self._bodies(candidate, contents)
            )
            with sound(where, plan):
                tree = target(reader.metadata, self._state, ranks, where=where)
            if candidate.kind == WEIGHTS:
                return reader, tree
            tree.update(self._block(reader.metadata))
            return reader, tree

        reader, tree = soundly(self._world, where, shape)
        try:
            with warnings.catch_warnings():
                # A world of one is no accident.
                warnings.filterwarnings("ignore", "torch.distributed is disabled")
                # It reads and checks in its planning phase, on all ranks, before it loads on any.
                load(tree, storage_reader=reader)
        except CheckpointException as error:
            if problems := _problems(error):
                raise Unsound(where, problems) from error
            raise GenerationError(where, _first_line(error)) from error
        finally:
            reader.drop()  # on every rank, whichever failed: the next generation needs as much

        def settled() -> tuple[dict[str, Any], dict[str, Any] | None]:
            with sound(where, plan):
                return settle(tree, reader.metadata, self._state, ranks), self._own(tree, where)

        loaded, document = soundly(self._world, where, settled)
        self._world.agree(where, lambda: self._apply(candidate, loaded, document, ranks))
        self._tell(candidate, contents, reader, monotonic() - started)

    def _tell(
        self, candidate: Candidate, contents: Contents, reader: StoreReader, took: float
    ) -> None:
        here = candidate.store == HERE
        place = HERE if here else f"{contents.folder} in {candidate.store}"
        text = "%s restored from %s: %s bytes read and checked in %.2f s, loaded in %.2f s%s"
        nbytes, loading = f"{reader.nbytes:,}", took - reader.seconds
        log.info(text, candidate.generation, place, nbytes, reader.seconds, loading, reader.remark)

    def _bodies(self, candidate: Candidate, contents: Contents) -> LocalBodies | NearestBodies:
        local = self._memory.bodies(candidate.generation)
        if candidate.store == HERE:
            return local
        return NearestBodies(local, Bodies(partial(opened, candidate.store), contents), contents)

    def _block(self, metadata: Metadata) -> dict[str, torch.Tensor]:
        """Where this rank's own state goes; rank 0's, where this rank wrote none."""
        for name in (rank_state.name(self._world.rank), rank_state.name(0)):
            saved = metadata.state_dict_metadata.get(name)
            if isinstance(saved, TensorStorageMetadata):
                return {name: torch.empty(saved.size, dtype=torch.uint8)}
        return {}

    def _own(self, tree: Mapping[str, Any], where: str) -> dict[str, Any] | None:
        """What there is of this rank's own state, or of rank 0's in its place."""
        for name in (rank_state.name(self._world.rank), rank_state.name(0)):
            if name in tree:
                with sound(where, name, unpickles=True):
                    return rank_state.unpack(tree[name])
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
        if afresh := self._objects.load(document, own=own):
            log.warning("rank %d starts afresh with %s", rank, " and ".join(afresh))
        unused = candidate.world - self._world.size
        if unused > 0 and rank == 0:
            text = "%d ranks wrote %s: the loader positions and random numbers of %d are not used"
            log.warning(text, candidate.world, candidate.generation, unused)
        # Last: nothing that comes before may draw from it.
        if own:
            rank_state.load_rng(document["rng"])


def _problems(error: CheckpointException) -> tuple[Problem, ...]:
    """What all ranks found damaged; nothing where damage is not all that went wrong."""
    causes = [cause for cause, _ in error.failures.values()]
    found = [cause.problems for cause in causes if isinstance(cause, Unsound)]
    return together(found) if len(found) == len(causes) else ()


def _first_line(error: CheckpointException) -> str:
    for rank, (cause, _) in sorted(error.failures.items()):
        if not isinstance(cause, Unsound):
            return f"rank {rank}: {type(cause).__name__}: {cause}"
    return str(error)
