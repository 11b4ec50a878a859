"""A flush in simulated time: workloads as facts, links of a steady rate, and what was told."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from evac.errors import GenerationError
from evac.generation import Generation
from evac.store import Owner
from evacd.facts import Candidate, Confidence, Kind, Order, Outcome, Unit
from evacd.flush import Flush
from evacd.flush.save import Place, Saved, Unsaved
from evacd.flush.there import There
from evacd.workloads import Part, TurnResult

LANE = "file:///store"
MB = 1_000_000
RATE = 100 * MB


class LoopClock:
    """The event loop's simulated time."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def utc(self) -> datetime:
        return datetime.now(UTC)


class Aboard:
    """Workloads as the flush sees them: facts, and who holds what."""

    def __init__(self, *units: Unit) -> None:
        self.all = {unit.name: unit for unit in units}
        self.held: tuple[str, Generation] = ("", Generation(0, 0))
        self.turns: list[tuple[str, float]] = []
        self.asked: list[Collection[int] | None] = []
        self.turn_takes = 0.5
        # What way the flush sees a unit.
        self.seen: Callable[[Unit], Unit] = lambda unit: unit

    def units(self) -> tuple[Unit, ...]:
        return tuple(map(self.seen, self.all.values()))

    @contextmanager
    def hold(self, unit: str, generation: Generation) -> Iterator[tuple[Part, ...]]:
        if unit not in self.all:
            raise GenerationError(str(generation), "it left")
        self.held = (unit, generation)
        yield ()

    def mark_durable(self, unit: str, generation: Generation, store: str) -> None:
        old = self.all[unit]
        newer = tuple(c for c in old.candidates if c.generation > generation)
        self.all[unit] = replace(old, candidates=newer)

    async def turn(
        self,
        unit: str,
        *,
        seconds: float,
        order: str,
        patience: float | None = None,
        only: Collection[int] | None = None,
    ) -> TurnResult:
        self.turns.append((unit, seconds))
        self.asked.append(only)
        patience = seconds if patience is None else patience
        if self.turn_takes > patience:
            await asyncio.sleep(patience)
            return TurnResult(False, 0, "no answer in its time")
        await asyncio.sleep(self.turn_takes)
        return TurnResult(True, 7, "")


class Link:
    """A store's link of a steady rate; some units it refuses."""

    def __init__(
        self,
        aboard: Aboard,
        *,
        rate: float = RATE,
        rates: Mapping[str, float] | None = None,
        refuses: Sequence[str] = (),
        resets: Sequence[str] = (),
        partial: Sequence[str] = (),
        breaks: Sequence[str] = (),
        fences: Sequence[tuple[str, int]] = (),
        heals: float = math.inf,
        keeps: float = 0.0,
    ) -> None:
        """*resets* and *breaks* are over at *heals*, seconds on the loop's clock.

        Args:
            fences: Units and steps of which somebody else has committed other bytes.
            keeps: The share of its bytes that lies there, as whole bodies, after a reset.
        """
        self._aboard = aboard
        self.rate = rate
        self.rates = dict(rates or {})
        self.refuses = refuses
        self.resets = resets
        self.partial = partial
        self.breaks = breaks
        self.fences = fences
        self.heals = heals
        self.keeps = keeps
        self.there = There()
        aboard.seen = self.there.less
        self.log: list[tuple[float, str, int]] = []
        self.lanes: list[tuple[str, int, Kind, str]] = []
        self.cancelled: list[tuple[str, int, Kind, str]] = []

    async def save(
        self,
        parts: Sequence[Part],
        *,
        lane: str,
        order: str,
        kind: Kind = "full",
        progress: Callable[[int], None] | None = None,
    ) -> Saved | Unsaved:
        unit, generation = self._aboard.held
        self.log.append((asyncio.get_running_loop().time(), unit, generation.step))
        self.lanes.append(what := (unit, generation.step, kind, lane))
        candidates = [c for c in self._aboard.all[unit].candidates if c.generation == generation]
        if kind == "held":
            nbytes = candidates[0].held_nbytes
        else:
            nbytes = next(c.nbytes for c in candidates if c.kind == kind)
        kept = int(nbytes * self.keeps)
        key = f"{unit}/{generation.directory}/kept"
        bodies: dict[Kind, dict[str, int]] = {kind: {key: kept, f"{key}-not": nbytes - kept}}
        moved = nbytes - self.there.nbytes(unit, generation, kind, lane)
        self.there.begin(unit, generation, lane, url=lane, bodies=bodies)
        assert progress is not None
        try:
            for _ in range(100):
                await asyncio.sleep(moved / self.rates.get(lane, self.rate) / 100)
                progress(moved // 100)
        except asyncio.CancelledError:
            self.cancelled.append(what)
            raise
        if unit in self.refuses or f"{unit} on {lane}" in self.refuses:
            return Unsaved("the disk is full", for_good=True)
        if (unit, generation.step) in self.fences:
            return Unsaved("fenced", for_good=True, fenced=True)
        healed = asyncio.get_running_loop().time() >= self.heals
        if unit in self.breaks and not healed:
            raise RuntimeError("can't start new thread")
        if unit in self.resets and not healed:
            if kept:
                self.there.written.note(lane, key, kept, ())
            return Unsaved("connection reset", for_good=False)
        place = Place(lane, unit, Owner(0, 0))
        held = kind == "full" and candidates[0].held_nbytes > 0
        whole = unit not in self.partial and kind != "weights" and not held
        return Saved(lane, nbytes, whole=whole, place=place)


def staged(name: str, priority: int, *sizes: int, lanes: tuple[str, ...] = (LANE,)) -> Unit:
    """Sizes in MB, newest first; steps count down from 9."""
    found = tuple(Candidate(Generation(1, 9 - i), mb * MB) for i, mb in enumerate(sizes))
    return Unit(name, priority, arrived=0.0, lanes=lanes, candidates=found)


def order(deadline: float, id: str = "o1") -> Order:
    return Order(id, deadline, Confidence.CERTAIN, "test", "drain", given=0.0)


class Told:
    def __init__(self) -> None:
        self.events: list[tuple[str, Mapping[str, Any]]] = []
        self.outcomes: list[Outcome] = []

    def record(self, name: str, data: Mapping[str, Any]) -> None:
        self.events.append((name, data))


@asynccontextmanager
async def flushing(
    aboard: Aboard, link: Link, told: Told, *, lanes: Sequence[str] = (LANE,), reserve: float = 1.0
) -> AsyncIterator[Flush]:
    flush = Flush(
        aboard,
        link,
        lanes=lanes,
        assumed=RATE,
        reserve=reserve,
        commit_seconds=0.0,
        clock=LoopClock(),
        record=told.record,
        ended=told.outcomes.append,
        idle=lambda: None,
    )
    async with asyncio.TaskGroup() as tasks:
        drivers = [tasks.create_task(flush.drive(lane)) for lane in lanes]
        yield flush
        for driver in drivers:
            driver.cancel()
