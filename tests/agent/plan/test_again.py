"""When a step that runs is given up for something better: the laws."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from evac.generation import Generation
from evacd.facts import Candidate, Plan, Step, Unit
from evacd.plan import schedule
from evacd.plan.again import EARLY, HARDLY_BEGUN, NEARLY_DONE, Underway, gives_way, value

LANES = ("s3://fast", "file:///slow")
RATES = {"s3://fast": 8.0, "file:///slow": 4.0}
RESERVE, NOW = 1.0, 1000.0


@st.composite
def unit_lists(draw: st.DrawFn) -> list[Unit]:
    return [
        Unit(
            name=f"alice/job-{i}",
            priority=draw(st.integers(0, 2)),
            arrived=float(i),
            lanes=tuple(draw(st.permutations(LANES))[: draw(st.integers(1, 2))]),
            candidates=tuple(
                Candidate(Generation(1, 100 - j), nbytes)
                for j, nbytes in enumerate(draw(st.lists(st.integers(1, 200), max_size=3)))
            ),
        )
        for i in range(draw(st.integers(1, 5)))
    ]


@st.composite
def scenes(draw: st.DrawFn) -> tuple[Underway, list[Unit]]:
    units = draw(unit_lists())
    staged = [unit for unit in units if unit.candidates]
    assume(staged)
    unit = draw(st.sampled_from(staged))
    one, lane = draw(st.sampled_from(unit.candidates)), draw(st.sampled_from(unit.lanes))
    step = Step(unit.name, lane, one.generation, one.nbytes, NOW - 5.0, NOW + 5.0)
    moved, ends = draw(st.integers(0, one.nbytes)), NOW + draw(st.integers(0, 200))
    return Underway(step, moved, ends), units


windows = st.integers(-5, 60).map(float)


def stopped(one: Underway, units: Sequence[Unit], window: float) -> bool:
    return gives_way(
        one, units, deadline=NOW + window, rates=RATES, reserve=RESERVE, commit_seconds=0.0,
        now=NOW, free={one.step.lane: one.ends}, tried={one.attempt},
    )  # fmt: skip


def planned(units: Sequence[Unit], window: float, one: Underway, busy: float) -> Plan:
    return schedule(
        units, deadline=NOW + window, rates=RATES, reserve=RESERVE, commit_seconds=0.0, now=NOW,
        free={one.step.lane: busy}, tried={one.attempt},
    )  # fmt: skip


@given(scenes(), windows)
def test_what_can_end_in_time_is_stopped_for_a_newer_one_of_the_same_unit_alone(
    scene: tuple[Underway, list[Unit]], window: float
) -> None:
    one, units = scene
    if one.ends <= NOW + window - RESERVE and stopped(one, units, window):
        unit = next(unit for unit in units if unit.name == one.step.unit)
        gives = planned(units, window - EARLY * (window - RESERVE), one, NOW)
        (step,) = [step for step in gives.steps if step.unit == unit.name]
        assert not step.overtime
        assert step.generation is not None
        assert one.step.generation is not None
        assert step.generation > one.step.generation
        assert one.moved <= HARDLY_BEGUN * one.step.nbytes


@given(scenes(), windows)
def test_what_is_nearly_done_is_never_stopped(
    scene: tuple[Underway, list[Unit]], window: float
) -> None:
    one, units = scene
    moved = int(one.step.nbytes * (1 - NEARLY_DONE)) + 1
    assert not stopped(replace(one, moved=moved), units, window)


@given(scenes(), st.integers(-100, 1).map(float))
def test_past_the_deadline_and_in_overtime_nothing_is_stopped(
    scene: tuple[Underway, list[Unit]], window: float
) -> None:
    one, units = scene
    assert not stopped(one, units, window)
    late = replace(one, step=replace(one.step, overtime=True))
    assert not stopped(late, units, 60.0)


@given(scenes(), windows)
def test_what_is_stopped_is_stopped_for_more_and_that_fits_with_room_to_spare(
    scene: tuple[Underway, list[Unit]], window: float
) -> None:
    one, units = scene
    if not stopped(one, units, window):
        return
    others = [unit for unit in units if unit.name != one.step.unit]
    spare = EARLY * (window - RESERVE)
    stays = planned(others, window, one, one.ends)
    gives = planned(units, window - spare, one, NOW)
    if one.ends <= NOW + window - RESERVE:
        stays = Plan((*stays.steps, one.step))

    assert value(gives, units) > value(stays, units)


@given(scenes(), windows)
def test_who_is_saved_already_or_was_never_there_is_no_reason(
    scene: tuple[Underway, list[Unit]], window: float
) -> None:
    one, units = scene
    assert not stopped(one, [unit for unit in units if unit.name != one.step.unit], window)


def test_an_older_generation_is_worth_the_newest_that_cannot_be_whole() -> None:
    newest, older = Candidate(Generation(1, 9), 1000), Candidate(Generation(1, 8), 80)
    unit = Unit("a", 0, 0.0, LANES[:1], (newest, older))
    step = Step("a", LANES[0], newest.generation, 1000, NOW, NOW + 125.0)

    assert stopped(Underway(step, 100, NOW + 112.0), [unit], 30.0)


def test_with_nothing_better_to_do_it_goes_on() -> None:
    newest = Candidate(Generation(1, 9), 1000)
    unit = Unit("a", 0, 0.0, LANES[:1], (newest,))
    step = Step("a", LANES[0], newest.generation, 1000, NOW, NOW + 125.0)

    assert not stopped(Underway(step, 100, NOW + 112.0), [unit], 30.0)


def test_a_newer_one_wins_where_it_fits_and_would_not_behind_the_older_one() -> None:
    older, newer = Candidate(Generation(1, 8), 100), Candidate(Generation(1, 9), 100)
    unit = Unit("a", 0, 0.0, LANES[:1], (newer, older))
    step = Step("a", LANES[0], older.generation, 100, NOW - 1.0, NOW + 11.5)
    begun = Underway(step, 10, NOW + 11.5)

    assert stopped(begun, [unit], 20.0)
    assert not stopped(begun, [unit], 30.0), "both fit"
    assert not stopped(begun, [unit], 13.5), "it would fit by a hair"
    assert not stopped(replace(begun, moved=50), [unit], 20.0), "half of it is done"
