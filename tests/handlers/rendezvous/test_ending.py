"""A job ends well for nobody unless it did, and a run that ended ends no later one."""

from hypothesis import given
from hypothesis import strategies as st

from evac.rendezvous.ending import Ending, ending, well
from evac.rendezvous.events import Anew, Close, Event, Gone, Leave
from tests.handlers.rendezvous.test_rounds import depart, fold, running

names = st.sampled_from("abc")
ends = st.one_of(
    st.builds(Close, names, st.booleans(), st.integers(0, 1)),
    st.builds(Leave, names),
    st.builds(Gone, names),
    st.builds(depart, names),
    st.builds(Anew, names),
)


@given(st.lists(ends, max_size=12), st.sampled_from([None, 0, 1]), st.booleans(), st.booleans())
def test_nobody_ends_well_unless_all_have(
    said: list[Event], epoch: int | None, worked: bool, deserted: bool
) -> None:
    state = fold(running("a", "b", "c"), *said)

    if ending(state, epoch, worked=worked, deserted=deserted) is not Ending.NOT_NEEDED:
        return
    closed = {e.agent for e in said if isinstance(e, Close) and e.well and e.epoch == state.epoch}
    stayed = {one.id for one in state.round.agents if not state.departs(one)}
    assert closed
    assert stayed <= closed
    assert not worked or epoch is None
    assert epoch in (None, state.epoch)


@given(st.lists(ends, max_size=12))
def test_once_all_are_gone_the_job_can_be_run_again(said: list[Event]) -> None:
    state = fold(running("a", "b", "c"), *said)
    state = fold(state, Close("a", False, state.epoch), *map(Gone, "abc"))
    if not state.closed:
        return  # a leaver's word closes nothing

    assert ending(state, None, worked=False, deserted=True) is Ending.AGAIN
    again = fold(state, Anew("d"))
    assert ending(again, None, worked=False, deserted=True) is Ending.NONE
    assert again.last == state.last


def test_a_leaver_whose_worker_died_closes_nothing() -> None:
    state = fold(running("a", "b", "c"), depart("b"), Close("b", False))

    assert not state.closed
    assert [agent.id for agent in state.survivors] == ["a", "c"]


def test_who_closed_well_and_was_not_heard_of_again_did_not_end_well() -> None:
    state = fold(running("a", "b"), Close("a", True), Close("b", True))
    assert well(state)

    assert not well(fold(state, Gone("b")))
