"""A plan of many units stands for some steps, and what it does is what planning anew would do."""

import asyncio
from collections.abc import Callable, Sequence

import looptime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evac.generation import Generation
from evacd.facts import Kept, Kind, Plan, Step, Unit
from evacd.flush.save import Saved, Unsaved
from evacd.flush.standing import FEW, LATE_SECONDS, StandingPlan
from evacd.workloads import Part
from tests.agent.flush.simulated import LANE, RATE, Aboard, Link, Told, flushing, order, staged

OTHER = "file:///other"


def steps(*lanes: str, overtime: bool = False) -> Plan:
    return Plan(
        tuple(
            Step(f"u{at}", lane, Generation(1, 1), 1, float(at), at + 1.0, overtime)
            for at, lane in enumerate(lanes)
        )
    )


def standing(plan: Plan, *, units: int = 4 * FEW) -> StandingPlan:
    found = StandingPlan()
    found.made(plan, units=units, moving=(), rates={LANE: 100.0, OTHER: 50.0})
    return found


def stands(plan: StandingPlan, lane: str = LANE, **other: float) -> bool:
    return plan.stands(lane, **{"now": 0.0, "limit": 100.0, "rate": 100.0, **other})


def test_few_units_are_planned_anew_before_each_step() -> None:
    assert not stands(standing(steps(LANE, LANE), units=FEW - 1))


def test_it_stands_for_a_share_of_its_steps() -> None:
    plan = standing(steps(*[LANE] * 9), units=4 * FEW)
    taken = 0
    while stands(plan, now=float(taken)):
        step = plan.take(LANE)
        assert step is not None
        plan.whole(step)
        plan.ended(step)
        taken += 1

    assert taken == 4


def test_what_did_not_go_as_planned_brings_it_down() -> None:
    plan = standing(steps(LANE, LANE, LANE))
    step = plan.take(LANE)
    assert step is not None
    assert stands(plan)
    plan.ended(step)

    assert not stands(plan)


def test_it_falls_where_a_step_would_come_late_or_its_lane_has_another_rate() -> None:
    plan = standing(steps(LANE))

    assert stands(plan, now=LATE_SECONDS)
    assert not stands(plan, now=LATE_SECONDS + 0.01)
    assert not stands(plan, now=0.2, limit=1.1)
    assert stands(plan, rate=91.0)
    assert not stands(plan, rate=89.0)


def test_a_lane_without_a_step_waits_as_long_as_others_have_some() -> None:
    plan = standing(steps(LANE))

    assert stands(plan, OTHER, rate=50.0)
    assert plan.take(OTHER) is None
    plan.take(LANE)
    assert not stands(plan, OTHER, rate=50.0)


class Quick(Link):
    """Each save is one transfer."""

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
        self.log.append((0.0, unit, generation.step))
        if unit in self.refuses:
            return Unsaved("the disk is full", for_good=True)
        nbytes = self._aboard.all[unit].candidates[0].nbytes
        await asyncio.sleep(nbytes / self.rate)
        assert progress is not None
        progress(nbytes)
        return Saved(lane, nbytes, whole=True)


class Counted(Aboard):
    """Workloads that count how often all of them are looked at."""

    looked = 0

    def units(self) -> tuple[Unit, ...]:
        self.looked += 1
        return super().units()


@settings(max_examples=5, deadline=None)
@given(
    st.lists(st.integers(0, 3), min_size=3 * FEW, max_size=4 * FEW),
    st.integers(1, 3 * FEW),
    st.sets(st.integers(0, 3 * FEW - 1), max_size=3),
)
@pytest.mark.parametrize("few", [False, True])
def test_many_units_go_in_the_very_order_in_which_few_would(
    few: bool, priorities: list[int], fit: int, refused: set[int]
) -> None:
    if few:
        priorities, refused = priorities[: FEW - 1], {at % (FEW - 1) for at in refused}
    units = [staged(f"job-{i:03}", priority, 10) for i, priority in enumerate(priorities)]
    refuses = [f"job-{i:03}" for i in refused]
    aboard, told = Counted(*units), Told()
    link = Quick(aboard, refuses=refuses)

    async def evacuated() -> None:
        async with flushing(aboard, link, told) as flush:
            flush.evacuate(order(1.05 + fit * 10e6 / RATE))
            await flush.settled.wait()

    with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
        runner.run(evacuated())

    by_priority = sorted(units, key=lambda unit: (-unit.priority, unit.name))
    assert [unit for _, unit, _ in link.log] == [unit.name for unit in by_priority]
    assert {o.unit for o in told.outcomes if isinstance(o, Kept)} == {
        unit.name for unit in units if unit.name not in refuses
    }
    # Each step also looks up its unit's priority.
    planned = aboard.looked - len(units)
    assert planned >= len(units) if few else planned <= 2 * FEW
