"""Several lanes: the laws, and the best that any placing could have reached on small nodes."""

import itertools
from collections.abc import Collection, Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from evac.generation import Generation
from evacd.facts import Candidate, Kind, Plan, Step, Try, Unit
from evacd.plan import in_order, need, ranked, schedule
from evacd.plan.again import value

LANES = ("s3://fast", "file:///slow", "evac://peer:7000")
RATES = dict(zip(LANES, (8.0, 4.0, 2.0), strict=True))
RESERVE, COMMIT, NOW = 2.0, 0.5, 1000.0

KINDS: tuple[Kind, ...] = ("full", "full", "weights")
candidates = st.lists(st.tuples(st.integers(0, 64), st.sampled_from(KINDS)), max_size=3).map(
    lambda found: tuple(
        Candidate(Generation(1, 100 - i), nbytes, kind=kind)
        for i, (nbytes, kind) in enumerate(found)
    )
)


@st.composite
def unit_lists(draw: st.DrawFn, max_size: int = 7) -> list[Unit]:
    return [
        Unit(
            name=f"alice/job-{i}",
            priority=draw(st.integers(0, 3)),
            arrived=float(i),
            lanes=tuple(draw(st.permutations(LANES))[: draw(st.integers(1, 3))]),
            candidates=draw(candidates),
            turn_seconds=float(draw(st.integers(0, 12))) if draw(st.integers(0, 5)) == 0 else None,
            deadline=draw(st.none() | st.integers(0, 20).map(lambda n: NOW + n)),
        )
        for i in range(draw(st.integers(0, max_size)))
    ]


windows = st.integers(-5, 40).map(float)
busy = st.dictionaries(st.sampled_from(LANES), st.integers(-5, 15).map(lambda n: NOW + n))


def plan_of(
    units: Sequence[Unit],
    window: float,
    free: dict[str, float] | None = None,
    tried: Collection[Try] = (),
) -> Plan:
    return schedule(
        units,
        deadline=NOW + window,
        rates=RATES,
        reserve=RESERVE,
        commit_seconds=COMMIT,
        now=NOW,
        free=free or {},
        tried=tried,
    )


def seconds_of(unit: Unit, candidate: Candidate | None, lane: str) -> float:
    if candidate is None:
        return unit.turn_seconds or 0.0
    return candidate.nbytes / RATES[lane] + COMMIT


def limit_of(unit: Unit, window: float) -> float:
    return min(NOW + window, unit.deadline or NOW + window) - RESERVE


def ways_of(unit: Unit) -> list[tuple[int, str]]:
    """Each choice on each lane: how good it is, and where."""
    return [
        (place, lane)
        for place, choice in enumerate(ranked(unit))
        for lane in (unit.lanes if choice is not None else unit.lanes[:1])
    ]


class TestLaws:
    @given(unit_lists(), windows, busy)
    def test_no_step_in_time_ends_after_its_deadline_less_the_reserve(
        self, units: list[Unit], window: float, free: dict[str, float]
    ) -> None:
        by_name = {unit.name: unit for unit in units}
        for step in plan_of(units, window, free).steps:
            if not step.overtime:
                assert step.ends <= limit_of(by_name[step.unit], window)
            assert step.lane in by_name[step.unit].lanes

    @given(unit_lists(), windows, busy)
    def test_steps_of_one_lane_follow_each_other_in_strict_order_from_when_it_is_free(
        self, units: list[Unit], window: float, free: dict[str, float]
    ) -> None:
        plan = plan_of(units, window, free)
        rank = {unit.name: i for i, unit in enumerate(in_order(units))}
        for lane in LANES:
            steps = [step for step in plan.steps if step.lane == lane]
            cursor = max(NOW, free.get(lane, NOW))
            for step in steps:
                assert step.starts == cursor
                cursor = step.ends
            assert [s.overtime for s in steps] == sorted(s.overtime for s in steps)
            for late in (False, True):
                order = [rank[step.unit] for step in steps if step.overtime is late]
                assert order == sorted(order)

    @given(unit_lists(), windows, busy)
    def test_no_lane_is_left_idle_while_something_would_fit_there(
        self, units: list[Unit], window: float, free: dict[str, float]
    ) -> None:
        plan = plan_of(units, window, free)
        planned = {step.unit for step in plan.steps if not step.overtime}
        for unit in units:
            if unit.name in planned:
                continue
            for place, lane in ways_of(unit):
                ends = [s.ends for s in plan.steps if s.lane == lane and not s.overtime]
                begins = max([NOW, free.get(lane, NOW), *ends])
                choice = ranked(unit)[place]
                assert begins + seconds_of(unit, choice, lane) > limit_of(unit, window)

    @settings(max_examples=60)
    @given(unit_lists(max_size=4), windows, busy)
    def test_the_plan_is_the_lexicographic_optimum_of_all_ways_to_place_them(
        self, units: list[Unit], window: float, free: dict[str, float]
    ) -> None:
        ordered = in_order(units)
        best: tuple[float, ...] = ()
        for picks in itertools.product(*[[None, *ways_of(unit)] for unit in ordered]):
            cursors = {lane: max(NOW, free.get(lane, NOW)) for lane in LANES}
            worth: list[float] = []
            for unit, pick in zip(ordered, picks, strict=True):
                worth.append(float("-inf") if pick is None else -pick[0])
                if pick is not None:
                    choice = ranked(unit)[pick[0]]
                    cursors[pick[1]] += seconds_of(unit, choice, pick[1])
                    if cursors[pick[1]] > limit_of(unit, window):
                        break
            else:
                best = max(best, tuple(worth))

        assert value(plan_of(units, window, free), units) == best

    @given(unit_lists(), windows)
    def test_nobody_could_change_to_a_lane_that_it_prefers_at_no_cost(
        self, units: list[Unit], window: float
    ) -> None:
        plan = plan_of(units, window)
        by_name = {unit.name: unit for unit in units}
        for step in plan.steps:
            unit = by_name[step.unit]
            if step.overtime or step.generation is None:
                continue
            for lane in unit.lanes[: unit.lanes.index(step.lane)]:
                assert not _fits_moved(plan, step, lane, by_name, window)

    @given(unit_lists(), windows, st.data())
    def test_what_was_tried_is_not_planned_again_and_the_rest_of_it_is(
        self, units: list[Unit], window: float, data: st.DataObject
    ) -> None:
        every = [
            (unit.name, one.generation, one.kind, lane)
            for unit in units
            for one in unit.candidates
            for lane in unit.lanes
        ]
        tried = set(data.draw(st.lists(st.sampled_from(every)))) if every else set()
        plan = plan_of(units, window, tried=tried)

        steps = {(step.unit, step.generation, step.kind, step.lane) for step in plan.steps}
        assert not steps & tried
        for unit in units:
            left = [ranked(unit)[place] for place, lane in ways_of(unit)
                    if (choice := ranked(unit)[place]) is None
                    or (unit.name, choice.generation, choice.kind, lane) not in tried]  # fmt: skip
            assert any(step.unit == unit.name for step in plan.steps) == bool(left)


def _fits_moved(
    plan: Plan, moved: Step, lane: str, by_name: dict[str, Unit], window: float
) -> bool:
    """Whether all that is in time still would be, with one step on another lane."""
    cursors = dict.fromkeys(LANES, NOW)
    in_time = {step.unit: step for step in plan.steps if not step.overtime}
    for unit in in_order(by_name.values()):
        step = in_time.get(unit.name)
        if step is None:
            continue
        where = lane if step is moved else step.lane
        seconds = step.nbytes / RATES[where] + COMMIT
        cursors[where] += seconds if step.generation is not None else step.ends - step.starts
        if cursors[where] > limit_of(unit, window):
            return False
    return True


S3, DISK, PEER = LANES


def unit(name: str, *sizes: int, priority: int = 0, lanes: tuple[str, ...] = (S3, DISK)) -> Unit:
    found = tuple(Candidate(Generation(1, 9 - i), n) for i, n in enumerate(sizes))
    return Unit(name, priority, 0.0, lanes, found)


def weights(nbytes: int, step: int = 9, kind: Kind = "weights") -> Candidate:
    return Candidate(Generation(1, step), nbytes, kind=kind)


class TestExamples:
    def test_with_time_for_all_everybody_goes_where_it_prefers(self) -> None:
        plan = plan_of([unit("a", 8), unit("b", 8), unit("c", 8)], 30.0)

        assert {step.lane for step in plan.steps} == {S3}

    def test_what_does_not_fit_behind_the_others_takes_the_next_store_beside_them(self) -> None:
        plan = plan_of([unit("a", 64, priority=9), unit("b", 24)], 12.0)

        assert [(s.unit, s.lane, s.starts) for s in plan.steps] == [
            ("b", DISK, NOW),
            ("a", S3, NOW),
        ]

    def test_the_first_makes_room_for_the_second_where_that_costs_it_nothing(self) -> None:
        # a fits on both, b on the fast one only, and not behind a.
        plan = plan_of([unit("a", 16, priority=9), unit("b", 64)], 12.0)

        assert {s.unit: s.lane for s in plan.steps if not s.overtime} == {"a": DISK, "b": S3}

    def test_the_newest_on_a_peer_goes_before_an_older_one_on_a_durable_store(self) -> None:
        one = unit("a", 60, 8, lanes=(DISK, S3))

        assert plan_of([one], 11.0).steps[0].generation == Generation(1, 9)

    def test_weights_go_alone_only_where_nothing_full_fits(self) -> None:
        both = unit("a", 400, 40)
        both = replace(both, candidates=(*both.candidates, weights(16)))
        newest_only = replace(both, candidates=(both.candidates[0], weights(16)))

        assert plan_of([both], 10.0).steps[0].generation == Generation(1, 8)
        (step,) = plan_of([newest_only], 10.0).steps
        assert (step.kind, step.nbytes, step.overtime) == ("weights", 16, False)

    def test_in_overtime_the_weights_are_whole_first(self) -> None:
        one = unit("a", 400)
        one = replace(one, candidates=(*one.candidates, weights(160)))

        (step,) = plan_of([one], 3.0).steps

        assert (step.kind, step.overtime) == ("weights", True)

    def test_what_has_begun_on_a_lane_is_only_as_much_as_is_left_there(self) -> None:
        begun = Candidate(Generation(1, 9), 400, begun=(DISK, 8))
        plan = plan_of([Unit("a", 0, 0.0, (S3, DISK), (begun,))], 10.0)

        assert [(s.lane, s.nbytes, s.overtime) for s in plan.steps] == [(DISK, 8, False)]

    def test_a_planned_order_reckons_with_the_durable_store_and_with_all_bytes(self) -> None:
        whole = Candidate(Generation(1, 9), 8, held_nbytes=32)
        one = Unit("a", 0, 0.0, (PEER, S3), (whole,))

        assert need([one], RATES, 0.0) == 5.0

    def test_five_hundred_units_that_do_not_all_fit_are_placed_at_once(self) -> None:
        many = [unit(f"job-{i}", 8, 4, priority=i % 7) for i in range(512)]

        plan = plan_of(many, 100.0)

        assert len(plan.steps) == 512
