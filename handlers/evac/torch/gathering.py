"""All ranks together fetch what each of them needs of one generation, from wherever it lies.

In rounds that all ranks go through alike: they tell what they need, each works out what it is to read
(`parting`), reads and checks that, and all hear what could not be read. What failed in one place is
looked for in the next, in another round; where there is none, nobody gets anything. No rank enters
a collective on its own finding, and nothing is handed out before all of it has been checked.

A world of one, or a rank that loads by itself (`World.alone`), does the same by itself.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from evac.commit import Problem
from evac.manifest import CHUNK
from evac.store import Store
from evac.torch.damage import Unsound, together
from evac.torch.local_memory import HERE, LocalBodies
from evac.torch.origins import ELSEWHERE, Origins
from evac.torch.parting import Chunks, Move, Parts, numbers, parts, runs, shared
from evac.torch.passing import pass_on
from evac.torch.reader_bodies import Bodies, Contents, Failure, Span, covering
from evac.torch.rooms import Room, common, meet
from evac.torch.world import World

log = logging.getLogger("evac")


class Gathering:
    """One generation's bytes, fetched by all ranks of *world*, which make one alike.

    Args:
        store: Opens the store of a URL.
        contents: What there is, equal on all ranks.
        local: What of it is in this node's memory.
    """

    def __init__(
        self,
        world: World,
        store: Callable[[str], Store],
        contents: Contents,
        local: LocalBodies,
    ) -> None:
        self._world = world
        self._open = store
        self._contents = contents
        self._local = local
        self._nbytes = {name: one.nbytes for name, one in contents.bodies.items()}
        self._room: Room | None = None
        self._stores: _Stores | None = None
        self._groups: Sequence[int] = ()
        # What this rank needs, and what of it is in the room.
        self._needs: dict[str, set[int]] = {}
        self._checked: dict[str, set[int]] = {}
        self._there: dict[str, set[int]] = {}
        # Equal on all ranks: what some rank could not read from any store, and why.
        self._gone: dict[str, Problem] = {}
        self._passed = 0

    @classmethod
    def alone(
        cls, store: Callable[[str], Store], contents: Contents, local: LocalBodies | None = None
    ) -> "Gathering":
        """For a rank that loads by itself."""
        return cls(World.alone(), store, contents, local or LocalBodies(contents, {}))

    @property
    def nbytes(self) -> int:
        """How much this rank has read, and was right."""
        return sum(self.origins.nbytes.values()) - self._local.unsummed

    @property
    def origins(self) -> Origins:
        """Where this rank has read that."""
        found = Counter(self._stores.read if self._stores else {})
        found[HERE] = self._local.nbytes + self._local.unsummed
        found[ELSEWHERE] = self._passed
        return Origins({place: nbytes for place, nbytes in found.items() if nbytes})

    @property
    def unsummed(self) -> int:
        """How much of it there was no checksum for yet."""
        return self._local.unsummed

    def fetch(self, spans: Iterable[Span]) -> tuple[Problem, ...]:
        """Have *spans* here, checked; or what is wrong, on all ranks alike. Collective.

        Args:
            spans: May raise `Unsound` while they are told.

        Raises:
            GenerationError: On all ranks alike, where another error was met in telling them.
        """
        told = self._world.agree(self._contents.folder, lambda: self._need(spans))
        if problems := together(told):
            return problems
        while True:
            todo = self._divide()
            if todo is None:
                return ()
            if todo.lost:
                return self._lost(todo.lost)
            failures = self._world.agree(self._contents.folder, partial(self._read, todo))
            if not any(failures):
                damaged = self._pass_on(todo.moves) if todo.moves else ()
                if damaged:
                    return tuple(self._problem(move.body, "arrived damaged") for move in damaged)
                self._note()
                return ()
            for rank, some in enumerate(failures):
                for one in some:
                    self._pass_over(rank, one)

    def memory(self, body: str) -> memoryview:
        """All of *body*, as far as it was fetched; nobody may write to it."""
        if body in self._local:
            return self._local.memory(body)
        assert self._room is not None
        return self._room.memory(body)

    def drop(self) -> None:
        """Give the memory back; what is needed again is fetched again."""
        if self._room is not None:
            self._room.drop()
        self._needs.clear()
        self._checked.clear()
        self._there.clear()

    def _need(self, spans: Iterable[Span]) -> tuple[Problem, ...]:
        try:
            chunks = covering(spans, self._contents)
        except Unsound as error:
            return error.problems
        if isinstance(chunks, Problem):
            return (chunks,)
        for body, some in chunks.items():
            self._needs.setdefault(body, set()).update(numbers(some))
        return ()

    def _divide(self) -> Parts | None:
        """What this rank is to do; None where no rank needs anything."""
        missing: dict[str, tuple[tuple[int, int], ...]] = {}
        for body, some in self._needs.items():
            have = self._checked if body in self._local else self._there
            if left := some - have.get(body, set()):
                missing[body] = runs(left)
        told = self._world.gather((missing, self._local.names))
        needs, near = [one for one, _ in told], [here for _, here in told]
        if not any(needs):
            return None
        self._settle(needs, near)
        stored = {body for has in self._contents.stores.values() for body in has} - set(self._gone)
        return parts(self._world.rank, needs, self._groups, near, stored)

    def _settle(self, needs: Sequence[Chunks], near: Sequence[frozenset[str]]) -> None:
        """Once: where what is read is to lie."""
        if self._room is not None:
            return
        alone: Sequence[int] = range(self._world.size)
        self._groups = alone
        self._room = Room(self._nbytes)
        if self._world.size > 1:
            groups = meet(self._world)
            if shared(needs, groups, near):
                self._room, self._groups = common(self._world, groups, self._nbytes)
        self._stores = _Stores(self._open, self._contents, self._room)

    def _read(self, todo: Parts) -> list[Failure]:
        """This rank's part; what of it could not be read."""
        assert self._stores is not None
        if damaged := self._local.fetch(todo.checks):
            return damaged
        failure = self._stores.fetch(todo.reads)
        return [failure] if failure else []

    def _pass_over(self, rank: int, failure: Failure) -> None:
        """Not there any more: on one node where its memory is damaged, or in no store."""
        if not failure.near:
            self._gone[failure.body] = failure.problem
        elif rank == self._world.rank:
            log.warning("%s: %s", failure.problem.key, failure.problem.reason)
            self._checked.pop(failure.body, None)

    def _pass_on(self, moves: Sequence[Move]) -> tuple[Move, ...]:
        room = self._room
        assert room is not None
        mine = [move for move in moves if self._world.rank == move.receiver]
        damaged = pass_on(self._world, moves, self._local.memory, room.memory)
        for move in mine:
            end = min(move.end * CHUNK, self._nbytes[move.body])
            self._passed += end - move.first * CHUNK
        return damaged

    def _note(self) -> None:
        """All that this rank needs is here now."""
        for body, some in self._needs.items():
            have = self._checked if body in self._local else self._there
            have.setdefault(body, set()).update(some)

    def _lost(self, bodies: Iterable[str]) -> tuple[Problem, ...]:
        return tuple(
            self._gone.get(body) or self._problem(body, "is in no store and in no node's memory")
            for body in sorted(bodies)
        )[:1]

    def _problem(self, body: str, reason: str) -> Problem:
        return Problem(f"{self._contents.folder}/{body}", reason)


class _Stores:
    """Several stores as one: what cannot be read in one is read in the next.

    Attributes:
        read: How much from each, and was right.
    """

    def __init__(self, store: Callable[[str], Store], contents: Contents, room: Room) -> None:
        self._has = dict(contents.stores)
        self._order = list(self._has)
        self._bodies = {url: Bodies(partial(store, url), contents, room) for url in contents.stores}
        self._tried: dict[str, Failure] = {}

    @property
    def read(self) -> Mapping[str, int]:
        return {url: one.nbytes for url, one in self._bodies.items()}

    def fetch(self, chunks: Chunks) -> Failure | None:
        """Read *chunks*; what is in no store that it could be read from."""
        left = dict(chunks)
        while left:
            first = min(left)
            url = next((one for one in self._order if first in self._has[one]), None)
            if url is None:
                return self._tried[first]
            some = {body: runs for body, runs in left.items() if self._first(body) == url}
            if failure := self._bodies[url].fetch(some):
                self._tried[failure.body] = failure
                self._has[url] = self._has[url] - {failure.body}
                # A store that is down is asked last from now on.
                self._order.sort(key=url.__eq__)
                if any(failure.body in self._has[one] for one in self._order):
                    text = "%s: %s; another place has it as well"
                    log.warning(text, failure.problem.key, failure.problem.reason)
                continue
            for body in some:
                del left[body]
        return None

    def _first(self, body: str) -> str | None:
        return next((url for url in self._order if body in self._has[url]), None)
