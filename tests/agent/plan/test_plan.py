"""The laws of the plan, for all units; then what a person reads of it."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evac.generation import Generation
from evacd.facts import Candidate, Plan, Step, Unit
from evacd.plan import in_order, need, schedule

LANES = ("fast", "slow")
RATES = {"fast": 8.0, "slow": 2.0}
RESERVE, COMMIT, NOW = 2.0, 0.5, 1000.0

# Small whole numbers and rates that are powers of two: sums are exact, so that the laws can
# be stated without a tolerance.
sizes = st.integers(0, 64)
candidates = st.lists(sizes, max_size=3).map(
    lambda nbytes: tuple(Candidate(Generation(1, 100 - i), n) for i, n in enumerate(nbytes))
)


@st.composite
def unit_lists(draw: st.DrawFn, max_size: int = 8) -> list[Unit]:
    return [
        Unit(
            name=f"alice/job-{i}",
            priority=draw(st.integers(0, 3)),
            arrived=float(draw(st.integers(0, 2))),
            lanes=(draw(st.sampled_from(LANES)),),
            candidates=draw(candidates),
            turn_seconds=draw(st.none() | st.integers(0, 12).map(float)),
            empty_because="the first step is not done",
        )
        for i in range(draw(st.integers(0, max_size)))
    ]


windows = st.integers(-5, 40).map(float)


def plan_of(units: Sequence[Unit], window: float) -> Plan:
    return schedule(
        units,
        deadline=NOW + window,
        rates=RATES,
        reserve=RESERVE,
        commit_seconds=COMMIT,
        now=NOW,
    )


def seconds_of(unit: Unit, candidate: Candidate | None) -> float:
    if candidate is None:
        assert unit.turn_seconds is not None
        return unit.turn_seconds
    return candidate.nbytes / RATES[unit.lanes[0]] + COMMIT


def choices_of(unit: Unit) -> tuple[Candidate | None, ...]:
    return unit.candidates if unit.turn_seconds is None else (None,)


def lane_of(plan: Plan, lane: str) -> list[Step]:
    return [step for step in plan.steps if step.lane == lane]


class TestLaws:
    @given(unit_lists(), windows)
    def test_no_step_in_time_ends_after_the_deadline_less_the_reserve(
        self, units: list[Unit], window: float
    ) -> None:
        for step in plan_of(units, window).steps:
            assert step.overtime == (step.ends > NOW + window - RESERVE)

    @given(unit_lists(), windows)
    def test_steps_of_one_lane_follow_each_other_without_overlap_or_gap(
        self, units: list[Unit], window: float
    ) -> None:
        for lane in LANES:
            cursor = NOW
            for step in lane_of(plan_of(units, window), lane):
                assert step.starts == cursor
                cursor = step.ends

    @given(unit_lists(), windows)
    def test_a_lane_is_planned_as_if_the_others_were_not_there(
        self, units: list[Unit], window: float
    ) -> None:
        together = plan_of(units, window)
        for lane in LANES:
            alone = plan_of([unit for unit in units if unit.lanes == (lane,)], window)
            assert lane_of(together, lane) == list(alone.steps)

    @given(unit_lists(), windows)
    def test_no_lower_priority_starts_before_a_higher_one_that_still_fits(
        self, units: list[Unit], window: float
    ) -> None:
        plan = plan_of(units, window)
        rank = {unit.name: i for i, unit in enumerate(in_order(units))}
        for lane in LANES:
            for late in (False, True):
                order = [rank[s.unit] for s in lane_of(plan, lane) if s.overtime is late]
                assert order == sorted(order)

    @given(unit_lists(), windows)
    def test_no_lane_is_left_idle_while_something_would_fit(
        self, units: list[Unit], window: float
    ) -> None:
        plan = plan_of(units, window)
        planned = {step.unit for step in plan.steps if not step.overtime}
        for lane in LANES:
            in_time = [step.ends for step in lane_of(plan, lane) if not step.overtime]
            left = NOW + window - RESERVE - max(in_time, default=NOW)
            for unit in units:
                if unit.lanes == (lane,) and unit.name not in planned:
                    assert all(seconds_of(unit, choice) > left for choice in choices_of(unit))

    @given(unit_lists(max_size=5), windows)
    def test_the_choice_is_the_lexicographic_optimum_of_all_choices(
        self, units: list[Unit], window: float
    ) -> None:
        ordered = in_order(units)
        limit = NOW + window - RESERVE

        def value(picks: Sequence[int | None]) -> tuple[int, ...]:
            # The newest counts most, nothing counts nothing.
            return tuple(0 if pick is None else 100 - pick for pick in picks)

        def fits(picks: Sequence[int | None]) -> bool:
            # A unit that takes no time still needs a lane whose window is not over.
            used: dict[str, list[float]] = {lane: [] for lane in LANES}
            for unit, pick in zip(ordered, picks, strict=True):
                if pick is not None:
                    used[unit.lanes[0]].append(seconds_of(unit, choices_of(unit)[pick]))
            return all(not times or NOW + sum(times) <= limit for times in used.values())

        every = itertools.product(*[[None, *range(len(choices_of(u)))] for u in ordered])
        best = max(value(picks) for picks in every if fits(picks))

        chosen = {s.unit: s for s in plan_of(units, window).steps if not s.overtime}
        picks: list[int | None] = []
        for unit in ordered:
            step = chosen.get(unit.name)
            generations = [c.generation if c else None for c in choices_of(unit)]
            picks.append(None if step is None else generations.index(step.generation))
        assert value(picks) == best

    @given(unit_lists(), windows)
    def test_every_unit_is_in_time_or_given_up_with_a_reason_and_never_both(
        self, units: list[Unit], window: float
    ) -> None:
        plan = plan_of(units, window)
        in_time = [step.unit for step in plan.steps if not step.overtime]
        given_up = [item.unit for item in plan.given_up]

        assert sorted(in_time + given_up) == sorted(unit.name for unit in units)
        assert all(item.reason for item in plan.given_up)

    @given(unit_lists(), windows)
    def test_what_is_given_up_and_has_something_to_save_goes_in_overtime(
        self, units: list[Unit], window: float
    ) -> None:
        plan = plan_of(units, window)
        late = {step.unit: step for step in plan.steps if step.overtime}
        given_up = {item.unit for item in plan.given_up}

        assert set(late) == {u.name for u in units if u.name in given_up and choices_of(u)}

    @given(unit_lists(), windows)
    def test_overtime_comes_behind_all_that_is_in_time(
        self, units: list[Unit], window: float
    ) -> None:
        plan = plan_of(units, window)
        for lane in LANES:
            late = [step.overtime for step in lane_of(plan, lane)]
            assert late == sorted(late)

    @given(unit_lists(), windows)
    def test_overtime_takes_the_generation_that_is_soonest_whole(
        self, units: list[Unit], window: float
    ) -> None:
        by_name = {unit.name: unit for unit in units}
        for step in plan_of(units, window).steps:
            if step.overtime and step.generation is not None:
                offered = by_name[step.unit].candidates
                least = min(candidate.nbytes for candidate in offered)
                newest = next(c.generation for c in offered if c.nbytes == least)
                assert (step.nbytes, step.generation) == (least, newest)

    @given(unit_lists(), st.integers(0, 10_000).map(float))
    def test_past_the_deadline_everything_staged_is_planned_in_overtime(
        self, units: list[Unit], ago: float
    ) -> None:
        plan = schedule(
            units,
            deadline=NOW - ago - 1.0,
            rates=RATES,
            reserve=RESERVE,
            commit_seconds=COMMIT,
            now=NOW,
        )

        assert all(step.overtime for step in plan.steps)
        assert {s.unit for s in plan.steps} == {u.name for u in units if choices_of(u)}

    @given(unit_lists(), windows)
    def test_a_unit_without_candidates_is_given_up_with_its_own_reason(
        self, units: list[Unit], window: float
    ) -> None:
        reasons = {item.unit: item.reason for item in plan_of(units, window).given_up}
        for unit in units:
            if not choices_of(unit):
                assert reasons[unit.name] == unit.empty_because

    @given(unit_lists(), windows)
    def test_a_turn_takes_exactly_its_seconds_and_names_no_generation(
        self, units: list[Unit], window: float
    ) -> None:
        turns = {u.name: u.turn_seconds for u in units if u.turn_seconds is not None}
        for step in plan_of(units, window).steps:
            if step.unit in turns:
                assert step.ends - step.starts == turns[step.unit]
                assert step.generation is None

    @given(unit_lists(), windows, st.randoms())
    def test_the_order_in_which_units_are_given_does_not_matter(
        self, units: list[Unit], window: float, random: Random
    ) -> None:
        shuffled = list(units)
        random.shuffle(shuffled)

        assert plan_of(shuffled, window) == plan_of(units, window)

    @given(
        st.lists(
            st.builds(
                Unit,
                name=st.uuids().map(str),
                priority=st.integers(),
                arrived=st.floats(allow_nan=False),
                lanes=st.sampled_from(LANES).map(lambda lane: (lane,)),
                candidates=st.lists(
                    st.builds(
                        Candidate,
                        generation=st.builds(Generation, st.integers(), st.integers()),
                        nbytes=st.integers() | st.just(10**400),
                    ),
                    max_size=3,
                ).map(tuple),
                turn_seconds=st.none() | st.floats(),
            ),
            max_size=5,
        ),
        st.floats(-1e9, 1e9),
        st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    )
    def test_whatever_the_numbers_every_time_in_a_plan_is_a_number(
        self, units: list[Unit], window: float, rate: float
    ) -> None:
        plan = schedule(
            units,
            deadline=NOW + window,
            rates=dict.fromkeys(LANES, rate),
            reserve=RESERVE,
            commit_seconds=COMMIT,
            now=NOW,
        )

        for step in plan.steps:
            assert math.isfinite(step.starts)
            assert math.isfinite(step.ends)
            assert step.starts <= step.ends
        for item in plan.given_up:
            assert "inf" not in item.reason
            assert "nan" not in item.reason
        assert math.isfinite(need(units, dict.fromkeys(LANES, rate), COMMIT))


def unit(name: str, nbytes: int, *, priority: int = 0, arrived: float = 0.0) -> Unit:
    return Unit(name, priority, arrived, ("fast",), (Candidate(Generation(1, 7), nbytes),))


class TestExamples:
    def test_a_reason_names_what_is_needed_and_what_is_left(self) -> None:
        plan = schedule(
            [unit("alice/gpt", 4_100_000_000)],
            deadline=30.0,
            rates={"fast": 1e8},
            reserve=2.0,
            commit_seconds=0.2,
            now=0.0,
        )

        assert plan.given_up[0].reason == ("needs 41.2 s for 4.10 GB at 100 MB/s, 28.0 s are left")

    def test_a_reason_shows_the_millisecond_that_is_missing(self) -> None:
        plan = schedule(
            [unit("alice/gpt", 2_800_100_000)],
            deadline=30.0,
            rates={"fast": 1e8},
            reserve=2.0,
            commit_seconds=0.0,
            now=0.0,
        )

        assert plan.given_up[0].reason.startswith("needs 28.001 s for 2.80 GB")
        assert plan.given_up[0].reason.endswith("28.000 s are left")

    def test_an_older_generation_goes_where_the_newest_does_not_fit(self) -> None:
        newest, older = Candidate(Generation(1, 9), 900), Candidate(Generation(1, 8), 100)
        plan = schedule(
            [Unit("alice/gpt", 0, 0.0, ("fast",), (newest, older))],
            deadline=10.0,
            rates={"fast": 50.0},
            reserve=1.0,
            commit_seconds=1.0,
            now=0.0,
        )

        assert plan.steps == (
            Step("alice/gpt", "fast", Generation(1, 8), 100, starts=0.0, ends=3.0),
        )

    def test_a_unit_that_leaves_sooner_is_planned_to_its_own_deadline(self) -> None:
        leaves = replace(unit("leaves", 80), deadline=NOW + 6.0)

        plan = plan_of([leaves, unit("stays", 80)], 30.0)

        assert [(step.unit, step.overtime) for step in plan.steps] == [
            ("stays", False),
            ("leaves", True),
        ]

    def test_equals_go_by_arrival_and_then_by_name(self) -> None:
        units = [unit("b", 8, arrived=1.0), unit("a", 8, arrived=1.0), unit("z", 8, arrived=0.5)]

        assert [step.unit for step in plan_of(units, 30.0).steps] == ["z", "a", "b"]

    @pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf])
    def test_a_rate_that_is_not_positive_is_refused(self, rate: float) -> None:
        with pytest.raises(ValueError, match="lane fast: the rate is"):
            need([unit("a", 8)], {"fast": rate}, 0.1)
        with pytest.raises(ValueError, match="lane fast: the rate is"):
            schedule(
                [unit("a", 8)],
                deadline=9.0,
                rates={"fast": rate},
                reserve=1.0,
                commit_seconds=0.1,
                now=0.0,
            )

    def test_a_lane_without_a_rate_is_refused(self) -> None:
        with pytest.raises(ValueError, match="lane fast"):
            need([unit("a", 8)], {"slow": 2.0}, 0.1)

    @pytest.mark.parametrize("deadline", [math.inf, -math.inf, math.nan])
    def test_a_deadline_that_is_no_number_is_refused(self, deadline: float) -> None:
        with pytest.raises(ValueError, match="deadline is"):
            schedule([], deadline=deadline, rates={}, reserve=1.0, commit_seconds=0.1, now=0.0)


class TestNeed:
    @given(unit_lists())
    def test_a_window_of_need_and_reserve_saves_the_newest_of_everything(
        self, units: list[Unit]
    ) -> None:
        plan = plan_of(units, need(units, RATES, COMMIT) + RESERVE)

        assert not any(step.overtime for step in plan.steps)
        newest = {u.name: u.candidates[0].generation for u in units if u.candidates}
        for step in plan.steps:
            assert step.generation in (None, newest.get(step.unit))

    def test_nothing_staged_needs_no_time(self) -> None:
        assert need([], {}, 0.5) == 0.0
        assert need([Unit("a", 0, 0.0, ("fast",))], RATES, 0.5) == 0.0

    def test_lanes_run_beside_each_other(self) -> None:
        slow = Unit("b", 0, 0.0, ("slow",), (Candidate(Generation(1, 1), 8),))

        assert need([unit("a", 8), unit("c", 8), slow], RATES, 0.0) == 4.0
