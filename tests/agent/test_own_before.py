"""What the journal was told of a job's own order is what the next daemon reads."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evac.generation import Generation
from evac.incident import Event, Incident
from evacd import own_before
from evacd.facts import Confidence, Kept, Lost, Order, Outcome, Scope
from evacd.own_before import Before, Over, Unclosed, amended, read, told

UNIT = "alice/gpt"
SECONDS = st.floats(0, 1e9)
OUTCOMES = st.one_of(
    st.none(),
    st.builds(Lost, st.just(UNIT), st.text(max_size=9)),
    st.builds(
        Kept,
        st.just(UNIT),
        st.none() | st.builds(Generation, st.integers(0, 99), st.integers(0, 99)),
        st.integers(0, 1 << 50),
        SECONDS,
        durable=st.booleans(),
    ),
)


def ordered(given: float, deadline: float, amendments: int = 0) -> Order:
    return Order(
        "w1", deadline, Confidence.CERTAIN, "workload", "leave",
        given=given, scope=Scope.WORKLOAD, amendments=amendments,
    )  # fmt: skip


def incident(*events: tuple[str, Mapping[str, Any]], boot: str = "b", ended: bool) -> Incident:
    """As it comes back from the disk."""
    read_back = tuple(Event(0.0, name, json.loads(json.dumps(dict(data)))) for name, data in events)
    return Incident(
        "w1", "n", boot, "2026-11-30T00:00:00+00:00", "workload", "leave", "certain", 25.0,
        1.0 if ended else None, read_back,
    )  # fmt: skip


@given(
    SECONDS,
    SECONDS,
    st.lists(SECONDS, max_size=3),
    st.integers(0, 8),
    st.sets(st.integers(0, 8), max_size=2),
    OUTCOMES,
)
def test_all_of_it_is_read_back(
    begun: float,
    window: float,
    sooner: list[float],
    callers: int,
    gone: set[int],
    outcome: Outcome | None,
) -> None:
    order = ordered(begun, begun + window)
    # Each daemon that goes on with it tells of it again.
    events = [
        ("order.given", own_before.given(order, UNIT, callers=callers, now=now))
        for now in (begun, begun + 1.0)
    ]
    for deadline in sooner:
        if deadline < order.deadline:
            order = ordered(begun, deadline, order.amendments + 1)
            events.append(("order.amended", amended(order)))
    events += [("workload.left", {"unit": UNIT, "rank": rank}) for rank in gone]
    if outcome is not None:
        events.append(("report.written", {"verdict": "", **told(UNIT, outcome)}))

    (found,) = read([incident(*events, ended=outcome is not None)], boot="b")

    assert found == Before(order, UNIT, callers, outcome, frozenset(gone))


GIVEN = own_before.given(ordered(1.0, 26.0), UNIT, callers=0, now=1.0)


def test_of_another_boot_only_what_nobody_has_closed_is_of_interest() -> None:
    ended = incident(("order.given", GIVEN), boot="before", ended=True)
    left = incident(("order.given", GIVEN), boot="before", ended=False)

    assert list(read([ended], boot="b")) == []
    (over,) = read([left], boot="b")
    assert isinstance(over, Over)
    assert (over.id, over.unit) == ("w1", UNIT)
    assert "booted" in over.reason


def test_what_has_an_end_on_record_is_only_closed_and_in_the_same_boot_remembered_as_well() -> None:
    kept = Kept(UNIT, Generation(0, 7), 3, 0.5)
    events = ("order.given", GIVEN), ("report.written", {"verdict": "", **told(UNIT, kept)})

    assert list(read([incident(*events, boot="before", ended=False)], boot="b")) == [Unclosed("w1")]
    assert list(read([incident(events[1], ended=False)], boot="b")) == [Unclosed("w1")]
    closing, remembered = read([incident(*events, ended=False)], boot="b")
    assert closing == Unclosed("w1")
    assert isinstance(remembered, Before)
    assert remembered.outcome == kept


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {**GIVEN, "deadline": "soon"},
        {**GIVEN, "deadline": None},
        {**GIVEN, "given": float("nan")},
        {**GIVEN, "unit": 7},
        {**GIVEN, "callers": "two"},
        # An older daemon's.
        {"order": "w1", "scope": "workload", "confidence": "certain", "window_seconds": 25.0},
    ],
)
def test_what_cannot_be_gone_on_with_is_closed(wrong: dict[str, Any]) -> None:
    (found,) = read([incident(("order.given", wrong), ended=False)], boot="b")
    assert found == Over("w1", "", "its record cannot be read")


@pytest.mark.parametrize(
    "wrong", [{}, {"kept": True}, {"kept": True, "nbytes": "1"}, {"reason": 7}]
)
def test_an_end_that_says_nothing_is_no_success(wrong: dict[str, Any]) -> None:
    one = incident(("order.given", GIVEN), ("report.written", wrong), ended=True)
    (found,) = read([one], boot="b")
    assert isinstance(found, Before)
    assert found.outcome == Lost(UNIT, "")
