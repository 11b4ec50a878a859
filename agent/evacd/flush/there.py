"""How much of each generation lies in a store already, so that no plan counts what no try will send. Pure.

Tries end in the middle: they fail, give way to something better, or are a drill's or quiet time's; and a job of several nodes is
whole in no store before all of them have written. What such a try had put as whole bodies, `evac.commit.Written` knows, and the
next one looks for them and sends the others alone, in every kind of store. Half a body is none: stores forget it. A peer's
memory may be gone the next moment, with all that it held, and of several peers another one may be chosen: there nothing is
counted on.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from evac.commit import Written
from evac.generation import Generation
from evac.store.durability import is_durable
from evacd.facts import Candidate, Kind, Unit

# Of so many units it is remembered, the last ones; of each so many generations, each in one store.
_UNITS, _GENERATIONS = 1024, 16


@dataclass(frozen=True)
class _Begun:
    """What somebody has once begun to write.

    Attributes:
        url: The store's own name.
        bodies: The sizes of its bodies, by key; of each kind.
    """

    url: str
    bodies: Mapping[Kind, Mapping[str, int]]


class There:
    """One for all that save on this node: flushes, quiet time and drills.

    Attributes:
        written: Told of each body that is put.
    """

    def __init__(self) -> None:
        self.written = Written()
        self._begun: dict[str, dict[tuple[Generation, str], _Begun]] = {}
        self._begins = 0

    @property
    def changes(self) -> int:
        """Goes up with each change of what is known."""
        return self._begins + self.written.changes

    def begin(
        self,
        unit: str,
        generation: Generation,
        lane: str,
        *,
        url: str,
        bodies: Mapping[Kind, Mapping[str, int]],
    ) -> None:
        """Somebody writes it there.

        Args:
            url: As `Written` is told of that store.
            bodies: The sizes of the bodies that each kind consists of, by key.
        """
        if not is_durable(lane):
            return
        self._begins += 1
        known = self._begun.pop(unit, {})
        known.pop((generation, lane), None)
        known[generation, lane] = _Begun(url, bodies)
        if len(known) > _GENERATIONS:
            del known[next(iter(known))]
        self._begun[unit] = known
        if len(self._begun) > _UNITS:
            del self._begun[next(iter(self._begun))]

    def nbytes(self, unit: str, generation: Generation, kind: Kind, lane: str) -> int:
        """Bytes of it that no try would send to *lane* again."""
        begun = self._begun.get(unit, {}).get((generation, lane))
        if begun is None:
            return 0
        return self.written.nbytes_of(begun.url, begun.bodies.get(kind, {}))

    def less(self, unit: Unit) -> Unit:
        """*unit*, and of each of its candidates what lies in which store."""
        if unit.name not in self._begun:
            return unit
        return replace(unit, candidates=tuple(self._less(unit, one) for one in unit.candidates))

    def _less(self, unit: Unit, one: Candidate) -> Candidate:
        there = tuple(self._lanes(unit, one))
        return replace(one, there=there) if there else one

    def _lanes(self, unit: Unit, one: Candidate) -> Iterator[tuple[str, int]]:
        for (generation, lane), begun in self._begun[unit.name].items():
            if generation != one.generation:
                continue
            bodies = begun.bodies.get(one.kind, {})
            # Of another size it is another launch's, with which this one has no byte in common.
            if sum(bodies.values()) == one.nbytes and (
                nbytes := self.written.nbytes_of(begun.url, bodies)
            ):
                yield lane, nbytes
