"""Where an order's flush meets what quiet time is moving: it never waits for that.

Stands between the flush and what it works on, and looks like both. What is moving of the very
generation that the plan chose goes on at full speed and *is* the step: only what is left of it
is planned. So is of what any try, be it quiet time's or a drill's, has left in a store. Whatever else moves on that lane is cancelled, and the flush goes ahead while it ends.
"""

from asyncio import CancelledError, Task, wait
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from evac.generation import Generation
from evacd.facts import Kind, Unit
from evacd.flush import OnBoard, Saves
from evacd.flush.save import Saved, Unsaved
from evacd.flush.there import There
from evacd.plan.risk import bytes_of
from evacd.workloads import Part, TurnResult

Progress: TypeAlias = Callable[[int], None]


class SavesAndKnows(Saves, Protocol):
    """What also knows what lies in which store already; `evacd.flush.save.Saver` does."""

    @property
    def there(self) -> There:
        """What of which generation."""
        ...


@dataclass(eq=False)
class Moving:
    """A generation on its way in quiet time.

    Attributes:
        nbytes: Of its bodies, those that were not there when it began.
        moved: How much of it is written so far.
        hurry: Makes it go as fast as the link does, and tell what it writes from then on.
        result: None while it moves, and where it was cancelled.
    """

    unit: str
    generation: Generation
    lane: str
    nbytes: int
    moved: Callable[[], int]
    hurry: Callable[[Progress | None], None]
    task: Task[None] | None = None
    hurried: bool = False
    result: Saved | Unsaved | None = None

    @property
    def left(self) -> int:
        """Bytes still to be written."""
        return max(self.nbytes - self.moved(), 0)

    def would_be(self, generation: Generation, kind: Kind, lane: str) -> bool:
        """Whether that step is what moves already."""
        return (self.generation, "full", self.lane) == (generation, kind, lane)

    def cancel(self) -> None:
        """Stop it; what a store has half of, it forgets."""
        if self.task is not None:
            self.task.cancel()

    async def ended(self) -> Saved | Unsaved | None:
        """Wait for the result; None where it was cancelled. Who gives up waiting ends it, too."""
        if self.task is not None:
            try:
                await wait([self.task])
            except CancelledError:
                self.task.cancel()
                raise
        return self.result


class GiveWay:
    """The workloads and the stores, as an order's flush shall see them.

    Args:
        on_board: The workloads themselves.
        saver: The stores, at full speed.
    """

    def __init__(self, on_board: OnBoard, saver: SavesAndKnows) -> None:
        self._on_board = on_board
        self._saver = saver
        # What was made last, and of what: nothing changes for seconds on end, and many ask.
        self._seen: tuple[tuple[Unit, ...], int] = ((), -1)
        self._less: tuple[Unit, ...] = ()
        self._moving: dict[str, Moving] = {}
        self._others: set[Callable[[], None]] = set()

    # --- what moves in quiet time --------------------------------------------------------

    def began(self, moving: Moving) -> None:
        """It moves; never two of one unit at once."""
        self._moving[moving.unit] = moving

    def over(self, moving: Moving) -> None:
        """It moves no more, however it ended."""
        if self._moving.get(moving.unit) is moving:
            del self._moving[moving.unit]

    def beside(self, cancel: Callable[[], None]) -> None:
        """Something else that gives way to a flush: a drill."""
        self._others.add(cancel)

    def no_more(self, cancel: Callable[[], None]) -> None:
        """It is over."""
        self._others.discard(cancel)

    def clear(self, lane: str | None = None) -> None:
        """Cancel what moves on *lane* (on all, where it is None), and whatever is beside it."""
        self._stop_moving(lane)
        for cancel in list(self._others):
            cancel()

    def not_durable(self) -> dict[str, int]:
        """Bytes of each unit's newest generation that no store has whole, moving or not."""
        return {unit.name: bytes_of(unit) for unit in self._on_board.units() if unit.candidates}

    # --- as the flush sees the workloads -------------------------------------------------

    def units(self) -> tuple[Unit, ...]:
        """See `OnBoard`: of a generation that moves, or has moved in part, only what is left is to be written."""
        there, units = self._saver.there, self._on_board.units()
        if units is not self._seen[0] or there.changes != self._seen[1]:
            self._seen = units, there.changes
            self._less = tuple(map(there.less, units))
        if not self._moving:
            return self._less
        return tuple(
            self._rest_of(unit, self._moving[unit.name]) if unit.name in self._moving else unit
            for unit in self._less
        )

    def left(self, unit: str, generation: Generation, nbytes: int, *, lane: str) -> int:
        """Bytes that *lane* would have to carry, of so many that a full generation has."""
        return max(nbytes - self._saver.there.nbytes(unit, generation, "full", lane), 0)

    def hold(self, unit: str, generation: Generation) -> AbstractContextManager[tuple[Part, ...]]:
        """See `OnBoard`."""
        return self._on_board.hold(unit, generation)

    def mark_durable(self, unit: str, generation: Generation, store: str) -> None:
        """See `OnBoard`."""
        self._on_board.mark_durable(unit, generation, store)

    async def turn(
        self,
        unit: str,
        *,
        seconds: float,
        order: str,
        patience: float | None = None,
        only: Collection[int] | None = None,
    ) -> TurnResult:
        """See `OnBoard`; a workload that flushes by itself needs the link, too."""
        self.clear(self._lane_of(unit))
        return await self._on_board.turn(
            unit, seconds=seconds, order=order, patience=patience, only=only
        )

    # --- as the flush sees the stores ----------------------------------------------------

    async def save(
        self,
        parts: Sequence[Part],
        *,
        lane: str,
        order: str,
        kind: Kind = "full",
        progress: Progress | None = None,
    ) -> Saved | Unsaved:
        """See `Saves`: ends what is moving of these parts, or moves them."""
        for cancel in list(self._others):
            cancel()
        return await self.rehearse(parts, lane=lane, order=order, kind=kind, progress=progress)

    async def rehearse(
        self,
        parts: Sequence[Part],
        *,
        lane: str,
        order: str,
        kind: Kind = "full",
        progress: Progress | None = None,
    ) -> Saved | Unsaved:
        """The same for a drill: quiet time's work gives way to it, as to an order."""
        moving = self._moving.get(parts[0].unit)
        if moving is not None and moving.would_be(parts[0].generation, kind, lane):
            # What the flush learns of the link's rate, it learns from what is left.
            left = moving.left
            moving.hurried = True
            moving.hurry(progress)
            self._stop_moving(lane)
            ended = await moving.ended()
            if isinstance(ended, Saved):
                return replace(ended, nbytes=left)
        self._stop_moving(lane)
        return await self._saver.save(parts, lane=lane, order=order, kind=kind, progress=progress)

    # --- the inside ----------------------------------------------------------------------

    def _stop_moving(self, lane: str | None) -> None:
        for moving in list(self._moving.values()):
            if (lane is None or moving.lane == lane) and not moving.hurried:
                moving.cancel()
                self.over(moving)

    def _lane_of(self, name: str) -> str | None:
        """Where it waits for its turn."""
        return next((u.lanes[0] for u in self._on_board.units() if u.name == name), None)

    @staticmethod
    def _rest_of(unit: Unit, moving: Moving) -> Unit:
        rest = tuple(
            replace(one, begun=(moving.lane, min(one.nbytes, moving.left)))
            if (one.generation, one.kind) == (moving.generation, "full")
            else one
            for one in unit.candidates
        )
        return replace(unit, candidates=rest)
