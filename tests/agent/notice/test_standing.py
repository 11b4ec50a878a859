"""The notices of a source that stand: laws over any sequence of answers."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evacd.facts import Cancelled, Confidence, Notice, Noticed, Quiet
from evacd.notice.standing import JITTER_SECONDS, Said, Standing


def said(
    id: str = "1",
    confidence: Confidence = Confidence.CERTAIN,
    deadline: float | None = 100.0,
    dated: str = "noon",
    gone: str = "gone",
) -> Said:
    return Said(id, "preempt", confidence, deadline, dated, f"{id} {dated}", gone)


anything = st.lists(
    st.builds(
        said,
        id=st.sampled_from("abc"),
        confidence=st.sampled_from(Confidence),
        deadline=st.none() | st.floats(0, 1e4),
        dated=st.sampled_from(["", "noon", "one"]),
    ),
    max_size=4,
)


def heard(standing: Standing, *all: Said, whole: bool = True) -> Notice:
    (probe,) = standing.hear(all, now=5.0, whole=whole)
    assert isinstance(probe, Noticed)
    return probe.notice


@given(st.lists(st.tuples(anything, st.booleans()), max_size=12))
def test_without_a_cancel_a_notice_only_gets_surer_and_sooner(
    answers: list[tuple[list[Said], bool]],
) -> None:
    standing, known = Standing("azure"), dict[str, Notice]()
    for events, whole in answers:
        probes = standing.hear(events, now=1.0, whole=whole)

        assert probes
        told = {probe.notice.id for probe in probes if isinstance(probe, Noticed)}
        assert told == {event.id for event in events}
        for probe in probes:
            match probe:
                case Noticed(notice):
                    before = known.get(notice.id, notice)
                    assert notice.confidence >= before.confidence
                    assert before.deadline is None or (
                        notice.deadline is not None and notice.deadline <= before.deadline
                    )
                    assert notice.seen == before.seen
                    known[notice.id] = notice
                case Cancelled(id=id):
                    assert whole
                    assert id not in told
                    del known[id]  # KeyError: cancelled twice, or never there
                case _:
                    assert probe == Quiet("azure")
                    assert not told


def test_a_date_that_moves_later_changes_nothing() -> None:
    standing = Standing("azure")
    first = heard(standing, said())

    for minute in range(60):
        assert heard(standing, said(deadline=101.0 + minute, dated=str(minute))) == first


def test_a_date_that_jitters_earlier_changes_nothing_and_a_nearer_one_does() -> None:
    standing = Standing("azure")
    first = heard(standing, said())

    assert heard(standing, said(deadline=100.0 - JITTER_SECONDS, dated="a")) == first
    assert heard(standing, said(deadline=98.0, dated="b")).deadline == 98.0


def test_the_same_date_is_reckoned_once_so_a_stepped_clock_moves_nothing() -> None:
    standing = Standing("azure")
    first = heard(standing, said())

    assert heard(standing, said(deadline=0.0)) == first


def test_a_surer_word_raises_it_under_the_same_id() -> None:
    standing = Standing("azure")
    heard(standing, said())

    raised = heard(standing, said(confidence=Confidence.STARTED, deadline=7.0, dated="started"))

    assert (raised.confidence, raised.deadline, raised.seen) == (Confidence.STARTED, 7.0, 5.0)


def test_gone_is_cancelled_once_with_the_last_reason() -> None:
    standing = Standing("azure")
    heard(standing, said())
    heard(standing, said(gone="the event is over"))

    assert standing.hear([], now=6.0) == (Cancelled("azure", "1", "the event is over"),)
    assert standing.hear([], now=7.0) == (Quiet("azure"),)


def test_what_could_not_be_read_whole_cancels_nothing() -> None:
    standing = Standing("azure")
    heard(standing, said("1"))
    heard(standing, said("2"), whole=False)

    assert standing.hear([said("2")], now=6.0)[1] == Cancelled("azure", "1", "gone")


@pytest.mark.parametrize("order", [1, -1])
def test_one_id_twice_in_an_answer_is_one_notice_at_its_worst(order: int) -> None:
    twice = [said(), said(confidence=Confidence.STARTED, deadline=1.0, dated="now")][::order]

    (*_, last) = Standing("azure").hear(twice, now=0.0)

    assert isinstance(last, Noticed)
    assert (last.notice.confidence, last.notice.deadline) == (Confidence.STARTED, 1.0)


def lingering(seconds: float = 60.0) -> Said:
    return replace(said(confidence=Confidence.STARTED), linger=seconds)


def test_what_lingers_stands_on_and_is_then_cancelled_once() -> None:
    standing = Standing("azure")
    first = standing.hear([lingering()], now=5.0)

    assert standing.hear([], now=100.0) == first
    assert standing.hear([], now=159.0) == first
    assert standing.hear([], now=160.0) == (Cancelled("azure", "1", "gone"),)
    assert standing.hear([], now=161.0) == (Quiet("azure"),)


def test_what_comes_back_begins_to_linger_anew() -> None:
    standing = Standing("azure")
    first = standing.hear([lingering()], now=5.0)
    standing.hear([], now=10.0)
    standing.hear([lingering()], now=69.0)

    assert standing.hear([], now=75.0) == first


def test_what_is_said_to_be_over_does_not_linger() -> None:
    standing = Standing("azure")
    standing.hear([lingering()], now=5.0)

    assert standing.hear([], now=6.0, over=["1"]) == (Cancelled("azure", "1", "gone"),)
