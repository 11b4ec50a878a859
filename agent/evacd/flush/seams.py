"""What the flush works with: who is on board, and what puts parts into a store."""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from evac.generation import Generation
from evacd.facts import Kind, Unit
from evacd.flush.save import Saved, Unsaved
from evacd.workloads import Part, TurnResult


class OnBoard(Protocol):
    """What the flush needs of the workloads; `evacd.workloads.Board` has it."""

    def units(self) -> tuple[Unit, ...]:
        """Who could be saved, and what of them."""
        ...

    def hold(self, unit: str, generation: Generation) -> AbstractContextManager[tuple[Part, ...]]:
        """Pin a generation's slots for as long as the context is open."""
        ...

    def mark_durable(self, unit: str, generation: Generation, store: str) -> None:
        """The generation is whole in *store*, a durable one."""
        ...

    async def turn(
        self,
        unit: str,
        *,
        seconds: float,
        order: str,
        patience: float | None = None,
        only: Collection[int] | None = None,
    ) -> TurnResult:
        """Let callback workloads flush themselves; an answer counts for *patience* seconds.

        Args:
            only: Whom to ask, of `Unit.callers`; everybody by default.
        """
        ...


class Saves(Protocol):
    """What puts parts into a store; `evacd.flush.save.Saver` does."""

    async def save(
        self,
        parts: Sequence[Part],
        *,
        lane: str,
        order: str,
        kind: Kind = "full",
        progress: Callable[[int], None] | None = None,
    ) -> Saved | Unsaved:
        """Write and commit all *parts* in the store of *lane*; returns why not where it fails.

        Args:
            kind: How much of them.
            progress: Told of further bytes that are written, from any thread.
        """
        ...
