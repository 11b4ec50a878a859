"""Which generation a `dcp.load` loads: all ranks agree on it, and pass over those found damaged."""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from evac.commit import Problem
from evac.errors import GenerationError
from evac.generation import Generation
from evac.manifest import FULL
from evac.torch import blocking
from evac.torch.candidates import Candidate, Found, find, preference
from evac.torch.damage import Unsound, soundly
from evac.torch.dcp_job import Connected
from evac.torch.local_memory import HERE, LocalBodies, LocalMemory, NearestBodies, adopted, whole
from evac.torch.reader import StoreReader
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
            picked = self._try(candidate)
            if isinstance(picked, Picked):
                return picked
            for problem in picked:
                log.warning("%s: %s", problem.key, problem.reason)
        if found or self._trouble:
            why = self._trouble or "every generation is damaged, or of another step"
            raise GenerationError(self._all.prefix, f"nothing usable, and {why}")
        return None

    @contextmanager
    def noting(self, picked: Picked) -> Generator[None, None, None]:
        """What is found damaged in here is passed over from then on. No collective."""
        try:
            yield
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
        prefix, kept = self._all.prefix, list[Contents]()

        def act() -> tuple[Problem, ...]:
            if world.rank != 0:
                return ()
            found = look(candidate.store, prefix, generation, candidate.kind)
            if not isinstance(found, Contents):
                return found
            kept.append(found)
            return ()

        # Whatever looking raises is raised on all ranks.
        return world.agree(prefix, act)[0] or world.broadcast(kept[0] if kept else None)

    def _try(self, candidate: Candidate) -> Picked | tuple[Problem, ...]:
        contents = self._look(candidate)
        if not isinstance(contents, Contents):
            return contents
        where = str(candidate.generation)
        try:
            return soundly(self._all.world, where, lambda: self._opened(candidate, contents))
        except Unsound as error:
            return error.problems

    def _opened(self, candidate: Candidate, contents: Contents) -> Picked:
        local = self._memory.bodies(candidate.generation)
        store = partial(opened, candidate.store)
        bodies: LocalBodies | NearestBodies = local
        if candidate.store != HERE:
            bodies = NearestBodies(local, Bodies(store, contents), contents)
        reader = StoreReader(store, str(candidate.generation), contents, bodies)
        return Picked(candidate.generation, candidate.store, reader)
