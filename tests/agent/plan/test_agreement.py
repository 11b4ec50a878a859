"""What a job's nodes have agreed on comes first where it is here and fits; laws, then examples."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from evac.generation import Generation
from evacd.facts import Candidate, Kept, Lost, Plan, Step, Unit
from evacd.flush.asked import Asked
from evacd.flush.wants import Wants
from evacd.plan import ranked, schedule
from evacd.plan.again import Underway, gives_way
from evacd.plan.agreement import missed, objection, supersedes

LANE, RATE, NOW = "file:///store", 10.0, 100.0
numbers = st.integers(0, 6)
generations = st.builds(Generation, st.integers(0, 2), numbers)


@st.composite
def units(draw: st.DrawFn, name: str = "u/j") -> Unit:
    held = draw(st.lists(generations, unique=True, max_size=4))
    return Unit(
        name,
        priority=0,
        arrived=0.0,
        lanes=(LANE,),
        candidates=tuple(
            Candidate(one, draw(st.integers(1, 200))) for one in sorted(held, reverse=True)
        ),
        agreed=draw(st.none() | generations),
    )


def plan(unit: Unit, window: float) -> Plan:
    return schedule(
        [unit],
        deadline=NOW + window,
        rates={LANE: RATE},
        reserve=0.0,
        commit_seconds=0.0,
        now=NOW,
    )


def fits(unit: Unit, generation: Generation | None, window: float) -> bool:
    return any(c.generation == generation and c.nbytes / RATE <= window for c in unit.candidates)


@given(units(), st.integers(0, 25))
def test_what_was_agreed_on_goes_first_where_it_is_here_and_fits(unit: Unit, window: int) -> None:
    steps = [step for step in plan(unit, window).steps if not step.overtime]

    if fits(unit, unit.agreed, window):
        assert [step.generation for step in steps] == [unit.agreed]
    else:
        # Then all is as if nobody had agreed on anything.
        assert steps == [
            s for s in plan(replace(unit, agreed=None), window).steps if not s.overtime
        ]


@given(units())
def test_nothing_is_lost_from_the_choices_by_an_agreement(unit: Unit) -> None:
    assert set(ranked(unit)) == set(ranked(replace(unit, agreed=None)))


@given(units(), generations)
def test_an_objection_is_made_exactly_where_it_is_not_here(unit: Unit, agreed: Generation) -> None:
    held = any(one.generation == agreed for one in unit.candidates)

    assert (objection(unit, agreed) == "") == held


@given(st.lists(generations, min_size=1, max_size=6))
def test_whatever_is_heard_in_whatever_order_the_same_remains(heard: Sequence[Generation]) -> None:
    def remains(order: Sequence[Generation]) -> Generation | None:
        found: Generation | None = None
        for one in order:
            found = one if supersedes(one, found) else found
        return found

    assert remains(heard) == remains(sorted(heard)) == remains(sorted(heard, reverse=True))


@given(units(), st.integers(0, 200), st.integers(1, 40))
def test_news_stop_nothing_where_both_still_fit(unit: Unit, moved: int, window: int) -> None:
    if not unit.candidates or unit.agreed is None:
        return
    first = unit.candidates[0]
    step = Step(unit.name, LANE, first.generation, first.nbytes, NOW - 1, NOW + 1)
    one = Underway(step, min(moved, first.nbytes), NOW + first.nbytes / RATE)
    stops = gives_way(
        one, [unit], deadline=NOW + window, rates={LANE: RATE}, reserve=0.0, commit_seconds=0.0,
        now=NOW, free={LANE: one.ends}, tried={one.attempt},
    )  # fmt: skip

    behind = (
        one.ends
        - NOW
        + next((c.nbytes / RATE for c in unit.candidates if c.generation == unit.agreed), 0.0)
    )
    if one.ends <= NOW + window and behind <= window:
        assert not stops


G4, G5 = Generation(1, 4), Generation(1, 5)
BOTH = Unit(
    "u/j", 0, 0.0, (LANE,), (Candidate(G5, 100), Candidate(G4, 100)), agreed=G4
)  # fmt: skip


def test_what_has_hardly_begun_gives_way_to_what_was_agreed_on() -> None:
    one = Underway(Step("u/j", LANE, G5, 100, NOW, NOW + 10), 10, NOW + 9)

    def stops(unit: Unit) -> bool:
        return gives_way(
            one, [unit], deadline=NOW + 15, rates={LANE: RATE}, reserve=0.0, commit_seconds=0.0,
            now=NOW, free={LANE: one.ends}, tried={one.attempt},
        )  # fmt: skip

    assert stops(BOTH)
    assert not stops(replace(BOTH, agreed=None))


def wants(unit: Unit, kept: Kept) -> Wants:
    return Wants((unit,), True, (), {unit.name: kept}, {("u/j", G5, "full", LANE)}, {}, Asked())


def test_whose_part_is_of_another_generation_wants_the_agreed_one_too() -> None:
    part = Kept("u/j", G5, 100, 1.0, durable=False, store=LANE)

    (unit,) = wants(BOTH, part).unfinished()
    assert [one.generation for one in unit.candidates] == [G4]
    # What is whole already stays what it is, and so does what is as agreed.
    assert not list(wants(BOTH, replace(part, durable=True)).unfinished())
    assert not list(wants(BOTH, replace(part, generation=G4)).unfinished())
    assert not list(wants(replace(BOTH, agreed=None), part).unfinished())


def test_the_report_says_why_it_is_another_one() -> None:
    durable = replace(BOTH, durable=G5, candidates=())
    resumed = replace(BOTH, candidates=(Candidate(Generation(2, 9), 1),))

    assert objection(BOTH, Generation(1, 3)) == "not complete here, but step 5, step 4"
    assert objection(durable, G4) == "step 5 (incarnation 1) is durable already"
    assert objection(durable, G5) == ""
    assert "resumed since" in objection(resumed, G4)
    assert "by itself" in objection(replace(BOTH, turn_seconds=3.0), G4)
    assert missed(G4, Kept("u/j", G4, 1, 1.0)) == ""
    assert missed(G4, Kept("u/j", G5, 1, 1.0, durable=True)) == ""
    said = missed(G4, Kept("u/j", G5, 1, 1.0, durable=False))
    assert said == "it did not fit in the window; step 5 (incarnation 1) was saved instead"
    assert missed(G4, Lost("u/j", "x"), failed="disk full") == "disk full"
