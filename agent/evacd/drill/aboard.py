"""The workloads and the stores as a drill sees them: each unit goes once, and no turn is given."""

from asyncio import sleep
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager

from evac.generation import Generation
from evacd.facts import Kind, Unit
from evacd.flush.save import Saved, Unsaved
from evacd.quiet import GiveWay
from evacd.workloads import Part, TurnResult


class Rehearsal:
    """Whoever is on board when it begins.

    Args:
        way: The real workloads and stores, and what quiet time is moving.
        names: Of the units that take part.
    """

    def __init__(self, way: GiveWay, names: Collection[str]) -> None:
        self._way = way
        self._left = set(names)
        self._seen: tuple[Unit, ...] = ()
        self._mine: tuple[Unit, ...] = ()

    def done(self, unit: str) -> None:
        """It is safe; what it stages from now on is no part of the drill."""
        self._left.discard(unit)
        self._seen = ()

    def units(self) -> tuple[Unit, ...]:
        """See `OnBoard`."""
        if (units := self._way.units()) is not self._seen:
            self._seen, self._mine = units, tuple(one for one in units if one.name in self._left)
        return self._mine

    def hold(self, unit: str, generation: Generation) -> AbstractContextManager[tuple[Part, ...]]:
        """See `OnBoard`."""
        return self._way.hold(unit, generation)

    def mark_durable(self, unit: str, generation: Generation, store: str) -> None:
        """See `OnBoard`."""
        self._way.mark_durable(unit, generation, store)

    async def turn(
        self,
        unit: str,
        *,
        seconds: float,
        order: str,
        patience: float | None = None,
        only: Collection[int] | None = None,
    ) -> TurnResult:
        """See `OnBoard`: its workload is not asked, and is taken at its word for the time."""
        promised = next((u.turn_seconds for u in self.units() if u.name == unit), None)
        await sleep(promised or 0.0)
        return TurnResult(ok=True, nbytes=0, reason="")

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
        return await self._way.rehearse(parts, lane=lane, order=order, kind=kind, progress=progress)
