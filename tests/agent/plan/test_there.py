"""The laws of what lies in a store already, for all units: it takes no time there, and costs nobody anything."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from evac.generation import Generation
from evacd.facts import Candidate, Unit
from evacd.plan.again import value
from tests.agent.plan.test_lanes import LANES, plan_of, unit_lists, windows

shares = st.lists(st.tuples(*[st.sampled_from((0, 0, 1, 2, 4))] * len(LANES)), max_size=8)


def with_there(units: Sequence[Unit], lying: Sequence[tuple[int, ...]]) -> list[Unit]:
    """Of each unit's candidates, so many quarters of its bytes on each lane."""

    def less(one: Candidate, quarters: tuple[int, ...]) -> Candidate:
        there = zip(LANES, quarters, strict=True)
        return replace(one, there=tuple((lane, one.nbytes * n // 4) for lane, n in there if n))

    known = [*lying, *[(0,) * len(LANES)] * len(units)]
    return [
        replace(unit, candidates=tuple(less(one, each) for one in unit.candidates))
        for unit, each in zip(units, known, strict=False)
    ]


@settings(max_examples=60)
@given(unit_lists(), shares, windows)
def test_what_lies_somewhere_never_makes_a_plan_save_less(
    units: list[Unit], lying: list[tuple[int, ...]], window: float
) -> None:
    known = with_there(units, lying)

    assert value(plan_of(known, window), known) >= value(plan_of(units, window), units)


@settings(max_examples=60)
@given(unit_lists(), shares, windows)
def test_a_step_moves_what_its_own_lane_lacks_and_nothing_else_is_left_out(
    units: list[Unit], lying: list[tuple[int, ...]], window: float
) -> None:
    known = with_there(units, lying)
    plain = {(u.name, one.generation, one.kind): one for u in units for one in u.candidates}

    for step in plan_of(known, window).steps:
        if step.generation is None:
            continue
        unit = next(unit for unit in known if unit.name == step.unit)
        one = next(
            c for c in unit.candidates if (c.generation, c.kind) == (step.generation, step.kind)
        )
        whole = plain[step.unit, step.generation, step.kind].nbytes
        assert step.nbytes == whole - dict(one.there).get(step.lane, 0)


@given(st.integers(0, 100), st.integers(0, 200), st.integers(0, 100))
def test_what_moves_now_is_known_better_than_what_lay_there(
    nbytes: int, there: int, left: int
) -> None:
    one = Candidate(Generation(1, 1), nbytes, there=((LANES[0], there),))

    assert one.left_on(LANES[0]) == max(nbytes - there, 0)
    assert one.left_on(LANES[1]) == nbytes
    assert replace(one, begun=(LANES[0], left)).left_on(LANES[0]) == left
