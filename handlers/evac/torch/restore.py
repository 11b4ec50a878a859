"""Back to the newest whole generation, on all ranks alike, or a clear reason why not."""

import logging
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from evac._clock import monotonic
from evac.commit import Problem, verify
from evac.errors import EvacError, GenerationError
from evac.generation import Generation
from evac.store import open_store
from evac.torch import blocking, rank_state
from evac.torch.candidates import Candidate, Found, find
from evac.torch.rank_state import RankObjects
from evac.torch.state import OPTIMIZER, TrainingState
from evac.torch.target import load_optimizer, target
from evac.torch.world import World

log = logging.getLogger("evac")


class Restore:
    """One restore. Every rank makes one; rank 0's *stores* and *prefix* count.

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
    ) -> None:
        self._world = world
        self._state = state
        self._objects = objects
        self.remark = ""
        self._stores, self._prefix = world.broadcast((tuple(stores), prefix))

    def run(self) -> Generation | None:
        """Restore; see `Checkpointer.restore`. Collective."""
        found = self._find()
        for candidate in found.candidates:
            started = monotonic()
            if problems := self._verify(candidate):
                if self._world.rank == 0:
                    for problem in problems:
                        log.warning("%s: %s", problem.key, problem.reason)
                    log.warning("%s is not whole: walking back", candidate.generation)
                continue
            verified = monotonic()
            self._load(candidate)
            log.info(
                "%s restored from %s: %s bytes, checked in %.2f s, loaded in %.2f s",
                candidate.generation,
                candidate.path(self._prefix),
                f"{candidate.nbytes:,}",
                verified - started,
                monotonic() - verified,
            )
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
            return blocking.run(lambda: find(self._stores, self._prefix))

        found = self._world.agree(self._prefix, look)[0]
        assert found is not None
        return found

    def _verify(self, candidate: Candidate) -> list[Problem]:
        """Every rank reads its share of the files; all hear of all problems."""
        share = range(self._world.rank, candidate.world, self._world.size)
        store = open_store(candidate.store)

        def check() -> tuple[Problem, ...]:
            problems: tuple[Problem, ...] = ()
            try:
                problems = blocking.run(
                    lambda: verify(store, self._prefix, candidate.generation, ranks=share)
                )
            except* EvacError as group:
                path = candidate.path(self._prefix)
                problems = (Problem(path, str(blocking.first(group))),)
            return problems

        return sorted(
            {one for problems in self._world.agree(self._prefix, check) for one in problems},
            key=lambda one: one.key,
        )

    def _load(self, candidate: Candidate) -> None:
        where = str(candidate.generation)
        reader = FileSystemReader(candidate.path(self._prefix))

        def shape() -> dict[str, Any]:
            metadata = reader.read_metadata()
            tree = target(metadata, self._state, where=where)
            tree.update(self._block(metadata))
            return tree

        tree = self._locally(where, shape)
        try:
            with warnings.catch_warnings():
                # A world of one is no accident.
                warnings.filterwarnings("ignore", "torch.distributed is disabled")
                load(tree, storage_reader=reader)
        except CheckpointException as error:
            raise GenerationError(where, _first_line(error)) from error
        self._locally(where, lambda: self._apply(candidate, tree))

    def _locally(self, where: str, act: Any) -> Any:
        """Do *act*, and go on only where it worked on all ranks."""
        kept: list[Any] = []

        def keep() -> None:
            kept.append(act())

        self._world.agree(where, keep)
        return kept[0]

    def _block(self, metadata: Metadata) -> dict[str, torch.Tensor]:
        """Where this rank's own state goes; rank 0's, where this rank wrote none."""
        for name in (rank_state.name(self._world.rank), rank_state.name(0)):
            saved = metadata.state_dict_metadata.get(name)
            if isinstance(saved, TensorStorageMetadata):
                return {name: torch.empty(saved.size, dtype=torch.uint8)}
        return {}

    def _apply(self, candidate: Candidate, tree: dict[str, Any]) -> None:
        self._state.load_model(tree["model"])
        load_optimizer(self._state, tree[OPTIMIZER], where=str(candidate.generation))
        mine, rank = rank_state.name(self._world.rank), self._world.rank
        own = mine in tree
        block = tree.get(mine, tree.get(rank_state.name(0)))
        if block is None:
            log.warning("%s: no schedule, loader or random numbers in it", candidate.generation)
            return
        document = rank_state.unpack(block)
        if afresh := self._objects.load(document, own=own):
            log.warning("rank %d starts afresh with %s", rank, " and ".join(afresh))
        unused = candidate.world - self._world.size
        if unused > 0 and rank == 0:
            text = "%d ranks wrote %s: the loader positions and random numbers of %d are not used"
            log.warning(text, candidate.world, candidate.generation, unused)
        # Last: nothing that comes before may draw from it.
        if own:
            rank_state.load_rng(document["rng"])


def _first_line(error: CheckpointException) -> str:
    for rank, (cause, _) in sorted(error.failures.items()):
        return f"rank {rank}: {type(cause).__name__}: {cause}"
    return str(error)
