"""Who still wants something, in the order in which it is given. Pure.

First whoever has nothing safe, whatever its priority: a job that goes on training would else send one
generation after the other while others wait. Then, in what is left of the window, who has less than
it could have: its weights alone, or what only a peer's memory keeps, or its part of a generation that
is not the one that the job's nodes have agreed on, or what is older than what it has staged since. Last what survivors hold as well.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from evac.store.durability import is_durable
from evacd.facts import Candidate, Kept, Outcome, Step, Try, Unit
from evacd.flush.asked import Asked
from evacd.plan.risk import is_safe


def as_large(units: Iterable[Unit], step: Step) -> Iterator[Try]:
    """A store that refuses so many bytes for good refuses what is no smaller, too."""
    for unit in units:
        for one in unit.candidates if unit.name == step.unit else ():
            if one.left_on(step.lane) >= step.nbytes:
                yield unit.name, one.generation, one.kind, step.lane


@dataclass(frozen=True)
class Wants:
    """All units, and what became of them so far.

    Attributes:
        ordered: An order runs; else only those of *orphans* want anything.
        outcomes: Under this order.
        tried: What is not to be tried again.
        failed: Why each unit's tries failed, as it is to be told.
        asked: Which callback workloads have had their turn.
    """

    units: tuple[Unit, ...]
    ordered: bool
    orphans: Collection[str]
    outcomes: Mapping[str, Outcome]
    tried: Collection[Try]
    failed: Mapping[str, str]
    asked: Asked

    def unsafe(self) -> Iterator[Unit]:
        """Who has nothing safe yet; without candidates where nothing is left to try."""
        for unit in self.units:
            if not self.ordered and unit.name not in self.orphans:
                continue
            if not self.ordered and unit.deadline is None:
                # Nobody hurries, so it goes where it lasts; nothing would follow later.
                lanes = tuple(lane for lane in unit.lanes if is_durable(lane))
                lasting = replace(unit, lanes=lanes)
                unit = lasting if self._fresh(lasting, unit.candidates) else unit
            # What was kept under an order that is over says nothing of what died since.
            kept = self.ordered and isinstance(self.outcomes.get(unit.name), Kept)
            if unit.turn_seconds is not None:
                # Also where others of it have had theirs, and are safe.
                if self.ordered and self.asked.lacks(unit):
                    yield unit
            elif kept or is_safe(unit):
                continue
            elif unit.candidates and not self._fresh(unit, unit.candidates):
                reason = self.failed.get(unit.name, "no store took it")
                yield replace(unit, candidates=(), empty_because=reason)
            else:
                yield unit

    def unfinished(self) -> Iterator[Unit]:
        """Who is saved, but not for good: also past the deadline it is worth going on."""
        for unit, kept in self._kept():
            candidates = [one for one in unit.candidates if one.kind == "full"]
            lanes = unit.lanes
            if not is_durable(kept.store):
                lanes = tuple(lane for lane in lanes if is_durable(lane))
                if kept.kind == "full" and kept.generation is not None:
                    least = kept.generation
                    candidates = [
                        one
                        for one in candidates
                        if one.generation >= least or one.generation == unit.agreed
                    ]
            elif kept.kind == "full":
                # Without the other nodes' parts it is nothing, and theirs are of another one.
                if kept.durable or kept.generation == unit.agreed:
                    continue
                candidates = [one for one in candidates if one.generation == unit.agreed]
            yield from self._fresh_of(replace(unit, lanes=lanes), candidates)

    def newer(self) -> Iterator[Unit]:
        """Who is safe, and has staged a newer generation since."""
        for unit, kept in self._kept():
            if kept.kind != "full" or not is_durable(kept.store) or kept.generation is None:
                continue
            # Older ones are candidates still where other nodes' ranks are missing.
            newer = [
                one
                for one in unit.candidates
                if one.kind == "full" and one.generation > kept.generation
            ]
            yield from self._fresh_of(unit, newer)

    def held(self) -> Iterator[Unit]:
        """Whose own bytes are safe, while survivors hold the rest: a copy where there is time."""
        for unit, kept in self._kept():
            if kept.kind != "full" or kept.durable or not is_durable(kept.store):
                continue
            rest = [
                replace(
                    one, kind="held", nbytes=one.held_nbytes, held_nbytes=0, begun=None, there=()
                )
                for one in unit.candidates
                if one.kind == "full" and one.held_nbytes and one.generation == kept.generation
            ]
            # Beside its own bytes: half a generation in each of two stores is none.
            yield from self._fresh_of(replace(unit, lanes=(kept.store,)), rest)

    def _kept(self) -> Iterator[tuple[Unit, Kept]]:
        for unit in self.units:
            kept = self.outcomes.get(unit.name)
            if self.ordered and isinstance(kept, Kept) and unit.turn_seconds is None:
                yield unit, kept

    def _fresh_of(self, unit: Unit, candidates: list[Candidate]) -> Iterator[Unit]:
        if self._fresh(unit, tuple(candidates)):
            yield replace(unit, candidates=tuple(candidates))

    def _fresh(self, unit: Unit, candidates: tuple[Candidate, ...]) -> bool:
        return any(
            (unit.name, one.generation, one.kind, lane) not in self.tried
            for one in candidates
            for lane in unit.lanes
        )
