"""What a user's documents mean, one after another."""

from evacd.facts import Cancelled, Confidence, Notice, Noticed, Quiet, Unknown
from evacd.notice.user.heard import Heard
from evacd.notice.when import Sight
from tests.agent.notice.hearing import MovedClock
from tests.agent.notice.user.conftest import document, entry


def at(seconds: float, *, stepped: float = 0.0, skew: float = 0.0) -> Sight:
    return Sight(seconds, MovedClock(seconds + stepped).utc(), skew)


def heard(heard: Heard, raw: bytes, sight: Sight) -> Notice:
    (probe,) = heard.hear(raw, sight)
    assert isinstance(probe, Noticed)
    return probe.notice


def test_a_notice_is_told_as_it_is_written() -> None:
    assert heard(Heard("file"), document(entry()), at(1000.0)) == Notice(
        source="file",
        kind="capacity-block-end",
        id="block-7",
        confidence=Confidence.PLANNED,
        deadline=3600.0,
        seen=1000.0,
        detail="ends",
    )


def test_of_both_times_the_earlier_counts() -> None:
    assert heard(Heard("file"), document(entry(seconds_left=9)), at(1000.0)).deadline == 1009.0
    assert heard(Heard("file"), document(entry(seconds_left=9999)), at(1000.0)).deadline == 3600.0


def test_without_a_time_there_is_no_deadline() -> None:
    assert heard(Heard("file"), document(entry(deadline=None)), at(1000.0)).deadline is None


def test_a_time_in_the_past_is_now_and_says_so() -> None:
    notice = heard(Heard("file"), document(entry()), at(3700.0))

    assert notice.deadline == 3700.0
    assert "100 s past" in notice.detail


def test_a_file_that_stands_with_seconds_left_keeps_its_first_deadline() -> None:
    source, raw = Heard("file"), document(entry(deadline=None, seconds_left=30))
    first = heard(source, raw, at(1000.0))

    assert heard(source, raw, at(1020.0)) == first


def test_a_stepped_wall_clock_moves_no_date_that_was_read() -> None:
    source = Heard("file")
    first = heard(source, document(entry()), at(1000.0))

    for step in (600.0, -600.0):
        assert heard(source, document(entry()), at(1001.0, stepped=step)) == first


def test_a_servers_clock_that_is_ahead_is_taken_into_account() -> None:
    assert heard(Heard("http"), document(entry()), at(1000.0, skew=600.0)).deadline == 3000.0


def test_an_id_that_disappears_is_cancelled_once_and_the_others_stand() -> None:
    source = Heard("file")
    source.hear(document(entry(), entry(id="8")), at(1.0))

    probes = source.hear(document(entry(id="8")), at(2.0))
    assert [type(probe) for probe in probes] == [Noticed, Cancelled]
    assert probes[1] == Cancelled("file", "block-7", "it is no longer in the document")
    assert source.hear(document(), at(3.0)) == (
        Cancelled("file", "8", "it is no longer in the document"),
    )
    assert source.hear(document(), at(4.0)) == (Quiet("file"),)


def test_a_wrong_document_is_unknown_names_the_place_and_changes_nothing() -> None:
    source = Heard("file")
    first = heard(source, document(entry()), at(1.0))

    (probe,) = source.hear(document(entry(id="8"), {**entry(), "when": 1}), at(2.0))

    assert isinstance(probe, Unknown)
    assert probe.reason.startswith("notices[1].when: expected only confidence, ")
    assert "SCHEMA.md" in probe.cure
    assert heard(source, document(entry()), at(3.0)) == first
