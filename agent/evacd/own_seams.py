"""What orders of single jobs work with: the flush, and who is on board."""

import asyncio
from collections.abc import Collection
from typing import Protocol

from evacd.facts import Order, Outcome, Unit
from evacd.workloads import TurnResult


class Moves(Protocol):
    """What carries them out; `evacd.flush.Flush` does."""

    order: Order | None
    outcomes: dict[str, Outcome]
    settled: asyncio.Event

    @property
    def running(self) -> Collection[object]:
        """What moves now."""
        ...

    def rescue(self, unit: str, *, deadline: float | None = None) -> None:
        """Save one unit, by *deadline*; `ended` and `idle` are told what becomes of it."""
        ...


class OnBoard(Protocol):
    """Who knows the jobs of this node; `evacd.workloads.Board` does."""

    def units(self) -> tuple[Unit, ...]:
        """Who is on board."""
        ...

    def returning(self, unit: str) -> bool:
        """Whether processes of before may still come back with what a unit lacks to be whole."""
        ...

    def callers(self, unit: str) -> int:
        """How many callback workloads of a unit are on board."""
        ...

    def hurry(self, order: Order, unit: str | None = None) -> None:
        """Whoever has a turn under *order*, of *unit* alone, has no more time than it leaves."""
        ...


class Turns(Protocol):
    """Who has callback workloads; `evacd.workloads.Board` does."""

    async def turn(
        self, unit: str, *, seconds: float, order: str, patience: float | None = None
    ) -> TurnResult:
        """Let every callback workload of *unit* flush itself."""
        ...
