"""Whose turn it is in quiet time: the laws, then who waits for whom."""

from hypothesis import given
from hypothesis import strategies as st

from evac.generation import Generation
from evacd.facts import Candidate, Unit
from evacd.quiet.choice import AGAIN_SECONDS, Began, Due, NotBefore, choose

NOW, INTERVAL = 1000.0, 60.0


@st.composite
def unit_lists(draw: st.DrawFn) -> list[Unit]:
    return [
        Unit(
            name=f"alice/job-{i}",
            priority=draw(st.integers(0, 3)),
            arrived=float(i),
            lanes=(draw(st.sampled_from(("a", "b"))),),
            candidates=tuple(
                Candidate(Generation(1, 100 - j), 10) for j in range(draw(st.integers(0, 2)))
            ),
            durable=draw(st.none() | st.just(Generation(1, 50))),
        )
        for i in range(draw(st.integers(0, 5)))
    ]


began_times = st.dictionaries(
    st.sampled_from([f"alice/job-{i}" for i in range(5)]),
    st.builds(
        Began,
        st.integers(900, 1000).map(float),
        st.integers(98, 100).map(lambda step: Generation(1, step)),
    ),
)


@given(unit_lists(), began_times)
def test_only_the_newest_of_who_waited_its_interval_may_go(
    units: list[Unit], began: dict[str, Began]
) -> None:
    found = choose(units, lanes={"a"}, began=began, interval=INTERVAL, now=NOW)

    if isinstance(found, Due):
        unit = next(one for one in units if one.name == found.unit)
        assert unit.lanes == ("a",)
        assert found.generation == unit.candidates[0].generation
        assert unit.name not in began or began[unit.name].at + INTERVAL <= NOW


@given(unit_lists(), began_times)
def test_nothing_rests_that_could_go_and_what_rests_is_woken_in_time(
    units: list[Unit], began: dict[str, Began]
) -> None:
    found = choose(units, lanes={"a"}, began=began, interval=INTERVAL, now=NOW)

    waiting = [one for one in units if one.lanes == ("a",) and one.candidates]
    times = [began[one.name].at + INTERVAL if one.name in began else 0.0 for one in waiting]
    if found is None:
        assert not waiting
    elif isinstance(found, NotBefore):
        assert found.at == min(times) > NOW
    else:
        assert min(times) <= NOW


@given(unit_lists(), began_times)
def test_who_is_saved_otherwise_is_left_alone(units: list[Unit], began: dict[str, Began]) -> None:
    names = {unit.name for unit in units}
    assert choose(units, lanes={"a"}, began=began, interval=INTERVAL, now=NOW, but=names) is None


@given(unit_lists())
def test_everybody_comes_to_their_turn_before_anybody_comes_twice(units: list[Unit]) -> None:
    began: dict[str, Began] = {}
    went: list[str] = []
    now = NOW
    waiting = [one.name for one in units if one.lanes == ("a",) and one.candidates]
    for _ in waiting:
        found = choose(units, lanes={"a"}, began=began, interval=1.0, now=now)
        assert isinstance(found, Due)
        went.append(found.unit)
        began[found.unit] = Began(now, found.generation)
        now += 5.0

    assert sorted(went) == sorted(waiting)


@given(unit_lists(), began_times)
def test_without_an_interval_the_next_one_goes_at_once_and_the_same_one_not_all_the_time(
    units: list[Unit], began: dict[str, Began]
) -> None:
    found = choose(units, lanes={"a"}, began=began, interval=0.0, now=NOW)

    newest = {
        one.name: one.candidates[0].generation
        for one in units
        if one.lanes == ("a",) and one.candidates
    }
    again = [
        began[name].at + AGAIN_SECONDS
        for name, generation in newest.items()
        if name in began and began[name].generation == generation
    ]
    if isinstance(found, Due):
        last = began.get(found.unit)
        assert last is None or last.generation != found.generation or last.at <= NOW - AGAIN_SECONDS
    elif isinstance(found, NotBefore):
        assert len(again) == len(newest)
        assert found.at == min(again) > NOW
    else:
        assert not newest


def test_who_has_nothing_durable_goes_before_a_more_urgent_one_that_has() -> None:
    staged = (Candidate(Generation(1, 100), 10),)
    urgent = Unit("a/urgent", 9, 0.0, ("a",), staged, durable=Generation(1, 90))
    bare = Unit("a/bare", 1, 1.0, ("a",), staged)

    found = choose([urgent, bare], lanes={"a"}, began={}, interval=INTERVAL, now=NOW)

    assert found == Due("a/bare", Generation(1, 100), 10)
