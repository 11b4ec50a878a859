"""Moves one generation after the other to the durable store, slowly, while there is no order."""

import asyncio
from asyncio import TaskGroup, wait
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, NoReturn, Protocol

import structlog

from evac.errors import GenerationError
from evac.store import Owner, Store
from evacd.clock import Clock
from evacd.flush import OnBoard, Saves
from evacd.flush.save import Place, Saved, Unsaved, broken
from evacd.quiet.agree import begun
from evacd.quiet.choice import Began, Due, NotBefore, choose
from evacd.quiet.slow import Seen, Slow
from evacd.quiet.way import GiveWay, Moving

log = structlog.get_logger()

# Whatever broke may do so again at once, and must not keep the loop from everything else.
_BROKEN_SECONDS = 1.0


class ThinsOut(Saves, Protocol):
    """What saves, and thins out what became too much; `evacd.flush.save.Saver` does."""

    async def thin_out(self, place: Place, *, keep: int) -> str:
        """Delete what is older than the newest *keep* generations; why not, or ""."""
        ...


class Trickle:
    """Quiet time's work.

    Args:
        lanes: Durable ones, in order of preference: the first that takes a generation is it.
        on_board: The workloads themselves.
        way: Where orders find what moves.
        open_store: Gives the store behind a URL, at full speed.
        saver: Makes what saves from what opens stores.
        cap: Bytes per second of bodies on a lane, asked anew for each generation.
        learned: Told what a transfer has shown of a lane.
        interval: Seconds from one generation's beginning to the next one's, of one unit.
        keep: Whole generations per job that stay in a store.
        quiet: Nobody is in a hurry: no order runs, and nothing is being flushed or drilled.
        told: Told each event, by its name.
    """

    def __init__(
        self,
        lanes: Sequence[str],
        on_board: OnBoard,
        way: GiveWay,
        *,
        open_store: Callable[[str, Owner], Store],
        saver: Callable[[Callable[[str, Owner], Store]], ThinsOut],
        cap: Callable[[str], float],
        learned: Callable[[str, Seen], None],
        interval: float,
        keep: int,
        quiet: Callable[[], bool],
        clock: Clock,
        told: Callable[[str, Mapping[str, Any]], None],
    ) -> None:
        self._lanes = tuple(lanes)
        self._on_board = on_board
        self._way = way
        self._open_store = open_store
        self._saver = saver
        self._cap = cap
        self._learned = learned
        self._interval = interval
        self._keep = keep
        self._quiet = quiet
        self._clock = clock
        self._told = told
        self._began: dict[str, Began] = {}
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Something was staged, or it has become quiet."""
        self._wake.set()

    async def run(self) -> NoReturn:
        """Work until cancelled."""
        async with TaskGroup() as tasks:
            while True:
                self._wake.clear()
                next = self._choose() if self._quiet() else None
                if isinstance(next, Due):
                    try:
                        await self._move(next, tasks)
                    except Exception:  # a bug in quiet time must not end the daemon
                        log.exception("trickle.broke", unit=next.unit)
                        await asyncio.sleep(_BROKEN_SECONDS)
                else:
                    await self._rest(next)
        raise AssertionError("it runs until it is cancelled")

    def _choose(self) -> Due | NotBefore | None:
        units = self._on_board.units()
        present = {unit.name for unit in units}
        self._began = {unit: at for unit, at in self._began.items() if unit in present}
        return choose(
            units,
            lanes=frozenset(self._lanes),
            began=self._began,
            interval=self._interval,
            now=self._clock.monotonic(),
        )

    async def _rest(self, until: NotBefore | None) -> None:
        left = None if until is None else max(until.at - self._clock.monotonic(), 0.0)
        with suppress(TimeoutError):
            async with asyncio.timeout(left):
                await self._wake.wait()

    async def _agreed(self, due: Due) -> Due:
        """The same, or what other nodes of the job have begun with."""
        candidates = {
            one.generation: one.nbytes + one.held_nbytes
            for unit in self._on_board.units()
            if unit.name == due.unit
            for one in unit.candidates
            if one.kind == "full"
        }
        with (
            suppress(GenerationError),  # whoever left is noticed when it is held again
            self._on_board.hold(due.unit, due.generation) as parts,
        ):
            if parts[0].world > len(parts):
                store = self._open_store(self._lanes[0], parts[0].owner)
                found = await begun(store, parts[0], among=candidates, newest=due.generation)
                return replace(due, generation=found, nbytes=candidates.get(found, due.nbytes))
        return due

    async def _move(self, due: Due, tasks: TaskGroup) -> None:
        self._began[due.unit] = Began(self._clock.monotonic(), due.generation)
        due = await self._agreed(due)
        for lane in self._lanes:
            # Meanwhile an order may have come, and with it whoever would have found this moving.
            if not self._quiet() or not await self._failed(due, lane, tasks):
                return

    async def _failed(self, due: Due, lane: str, tasks: TaskGroup) -> bool:
        """Move it there; whether that store did not take it, so that another one may."""
        began, cap = self._clock.monotonic(), self._cap(lane)
        slow = Slow(self._open_store, cap, clock=self._clock.monotonic)
        moving = Moving(
            due.unit,
            due.generation,
            lane,
            self._way.left(due.unit, due.generation, due.nbytes, lane=lane),
            moved=lambda: slow.moved,
            hurry=slow.hurry,
        )
        saver = self._saver(slow.open)
        what = {"unit": due.unit, "generation": asdict(due.generation)}
        self._told("trickle.started", {**what, "nbytes": moving.nbytes, "bytes_per_second": cap})
        moving.task = tasks.create_task(self._save(moving, saver))
        self._way.began(moving)
        try:
            await wait([moving.task])
        finally:
            self._way.over(moving)
        if (seen := slow.seen()) is not None:
            self._learned(lane, seen)
        match moving.result:
            case None:
                self._told("trickle.cancelled", {**what, "nbytes": moving.moved()})
            case Unsaved(reason, fenced=fenced):
                told = {**what, "store": lane, "reason": reason, "fenced": fenced}
                self._told("trickle.failed", told)
                return True
            case Saved() as saved:
                took = self._clock.monotonic() - began
                self._told(
                    "trickle.finished",
                    {**what, "nbytes": moving.moved(), "generation_nbytes": saved.nbytes,
                     "seconds": took, "store": saved.store, "durable": saved.whole},
                )  # fmt: skip
                # Where a flush took over, it is not quiet any more; it thins out by itself.
                if not moving.hurried:
                    await self._thin_out(saved, saver)
        return False

    async def _save(self, moving: Moving, saver: Saves) -> None:
        try:
            with self._on_board.hold(moving.unit, moving.generation) as parts:
                result: Saved | Unsaved = await saver.save(parts, lane=moving.lane, order="")
        except GenerationError as error:
            # Its workload left between our look and our hold.
            result = Unsaved(error.reason, for_good=True)
        except Exception as error:  # as above
            log.exception("trickle.broke", unit=moving.unit)
            result = Unsaved(broken(error), for_good=False)
        moving.result = result
        # At once, so that no order finds it moving still.
        self._way.over(moving)
        if isinstance(result, Saved) and result.whole:
            self._on_board.mark_durable(moving.unit, moving.generation, result.store)

    async def _thin_out(self, saved: Saved, saver: ThinsOut) -> None:
        if saved.place is not None:
            wrong = await saver.thin_out(saved.place, keep=self._keep)
            if wrong:
                self._told("trickle.crowded", {"store": saved.store, "reason": wrong})
