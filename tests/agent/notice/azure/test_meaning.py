"""What each event means: the table, row by row."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evacd.facts import Confidence
from evacd.notice.azure.document import Event
from evacd.notice.azure.meaning import LINGER_SECONDS, is_over, meaning
from evacd.notice.standing import Said
from evacd.notice.when import Sight

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SIGHT = Sight(1000.0, NOON)


def means(
    type: str,
    status: str = "Scheduled",
    seconds: float | None = None,
    *,
    text: str = "",
    assume: float = 10.0,
) -> Said:
    if seconds is not None:
        text = format_datetime(NOON + timedelta(seconds=seconds), usegmt=True)
    event = Event("1", type, status, ("gpu_0",), text, "words", "Platform")
    return meaning(event, sight=SIGHT, preempt_assume_seconds=assume)


@pytest.mark.parametrize(
    ("type", "status", "seconds", "kind", "confidence", "deadline"),
    [
        ("Preempt", "Scheduled", 30, "preempt", Confidence.CERTAIN, 1010.0),
        ("Preempt", "Scheduled", 4, "preempt", Confidence.CERTAIN, 1004.0),
        ("Preempt", "Scheduled", -9, "preempt", Confidence.CERTAIN, 1000.0),
        ("Preempt", "Scheduled", 86_400, "preempt", Confidence.CERTAIN, 1010.0),
        ("Preempt", "Scheduled", None, "preempt", Confidence.CERTAIN, 1000.0),
        ("Preempt", "Started", None, "preempt", Confidence.STARTED, 1000.0),
        ("preempt", "STARTED", 30, "preempt", Confidence.STARTED, 1000.0),
        ("Preempt", "Advisory", 30, "preempt", Confidence.ADVISORY, None),
        ("Terminate", "Scheduled", 600, "terminate", Confidence.CERTAIN, 1600.0),
        ("Terminate", "Scheduled", 86_400, "terminate", Confidence.CERTAIN, 1900.0),
        ("Terminate", "Scheduled", None, "terminate", Confidence.CERTAIN, 1000.0),
        ("Terminate", "Started", None, "terminate", Confidence.STARTED, 1000.0),
        ("Redeploy", "Scheduled", 7200, "redeploy", Confidence.CERTAIN, 8200.0),
        ("Redeploy", "Scheduled", None, "redeploy", Confidence.CERTAIN, 1000.0),
        ("Reboot", "Scheduled", None, "reboot", Confidence.PLANNED, 1000.0),
        ("Freeze", "Scheduled", None, "freeze", Confidence.ADVISORY, None),
        ("Redeploy", "Started", None, "redeploy", Confidence.STARTED, 1000.0),
        ("Reboot", "Scheduled", 900, "reboot", Confidence.PLANNED, 1900.0),
        ("Reboot", "Scheduled", -60, "reboot", Confidence.PLANNED, 1000.0),
        ("Reboot", "Started", None, "reboot", Confidence.STARTED, 1000.0),
        ("Freeze", "Scheduled", 900, "freeze", Confidence.ADVISORY, 1900.0),
        ("Freeze", "Started", None, "freeze", Confidence.ADVISORY, 1000.0),
        ("SpotRebalanceRecommendation", "Advisory", None, "rebalance", Confidence.ADVISORY, None),
        ("Defenestrate", "Scheduled", None, "unknown", Confidence.ADVISORY, None),
        ("Preempt", "Pondered", 30, "preempt", Confidence.ADVISORY, None),
    ],
)
def test_the_table(
    type: str,
    status: str,
    seconds: float | None,
    kind: str,
    confidence: Confidence,
    deadline: float | None,
) -> None:
    said = means(type, status, seconds)

    assert (said.kind, said.confidence, said.deadline) == (kind, confidence, deadline)


def test_how_soon_a_preemption_is_planned_for_is_a_setting() -> None:
    assert means("Preempt", seconds=30, assume=30.0).deadline == 1030.0
    assert means("Preempt", seconds=30, assume=90.0).deadline == 1030.0
    assert means("Preempt", seconds=30, assume=0.0).deadline == 1000.0


@pytest.mark.parametrize(
    ("type", "deadline"),
    [("Preempt", 1010.0), ("Terminate", 1300.0), ("Redeploy", 1600.0), ("Reboot", 1900.0)],
)
def test_a_date_that_cannot_be_read_gives_the_shortest_notice_of_its_kind(
    type: str, deadline: float
) -> None:
    assert means(type, text="next Tuesday").deadline == deadline


@pytest.mark.parametrize("type", ["Preempt", "Terminate", "Redeploy", "Reboot"])
@pytest.mark.parametrize("blank", ["", "  "])
def test_a_blank_date_is_now(type: str, blank: str) -> None:
    assert means(type, text=blank).deadline == SIGHT.monotonic


@pytest.mark.parametrize("type", ["Preempt", "Terminate", "Redeploy", "Reboot"])
def test_only_what_has_begun_to_take_the_machine_lingers(type: str) -> None:
    assert means(type, "Started").linger == LINGER_SECONDS
    assert means(type, "Scheduled", 600.0).linger == 0.0
    assert means("Freeze", "Started").linger == 0.0


def test_a_date_that_cannot_be_read_is_told() -> None:
    assert "no usable date" in means("Reboot", text="next Tuesday").detail


def test_unheard_of_words_are_in_the_detail_for_people() -> None:
    assert means("Defenestrate", "Pondered").detail == ("Defenestrate Pondered; by Platform; words")


def test_a_suspect_date_is_told() -> None:
    assert "9 s past" in means("Preempt", seconds=-9).detail
    assert "past" not in means("Preempt", seconds=30).detail


@pytest.mark.parametrize("status", ["Completed", "Canceled", "cancelled"])
def test_a_status_that_says_it_is_over_counts_as_gone(status: str) -> None:
    assert is_over(Event("1", "Reboot", status, ("gpu_0",)))


@given(st.text(max_size=200), st.text(max_size=200), st.text(max_size=60))
def test_no_words_raise_and_only_known_ones_order_anything(
    type: str, status: str, text: str
) -> None:
    said = means(type, status, text=text)

    known = {"preempt", "terminate", "redeploy", "reboot"}
    assert said.confidence is Confidence.ADVISORY or said.kind in known
    assert len(said.detail) <= 400
