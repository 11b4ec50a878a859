from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from evacd.notice.when import Sight, When, deadline, skew

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
offsets = st.floats(-1e8, 1e8)


def sight(monotonic: float = 100.0, skew: float = 0.0) -> Sight:
    return Sight(monotonic, NOON, skew)


@given(offsets, st.floats(0, 1e6), st.floats(-1e4, 1e4))
def test_a_deadline_is_never_before_first_sight_nor_later_than_its_kind_allows(
    offset: float, most: float, ahead: float
) -> None:
    when = deadline(NOON + timedelta(seconds=offset), sight=sight(skew=ahead), most=most)

    assert when.deadline is not None
    assert 100.0 <= when.deadline <= 100.0 + most


def test_the_date_counts_where_it_is_sooner_than_the_kind_allows() -> None:
    assert deadline(NOON + timedelta(seconds=40), sight=sight(), most=120) == When(140.0)


def test_a_clock_that_is_off_does_not_move_the_deadline() -> None:
    # Our clock is ten minutes behind the service's: its "in 40 s" reads as "in 640 s".
    theirs = NOON + timedelta(seconds=640)

    assert deadline(theirs, sight=sight(skew=600.0), most=120) == When(140.0)


def test_a_date_in_the_past_is_now_and_suspect() -> None:
    when = deadline(NOON - timedelta(seconds=9), sight=sight(), most=120)

    assert when.deadline == 100.0
    assert "9 s past" in when.suspect


def test_a_date_beyond_what_is_given_is_cut_and_suspect() -> None:
    when = deadline(NOON + timedelta(days=1), sight=sight(), most=120)

    assert when.deadline == 220.0
    assert when.suspect


def test_no_date_takes_all_that_the_kind_gives_or_nothing_where_it_has_no_limit() -> None:
    assert deadline(None, sight=sight(), most=30).deadline == 130.0
    assert deadline(None, sight=sight(), most=None).deadline is None


def test_skew_is_read_from_a_date_header() -> None:
    assert skew("Thu, 01 Jan 2026 12:10:00 GMT", utc=NOON) == 600.0
    assert skew("Thu, 01 Jan 2026 12:00:01 GMT", utc=NOON) == 0.0


@given(st.text() | st.none())
def test_no_header_raises(header: str | None) -> None:
    assert isinstance(skew(header, utc=NOON), float)
