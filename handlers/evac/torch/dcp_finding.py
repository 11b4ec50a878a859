"""Which generation a `dcp.load` loads: all ranks agree on it, and pass over those found damaged."""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from evac.commit import Problem
from evac.errors import GenerationError
from evac.generation import Generation
from evac.torch.damage import Unsound, soundly
from evac.torch.dcp_job import Connected
from evac.torch.gathering import Gathering
from evac.torch.holdings import Candidate, reaches
from evac.torch.local_memory import LocalMemory, adopted
from evac.torch.looking import Looked, described, look_for
from evac.torch.reader import StoreReader
from evac.torch.reader_bodies import Contents, opened

log = logging.getLogger("evac")


@dataclass(frozen=True, eq=False)
class Picked:
    """What is loaded, and how.

    Attributes:
        together: Some rank does not reach all of it by itself; equal on all ranks.
    """

    candidate: Candidate
    reader: StoreReader
    together: bool

    @property
    def generation(self) -> Generation:
        """Which one."""
        return self.candidate.generation


class Finding:
    """Looks through the node's memory and the stores. Every method but `close` is a collective.

    Args:
        weights: See `EvacReader`.
    """

    def __init__(self, connected: Connected, *, weights: bool) -> None:
        self._all = connected
        self._weights = weights
        self._memory = LocalMemory(None)
        self._damaged: set[tuple[Generation, tuple[str, ...]]] = set()

    def pick(self, step: int | None) -> Picked | None:
        """The newest whole generation, of *step* where it is given.

        Raises:
            GenerationError: None is usable, and starting over would be wrong.
        """
        self.close()
        self._memory = adopted(self._all.client)
        world, prefix = self._all.world, self._all.prefix
        stores, prefix = world.broadcast((self._all.stores, prefix))
        looked = look_for(world, self._memory, stores, prefix, weights=self._weights)
        found = looked.choices.candidates
        alone = self._alone(looked)
        self._damaged = set().union(*world.gather(self._damaged))
        for candidate in found:
            if step not in (None, candidate.generation.step):
                continue
            if (candidate.generation, candidate.places) in self._damaged:
                continue
            picked = self._try(candidate, looked, together=candidate not in alone)
            if isinstance(picked, Picked):
                return picked
            for problem in picked:
                log.warning("%s: %s", problem.key, problem.reason)
        if found or looked.choices.trouble:
            why = looked.choices.trouble or "every generation is damaged, or of another step"
            raise GenerationError(prefix, f"nothing usable, and {why}")
        return None

    @contextmanager
    def noting(self, picked: Picked) -> Generator[None, None, None]:
        """What is found damaged in here is passed over from then on. No collective."""
        try:
            yield
        except Unsound:
            self._damaged.add((picked.generation, picked.candidate.places))
            raise

    def close(self) -> None:
        """The daemon may have its memory back."""
        self._memory.close()

    def _alone(self, looked: Looked) -> list[Candidate]:
        """Those of which every rank has all near that no store has."""
        every = looked.choices.candidates

        def mine() -> list[bool]:
            return [reaches(one, looked.near, looked.stores) for one in every]

        told = self._all.world.agree(self._all.prefix, mine)
        return [one for n, one in enumerate(every) if all(theirs[n] for theirs in told)]

    def _try(
        self, candidate: Candidate, looked: Looked, *, together: bool
    ) -> Picked | tuple[Problem, ...]:
        world, where = self._all.world, str(candidate.generation)
        contents = described(world, self._memory, candidate, looked, self._all.prefix)
        if not isinstance(contents, Contents):
            return contents

        def open_it() -> Picked:
            near = self._memory.bodies(candidate.made, contents)
            if together:
                bodies = Gathering(world, opened, contents, near)
            else:
                bodies = Gathering.alone(opened, contents, near)
            return Picked(candidate, StoreReader(bodies, where, contents), together)

        try:
            return soundly(world, where, open_it)
        except Unsound as error:
            return error.problems
