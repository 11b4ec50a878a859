"""Which generation a `dcp.load` loads: all ranks agree on it, and pass over those found damaged."""

import logging
from dataclasses import dataclass
from functools import partial

from torch.distributed.checkpoint.planner import LoadPlan

from evac.commit import Problem
from evac.errors import GenerationError
from evac.generation import Generation
from evac.manifest import FULL
from evac.torch import blocking
from evac.torch.candidates import Candidate, Found, find, preference
from evac.torch.dcp_job import Connected
from evac.torch.local_memory import HERE, LocalBodies, LocalMemory, NearestBodies, adopted, whole
from evac.torch.reader import StoreReader, Unsound
from evac.torch.reader_bodies import Bodies, Contents, look, opened

log = logging.getLogger("evac")


@dataclass(frozen=True, eq=False)
class Picked:
    """What is loaded, and how."""

    generation: Generation
    store: str
    reader: StoreReader


class Finding:
    """Looks through the node's memory and the stores. Every method but `close` is a collective.

    Args:
        weights: See `EvacReader`.
    """

    def __init__(self, connected: Connected, *, weights: bool) -> None:
        self._all = connected
        self._weights = weights
        self._memory = LocalMemory(None)
        self._damaged: set[tuple[Generation, str]] = set()

    def pick(self, step: int | None) -> Picked | None:
        """The newest whole generation, of *step* where it is given.

        Raises:
            GenerationError: None is usable, and starting over would be wrong.
        """
        self.close()
        self._memory = adopted(self._all.client)
        found = self._find()
        self._damaged = set().union(*self._all.world.gather(self._damaged))
        for candidate in found:
            if step not in (None, candidate.generation.step):
                continue
            if (candidate.generation, candidate.store) in self._damaged:
                continue
            contents = self._look(candidate)
            if isinstance(contents, Contents):
                return self._opened(candidate, contents)
            for problem in contents:
                log.warning("%s: %s", problem.key, problem.reason)
        if found or self._trouble:
            why = self._trouble or "every generation is damaged, or of another step"
            raise GenerationError(self._all.prefix, f"nothing usable, and {why}")
        return None

    def checked(self, picked: Picked, plan: LoadPlan) -> LoadPlan:
        """Read what *plan* needs. No collective.

        Raises:
            Unsound: See `StoreReader`; the generation is passed over from then on.
        """
        try:
            return picked.reader.prepare_local_plan(plan)
        except Unsound:
            self._damaged.add((picked.generation, picked.store))
            raise

    def close(self) -> None:
        """The daemon may have its memory back."""
        self._memory.close()

    def _find(self) -> list[Candidate]:
        world = self._all.world
        stores, prefix = world.broadcast((self._all.stores, self._all.prefix))

        def ask() -> Found | None:
            if world.rank != 0:
                return None
            return blocking.run(lambda: find(stores, prefix, weights=self._weights))

        found = world.agree(prefix, ask)[0]
        assert found is not None
        self._trouble = found.trouble
        offers = world.gather(self._memory.offers())
        here = [Candidate(one, HERE, ranks, FULL) for one, ranks in whole(offers)]
        return sorted([*here, *found.candidates], key=preference, reverse=True)

    def _look(self, candidate: Candidate) -> Contents | tuple[Problem, ...]:
        world, generation = self._all.world, candidate.generation
        if candidate.store == HERE:
            mine = self._memory.look(generation)
            failed = world.gather(() if isinstance(mine, Contents) else mine)
            return next(filter(None, failed), mine)
        where = (candidate.store, self._all.prefix, generation, candidate.kind)
        told: tuple[Contents | tuple[Problem, ...]] | None = None
        if world.rank == 0:
            told = (look(*where),)
        return world.broadcast(told)[0]

    def _opened(self, candidate: Candidate, contents: Contents) -> Picked:
        local = self._memory.bodies(candidate.generation)
        store = partial(opened, candidate.store)
        bodies: LocalBodies | NearestBodies = local
        if candidate.store != HERE:
            bodies = NearestBodies(local, Bodies(store, contents), contents)
        reader = StoreReader(store, str(candidate.generation), contents, bodies)
        return Picked(candidate.generation, candidate.store, reader)
