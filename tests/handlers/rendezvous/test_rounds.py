"""The laws of `rounds`, whatever is said in whatever order; then how a job's life reads."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from evac.rendezvous.events import (
    Call,
    Close,
    Confirm,
    Depart,
    Dissolve,
    Event,
    Gone,
    Join,
    Leave,
    Met,
    Open,
)
from evac.rendezvous.rounds import after
from evac.rendezvous.services import taken_over
from evac.rendezvous.snapshot import Snapshot, dump, load
from evac.rendezvous.state import State

NAMES = "abcde"


def join(name: str, state: State | None = None, *, minimum: int = 2, maximum: int = 3) -> Join:
    seen = state.round.number if state else 0
    return Join(name, f"node-{name}", "boot", minimum, maximum, seen=seen, standby=f"{name}:1")


def depart(name: str, word: str = "leaving", sequence: int = 1, boot: str = "boot") -> Depart:
    return Depart(word, f"node-{name}", boot, sequence)


def fold(state: State, *events: Event) -> State:
    for event in events:
        state = after(state, event)
    return state


def stand(state: State) -> State:
    """Everybody in the round that forms does its part."""
    while (forming := state.forming) is not None:
        first = forming.agents[0].id
        state = fold(
            state,
            Open(first, forming.number, "h:1"),
            *(Confirm(agent.id, forming.number) for agent in forming.agents),
        )
    return state


def running(*names: str, minimum: int = 2, maximum: int = 3) -> State:
    state = fold(State(), *(join(name, minimum=minimum, maximum=maximum) for name in names))
    state = stand(fold(state, Call(names[0])))
    assert [agent.id for agent in state.round.agents] == list(names)
    return state


agents = st.sampled_from(NAMES)
numbers = st.integers(0, 6)
events = st.one_of(
    st.builds(
        lambda name, seen, hosts: replace(join(name), seen=seen, hosts=hosts),
        agents,
        numbers,
        st.booleans(),
    ),
    st.builds(Call, agents),
    st.builds(Open, agents, numbers, st.just("h:1")),
    st.builds(Confirm, agents, numbers),
    st.builds(Met, agents, numbers),
    st.builds(Dissolve, agents, numbers),
    st.builds(Leave, agents),
    st.builds(Gone, agents),
    st.builds(
        depart,
        agents,
        st.sampled_from(["leaving", "durable", "staying"]),
        st.integers(1, 9),
        st.sampled_from(["boot", "earlier"]),
    ),
)


@given(st.lists(events, max_size=60))
def test_a_round_has_room_for_all_in_it_and_none_that_has_left(said: list[Event]) -> None:
    state = State()
    for event in said:
        before, state = state, after(state, event)
        forming = state.forming
        if forming is not None and forming != before.forming and forming.number != before.last:
            names = [agent.id for agent in forming.agents]
            assert len(set(names)) == len(names)
            assert state.minimum <= len(names) <= state.maximum
            assert not any(state.departs(agent) for agent in forming.agents)
            assert forming.number > before.last
            # Who was in the last round, and held none up since, keeps its place among those who were.
            kept = [one.id for one in state.round.agents if one.id not in state.lost]
            assert [name for name in names if name in kept] == [n for n in kept if n in names]
        if state.round.number != before.round.number:
            assert before.forming is not None
            assert state.round.agents == before.forming.agents
            assert {agent.id for agent in state.round.agents} == before.confirmed | {event.agent}  # type: ignore[attr-defined] # only a Confirm completes
        assert state.round.number <= state.last


@given(st.lists(events, max_size=60))
def test_nobody_waits_twice_nor_waits_and_forms(said: list[Event]) -> None:
    state = fold(State(), *said)
    forming = state.forming.agents if state.forming else ()
    names = [agent.id for agent in (*state.waiting, *forming)]

    assert len(set(names)) == len(names)


@given(st.lists(events, max_size=60))
def test_who_lives_and_stays_comes_to_stand_in_a_round(said: list[Event]) -> None:
    """No history is a dead end: once everybody does its part, a round stands."""
    state = fold(State(), *said)
    alive = [name for name in NAMES if not state.leaves(f"node-{name}", "boot")][:3]
    gone = [name for name in NAMES if name not in alive]
    state = stand(fold(state, *(Leave(name) for name in gone)))
    for _ in range(4):
        if {agent.id for agent in state.round.agents} == set(alive) and not state.over:
            break
        state = fold(state, *(Met(name, state.round.number) for name in alive))
        state = (
            stand(fold(state, *(join(name, state) for name in alive), Call(alive[0])))
            if alive
            else state
        )

    if len(alive) >= 2:
        assert {agent.id for agent in state.round.agents} == set(alive)
        assert not state.over


@given(st.lists(events, max_size=60), st.integers(0, 100))
def test_a_snapshot_stands_for_all_that_was_said_before(said: list[Event], at: int) -> None:
    state = fold(State(), *said)

    assert load(dump(Snapshot(at, 0, state))) == Snapshot(at, 0, state)


def test_the_first_round_waits_for_the_last_call() -> None:
    state = fold(State(), join("a"), join("b"))
    assert state.forming is None

    state = after(state, Call("a"))

    assert state.forming is not None


def test_a_full_round_needs_no_call() -> None:
    assert fold(State(), join("a"), join("b"), join("c")).forming is not None


def test_survivors_form_as_soon_as_the_last_of_them_is_back() -> None:
    state = fold(running("a", "b", "c"), depart("b"))
    assert state.over
    state = after(state, join("c", state))
    assert state.forming is None

    state = after(state, join("a", state))

    assert state.forming is not None
    assert [agent.id for agent in state.forming.agents] == ["a", "c"]


def test_departure_of_an_earlier_boot_says_nothing() -> None:
    state = fold(running("a", "b", "c"), depart("b", boot="earlier"))

    assert not state.over


def test_departure_of_a_node_of_another_job_says_nothing() -> None:
    assert not fold(running("a", "b", "c"), depart("z")).over


def test_a_word_that_comes_late_does_not_undo_a_newer_one() -> None:
    state = fold(running("a", "b", "c"), depart("b", "staying", 5), depart("b", "leaving", 4))

    assert not state.over


def test_cancelled_before_anybody_acted_nothing_happens() -> None:
    state = fold(running("a", "b", "c"), depart("b"), depart("b", "staying", 2))

    assert not state.over


def test_cancelled_after_the_others_met_it_comes_along() -> None:
    state = running("a", "b", "c")
    state = fold(state, depart("b"), Met("a", 1), depart("b", "staying", 2))
    state = stand(fold(state, *(join(name, state) for name in "abc")))

    assert [agent.id for agent in state.round.agents] == ["a", "b", "c"]


def test_a_round_that_loses_one_before_it_stands_forms_anew_by_itself() -> None:
    state = fold(State(), join("a"), join("b"), join("c"))
    state = fold(state, Open("a", 1, "h:1"), Confirm("a", 1), depart("c"))
    assert state.forming is None or len(state.forming.agents) == 2

    state = stand(after(state, Call("a")))

    assert [agent.id for agent in state.round.agents] == ["a", "b"]


def test_a_first_rank_that_nobody_reaches_serves_nothing_the_next_time() -> None:
    state = running("a", "b", "c")
    state = fold(state, depart("c"), join("b", state), join("a", state))
    assert state.forming is not None
    assert [agent.id for agent in state.forming.agents] == ["a", "b"]

    state = fold(state, Open("a", 2, "h:1"), Confirm("a", 2), Dissolve("b", 2))

    assert state.forming is not None
    assert [agent.id for agent in state.forming.agents] == ["b", "a"]
    assert [agent.id for agent in stand(state).round.agents] == ["b", "a"]


def test_who_alone_does_not_reach_the_first_rank_is_left_behind() -> None:
    state = running("a", "b", "c")
    state = fold(state, Met("a", 1), *(join(name, state) for name in "abc"))
    state = fold(state, Open("a", 2, "h:1"), Confirm("a", 2), Confirm("b", 2), Dissolve("c", 2))

    assert state.refused == {"c"}
    assert [agent.id for agent in stand(state).round.agents] == ["a", "b"]
    # ... and may come back.
    assert after(state, join("c", state)).refused == frozenset()


def test_an_older_round_cannot_be_given_up_nor_one_by_a_stranger() -> None:
    state = fold(State(), join("a"), join("b"), join("c"))

    assert fold(state, Dissolve("a", 0), Dissolve("z", 1)) == state


def test_the_first_one_says_how_many_nodes_there_are_to_be() -> None:
    state = fold(running("a", "b"), join("d", minimum=1, maximum=9))
    assert (state.minimum, state.maximum) == (2, 3)

    state = fold(state, Leave("a"), Leave("b"), Leave("d"), join("e", minimum=1, maximum=9))

    assert (state.minimum, state.maximum) == (1, 9)


def test_a_replacement_ends_the_round_and_comes_last_in_the_next() -> None:
    state = after(running("a", "b"), join("d"))
    assert state.over
    state = stand(fold(state, join("b", state), join("a", state)))

    assert [agent.id for agent in state.round.agents] == ["a", "b", "d"]


def test_a_spare_waits_until_there_is_room() -> None:
    state = after(running("a", "b", "c"), join("d"))
    assert not state.over
    state = after(state, depart("b"))
    state = stand(fold(state, join("a", state), join("c", state)))

    assert [agent.id for agent in state.round.agents] == ["a", "c", "d"]


def test_too_few_survivors_wait_for_a_replacement() -> None:
    state = fold(running("a", "b"), depart("b"))
    state = after(state, join("a", state))
    assert state.forming is None
    assert state.short == 1

    state = after(state, join("d"))

    assert state.forming is not None


def test_a_join_said_twice_does_not_end_the_round_it_led_to() -> None:
    state = running("a", "b", "c")

    assert not after(state, join("a")).over


def test_a_closed_job_forms_no_round() -> None:
    state = fold(running("a", "b"), Close("a"), Leave("b"))

    assert after(state, join("d")).forming is None


def test_the_log_goes_to_the_first_survivor_when_its_host_leaves() -> None:
    state = fold(State(), replace(join("a"), hosts=True), join("b"), join("c"))
    state = stand(state)
    assert not state.moves

    state = fold(state, depart("a"), depart("b"))

    assert state.moves
    assert [agent.id for agent in state.successors()] == ["c"]


def test_no_spare_takes_the_place_of_one_that_is_only_slow() -> None:
    state = after(running("a", "b", "c"), join("d"))
    state = fold(state, Met("a", 1), join("b", state), join("c", state))
    assert state.forming is None

    state = after(state, join("a", state))

    assert state.forming is not None
    assert [agent.id for agent in state.forming.agents] == ["a", "b", "c"]


def test_a_spare_takes_the_place_of_one_that_is_gone() -> None:
    state = after(running("a", "b", "c"), join("d"))
    state = fold(state, join("b", state), join("c", state), Gone("a"))

    assert state.forming is not None
    assert [agent.id for agent in state.forming.agents] == ["b", "c", "d"]


def test_a_host_that_is_told_to_end_hands_the_log_on_too() -> None:
    state = stand(fold(State(), replace(join("a"), hosts=True), join("b"), join("c")))

    state = after(state, Leave("a"))

    assert state.moves
    assert [agent.id for agent in state.successors()] == ["b", "c"]
    assert not taken_over(state, state.successors()[0], 1, "").moves


def test_a_job_that_is_over_hands_nothing_on() -> None:
    state = stand(fold(State(), replace(join("a"), hosts=True), join("b"), join("c")))

    assert not fold(state, Close("a"), Leave("a")).moves
