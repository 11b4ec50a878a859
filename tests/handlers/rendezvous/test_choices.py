"""What the nodes of a job that leave go with: laws of the fold, whatever is said in whatever order."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace

from hypothesis import given
from hypothesis import strategies as st

from evac.generation import Generation
from evac.rendezvous.choices import NO_CHOICES, Choices, chosen, generation_of
from evac.rendezvous.events import Depart, decode, encode
from evac.rendezvous.pins import news
from evac.rendezvous.rounds import after
from evac.rendezvous.snapshot import Snapshot, dump, load
from evac.rendezvous.state import Agent, State
from evac.wire import Pin

ME = Agent("me", "n9", "b")


def leaving(node: str, step: int, incarnation: int = 1, job: str = "u/j") -> Depart:
    return Depart("leaving", node, "b", 1, step=step, incarnation=incarnation, job=job)


departures = st.builds(
    lambda word, *rest: replace(leaving(*rest), word=word),
    st.sampled_from(["leaving", "leaving", "leaving", "written", "durable", "lost", "staying"]),
    st.sampled_from(["n0", "n1", "n2"]),
    st.integers(-1, 5),
    st.integers(-1, 3),
    st.sampled_from(["", "u/j", "u/k"]),
)


def fold(events: Iterable[Depart], choices: Choices = NO_CHOICES) -> Choices:
    for event in events:
        choices = chosen(choices, event)
    return choices


@given(st.lists(departures, max_size=12))
def test_a_choice_is_what_somebody_who_leaves_has_said(events: Sequence[Depart]) -> None:
    for job, choice in fold(events).items():
        assert choice in events
        assert (choice.word, choice.job) == ("leaving", job)
        assert job
        assert choice.step >= 0


@given(st.lists(departures, max_size=12))
def test_without_anybody_who_stays_it_is_the_oldest_of_the_newest_launch(
    events: Sequence[Depart],
) -> None:
    said = [one for one in events if one.word == "leaving" and min(one.step, one.incarnation) >= 0]
    found = fold(one for one in events if one.word != "staying")

    for job in {one.job for one in said} - {""}:
        mine = [one for one in said if one.job == job]
        launch = max(one.incarnation for one in mine)
        oldest = min(one.step for one in mine if one.incarnation == launch)
        assert generation_of(found[job]) == Generation(launch, oldest)


@given(st.lists(departures, max_size=8), departures)
def test_what_is_said_again_changes_nothing(events: Sequence[Depart], again: Depart) -> None:
    once = fold([*events, again])

    assert fold([again], once) == once


@given(st.lists(departures, max_size=12))
def test_all_who_read_it_hear_the_same_also_from_a_snapshot(events: Sequence[Depart]) -> None:
    state = State()
    for number, event in enumerate(events):
        state = after(state, replace(event, sequence=number))
    again = load(dump(Snapshot(len(events), 0, state)))

    assert again is not None
    assert again.state.choices == state.choices


def test_the_first_is_followed_and_who_cannot_follow_lowers_it() -> None:
    choices = fold([leaving("n0", 5), leaving("n1", 6)])
    assert choices["u/j"].node == "n0"

    choices = fold([leaving("n2", 4)], choices)
    assert choices["u/j"].node == "n2"


def test_a_choice_of_a_former_world_is_over_once_somebody_leaves_the_next() -> None:
    choices = fold([leaving("n0", 500), leaving("n1", 7, incarnation=2)])
    assert generation_of(choices["u/j"]) == Generation(2, 7)

    # ... and a zombie of that world does not bring it back.
    assert fold([leaving("n2", 1)], choices) == choices


def test_who_stays_after_all_has_chosen_for_nobody() -> None:
    choices = fold([leaving("n0", 5), leaving("n1", 6)])
    stays = Depart("staying", "n0", "b", 2, job="u/j")

    assert fold([replace(stays, node="n1")], choices) == choices
    assert fold([replace(stays, boot="another")], choices) == choices
    assert not fold([stays], choices)


def test_a_late_word_of_another_job_of_the_node_still_counts() -> None:
    state = State()
    for event in (leaving("n0", 5), replace(leaving("n0", 6, job="u/k"), sequence=0)):
        state = after(state, event)
    assert set(state.choices) == {"u/j", "u/k"}

    stays = Depart("staying", "n0", "b", 0)
    assert after(state, stays).choices == state.choices


def test_more_jobs_than_any_log_has_push_out_the_oldest() -> None:
    choices = fold(leaving("n0", 5, job=f"u/j{number}") for number in range(1000))

    assert 32 <= len(choices) <= 128
    assert "u/j999" in choices


def test_snapshots_without_choices_are_read() -> None:
    document = json.loads(dump(Snapshot(3, 0, State())))
    del document["choices"]
    found = load(json.dumps(document).encode())

    assert found is not None
    assert not found.state.choices


def test_entries_of_older_daemons_choose_nothing() -> None:
    told = asdict(leaving("n0", 5)) | {"do": "depart"}
    del told["job"]
    event = decode(json.dumps(told).encode())

    assert isinstance(event, Depart)
    assert not chosen(NO_CHOICES, event)
    assert decode(encode(leaving("n0", 5))) == leaving("n0", 5)


# --- what an agent passes on ----------------------------------------------------------------


def test_each_change_is_told_once_and_its_end_too() -> None:
    choices = fold([leaving("n0", 5)])
    (pin,) = news({}, choices, ME)
    assert pin == Pin("u/j", 1, 5)
    told = {pin.prefix: pin}
    assert news(told, choices, ME) == []

    lower = fold([leaving("n1", 4)], choices)
    assert news(told, lower, ME) == [Pin("u/j", 1, 4)]

    (end,) = news(told, NO_CHOICES, ME)
    assert end == Pin("u/j", 1, 5, keep=False)
    assert news({end.prefix: end}, NO_CHOICES, ME) == []


def test_what_this_node_has_chosen_its_own_daemon_knows() -> None:
    assert news({}, fold([leaving(ME.node, 5)]), ME) == []
