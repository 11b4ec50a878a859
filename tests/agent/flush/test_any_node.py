"""Whatever a node has on board and its stores do: laws of the whole flush, in simulated time."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import looptime
from hypothesis import given, settings
from hypothesis import strategies as st

from evac.generation import Generation
from evac.store import Owner
from evac.store.durability import is_durable
from evacd.facts import Candidate, Kept, Kind, Unit
from evacd.flush import Flush
from evacd.flush.save import Place, Saved, Unsaved
from evacd.plan.rate import Rate
from evacd.workloads import Part
from tests.agent.flush.simulated import MB, Aboard, LoopClock, Told, order

LANES = ("s3://fast", "file:///slow", "evac://peer:7000")
RATES = dict(zip(LANES, (100 * MB, 50 * MB, 25 * MB), strict=True))


@dataclass
class Stores:
    """What each lane does for each unit, by how often it was asked."""

    aboard: Aboard
    refuses: frozenset[tuple[str, str]]
    slow: dict[str, float]
    moving: Counter[str] = field(default_factory=Counter)
    begun: Counter[tuple[str, Generation, Kind, str]] = field(default_factory=Counter)

    async def save(
        self,
        parts: Sequence[Part],
        *,
        lane: str,
        order: str,
        kind: Kind = "full",
        progress: Callable[[int], None] | None = None,
    ) -> Saved | Unsaved:
        unit, generation = self.aboard.held
        self.moving[unit] += 1
        self.moving[lane] += 1
        assert self.moving[unit] == self.moving[lane] == 1, "two at once"
        self.begun[unit, generation, kind, lane] += 1
        nbytes = next(
            one.nbytes
            for one in self.aboard.all[unit].candidates
            if (one.generation, one.kind) == (generation, kind)
        )
        assert progress is not None
        try:
            for _ in range(20):
                await asyncio.sleep(nbytes / (RATES[lane] * self.slow.get(lane, 1.0)) / 20)
                progress(nbytes // 20)
        finally:
            self.moving[unit] -= 1
            self.moving[lane] -= 1
        if (unit, lane) in self.refuses:
            return Unsaved(f"{lane} refuses", for_good=True)
        return Saved(lane, nbytes, kind != "weights", Place(lane, unit, Owner(0, 0)))


@st.composite
def nodes(draw: st.DrawFn) -> tuple[list[Unit], frozenset[tuple[str, str]], dict[str, float]]:
    units = []
    for i in range(draw(st.integers(1, 5))):
        sizes = draw(st.lists(st.integers(1, 4000), min_size=1, max_size=3))
        found = [Candidate(Generation(1, 9 - j), mb * MB) for j, mb in enumerate(sizes)]
        if draw(st.booleans()):
            found.append(Candidate(Generation(1, 9), sizes[0] * MB // 3 + 1, kind="weights"))
        lanes = tuple(draw(st.permutations(LANES))[: draw(st.integers(1, 3))])
        units.append(Unit(f"job-{i}", draw(st.integers(0, 2)), float(i), lanes, tuple(found)))
    every = [(unit.name, lane) for unit in units for lane in unit.lanes]
    refuses = frozenset(draw(st.lists(st.sampled_from(every), max_size=4)))
    slow = draw(st.dictionaries(st.sampled_from(LANES), st.sampled_from((0.3, 0.5, 2.0))))
    return units, refuses, slow


@settings(max_examples=12, deadline=None)
@given(nodes(), st.integers(1, 90).map(float), st.none() | st.integers(1, 40).map(float))
def test_everybody_is_saved_who_can_be_and_nothing_goes_in_a_circle(
    node: tuple[list[Unit], frozenset[tuple[str, str]], dict[str, float]],
    window: float,
    cut: float | None,
) -> None:
    units, refuses, slow = node
    with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
        flush, stores = runner.run(_evacuated(units, refuses, slow, window, cut))

    for unit in units:
        takes = [lane for lane in unit.lanes if (unit.name, lane) not in refuses]
        outcome = flush.outcomes[unit.name]
        assert isinstance(outcome, Kept) == bool(takes)
        # In overtime, too, it goes on until it is whole, and where it lasts.
        if isinstance(outcome, Kept) and any(is_durable(lane) for lane in takes):
            assert outcome.durable
            assert outcome.kind == "full"
    # Once, and once more after it was stopped.
    assert max(stores.begun.values()) <= 2


async def _evacuated(
    units: Sequence[Unit],
    refuses: frozenset[tuple[str, str]],
    slow: dict[str, float],
    window: float,
    cut: float | None,
) -> tuple[Flush, Stores]:
    aboard = Aboard(*units)
    stores, told = Stores(aboard, refuses, slow), Told()
    flush = Flush(
        aboard, stores,
        lanes=LANES, assumed=1.0, reserve=1.0, commit_seconds=0.05, clock=LoopClock(),
        record=told.record, ended=told.outcomes.append, idle=lambda: None,
    )  # fmt: skip
    flush.rates |= {lane: Rate(rate, measured=True) for lane, rate in RATES.items()}
    began = asyncio.get_running_loop().time()
    async with asyncio.TaskGroup() as tasks:
        drivers = [tasks.create_task(flush.drive(lane)) for lane in LANES]
        flush.evacuate(order(began + window))
        if cut is not None:
            await asyncio.sleep(min(2.0, window))
            flush.evacuate(order(began + min(cut, window)))
        await flush.settled.wait()
        for driver in drivers:
            driver.cancel()
    return flush, stores
