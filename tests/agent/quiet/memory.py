"""Workloads of one process for quiet time's tests: real memory, real stores, no sockets."""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from evac.errors import GenerationError
from evac.generation import Generation
from evac.segment import PAGE, aligned
from evac.store import Owner, Store, is_durable
from evac.store.local import LocalStore
from evacd.clock import SystemClock
from evacd.facts import Candidate, Confidence, Kind, Order, Unit
from evacd.flush import Flush
from evacd.flush.save import Place, Saved, Saver, Unsaved
from evacd.flush.there import There
from evacd.quiet import GiveWay, Seen, Trickle
from evacd.workloads import Part, TurnResult
from evacd.workloads.checksums import Sums
from evacd.workloads.memory import Region, build

MIB = 1024 * 1024
CLOCK = SystemClock()
LIMIT = 60.0


class Aboard:
    """What the board is to the flush, with one rank per unit."""

    def __init__(self, lanes: tuple[str, ...], ends: ExitStack) -> None:
        self.lanes = lanes
        self._ends = ends
        self._held: dict[tuple[str, Generation], Region] = {}
        self._sizes: dict[tuple[str, Generation], int] = {}
        self._durable: dict[str, Generation] = {}
        self.priorities: dict[str, int] = {}
        self.turns: list[str] = []
        self.world, self.rank = 1, 0
        self.count = 0
        self.changed: Callable[[], None] = lambda: None

    def stage(self, unit: str, step: int, nbytes: int, *, priority: int = 1) -> Generation:
        """One more generation, of zeros."""
        generation = Generation(1, step)
        region = build(PAGE + aligned(nbytes), lambda: False)
        self._ends.callback(region.close)
        self._held[unit, generation], self._sizes[unit, generation] = region, nbytes
        self.priorities[unit] = priority
        self.count += 1
        self.changed()
        return generation

    def gone(self, unit: str) -> None:
        """It left."""
        for key in [key for key in self._held if key[0] == unit]:
            del self._held[key]
        self.priorities.pop(unit)

    def units(self) -> tuple[Unit, ...]:
        return tuple(
            Unit(
                unit, priority, 0.0, self.lanes,
                tuple(
                    Candidate(one, self._sizes[unit, one])
                    for one in sorted((g for name, g in self._held if name == unit), reverse=True)
                    if unit not in self._durable or one > self._durable[unit]
                ),
                durable=self._durable.get(unit),
            )
            for unit, priority in self.priorities.items()
        )  # fmt: skip

    @contextmanager
    def hold(self, unit: str, generation: Generation) -> Iterator[tuple[Part, ...]]:
        region = self._held.get((unit, generation))
        if region is None:
            raise GenerationError(str(generation), "it left")
        nbytes = self._sizes[unit, generation]
        part = Part(
            unit=unit, job=unit.rpartition("/")[2], run="", generation=generation, rank=self.rank,
            world=self.world, prefix=unit, owner=Owner(0, 0), body=f"part{self.rank}.bin", layout="plain",
            data=region.view(PAGE, nbytes), items=(), metadata=b"", sums=Sums(region, nbytes),
        )  # fmt: skip
        try:
            yield (part,)
        finally:
            part.data.release()

    def mark_durable(self, unit: str, generation: Generation, store: str) -> None:
        self._durable[unit] = max(generation, self._durable.get(unit, generation))

    async def turn(
        self,
        unit: str,
        *,
        seconds: float,
        order: str,
        patience: float | None = None,
        only: Collection[int] | None = None,
    ) -> TurnResult:
        self.turns.append(unit)
        return TurnResult(True, 0, "")


class Node:
    """A flush, a trickle, and what both said."""

    def __init__(
        self,
        folder: Path,
        ends: ExitStack,
        *,
        cap: float,
        interval: float,
        others: Sequence[str] = (),
    ) -> None:
        self.lane = f"file://{folder}"
        self.lanes = (self.lane, *others)
        self.folder = folder
        self.aboard = Aboard(self.lanes, ends)
        self.said: list[tuple[str, Mapping[str, Any]]] = []
        self.flushed: list[tuple[str, int]] = []
        self.learned: list[Seen] = []
        self.drilling = False
        saver = Saver(self.open_store, node="node-1")
        self.way = GiveWay(self.aboard, _Watched(saver, self.flushed))
        self.flush = Flush(
            self.way, self.way,
            lanes=self.lanes, assumed=1e9, reserve=0.0, commit_seconds=0.0, clock=CLOCK,
            record=self._said, ended=lambda _: None, idle=lambda: self.trickle.wake(),
        )  # fmt: skip
        self.trickle = Trickle(
            [lane for lane in self.lanes if is_durable(lane)], self.aboard, self.way,
            open_store=self.open_store, saver=saver.through, cap=lambda _: cap,
            learned=lambda lane, seen: self.learned.append(seen), interval=interval, keep=2, quiet=self.quiet, clock=CLOCK, told=self._said,
        )  # fmt: skip
        self.aboard.changed = self.trickle.wake

    def open_store(self, url: str, owner: Owner) -> Store:
        return LocalStore(url.removeprefix("file://"))

    def quiet(self) -> bool:
        return self.flush.order is None and self.flush.settled.is_set() and not self.drilling

    def order(self, seconds: float = 30.0) -> Order:
        now = CLOCK.monotonic()
        return Order("o1", now + seconds, Confidence.CERTAIN, "test", "drain", given=now)

    def left(self) -> int:
        """Bytes of what moves that are still to be written; very many where nothing does."""
        begun = [one.begun for unit in self.way.units() for one in unit.candidates if one.begun]
        return begun[0][1] if begun else 1 << 60

    def heard(self, name: str) -> list[Mapping[str, Any]]:
        return [data for said, data in self.said if said == name]

    def steps(self, name: str) -> list[int]:
        return [data["generation"]["step"] for data in self.heard(name)]

    async def until(self, true: Callable[[], object]) -> None:
        """Wait until something is so; fail after 30 s."""
        async with asyncio.timeout(LIMIT):
            while not true():  # noqa: ASYNC110 - most of what is waited for has no event
                await asyncio.sleep(0.005)

    def _said(self, name: str, data: Mapping[str, Any]) -> None:
        self.said.append((name, data))


class _Watched:
    """Notes what is saved at full speed, from the first byte on."""

    def __init__(self, saver: Saver, log: list[tuple[str, int]]) -> None:
        self._saver = saver
        self._log = log

    async def save(
        self,
        parts: Sequence[Part],
        *,
        lane: str,
        order: str,
        kind: Kind = "full",
        progress: Callable[[int], None] | None = None,
    ) -> Saved | Unsaved:
        self._log.append((parts[0].unit, parts[0].generation.step))
        return await self._saver.save(parts, lane=lane, order=order, kind=kind, progress=progress)

    async def thin_out(self, place: Place, *, keep: int) -> str:
        return await self._saver.thin_out(place, keep=keep)

    @property
    def there(self) -> There:
        return self._saver.there
