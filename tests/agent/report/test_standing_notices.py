"""What is remembered of notices: they only lose time within a boot, and are over after it."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from evacd.facts import Confidence, Notice
from evacd.report.standing_notices import (
    LONGEST_SECONDS,
    MOST_OF_BEFORE,
    Heard,
    kept,
    of_boot,
    over,
    recalled,
)

NOON = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
SECONDS = st.floats(0.0, 1e7)
WORDS = st.sampled_from(["a", "b", "c"])
HEARD = st.builds(
    Heard,
    WORDS,
    WORDS,
    st.sampled_from(["b0", "b1"]),
    SECONDS,
    SECONDS,
    SECONDS.map(lambda seconds: NOON + timedelta(seconds=seconds - 5e6)),
)
NOTICES = st.builds(
    Notice,
    WORDS,
    st.just("kind"),
    WORDS,
    st.sampled_from(Confidence),
    st.none() | SECONDS | st.sampled_from([1e300, -1e300]),
    SECONDS,
)
# One for each event, as they come from the order machine.
LEAVING = st.lists(NOTICES, unique_by=lambda each: (each.source, each.id))


def remembered(
    notices: tuple[Heard, ...], leaving: list[Notice], *, now: float = 0.0, boot: str = "b1"
) -> tuple[Heard, ...]:
    utc = NOON + timedelta(seconds=now)
    return kept(notices, leaving, of_boot(notices, boot), boot=boot, now=now, utc=utc)


@given(NOTICES, HEARD)
def test_a_notice_that_is_told_again_is_never_younger_and_never_has_more_time(
    notice: Notice, before: Heard
) -> None:
    again = recalled(notice, before)

    assert again.seen <= min(notice.seen, before.seen)
    assert again.deadline is not None
    assert again.deadline <= before.deadline
    assert notice.deadline is None or again.deadline <= notice.deadline
    assert again.deadline in (before.deadline, notice.deadline)
    assert (again.source, again.id, again.kind) == (notice.source, notice.id, notice.kind)
    assert again.confidence is notice.confidence


@given(NOTICES, HEARD)
def test_telling_it_once_more_changes_nothing(notice: Notice, before: Heard) -> None:
    again = recalled(notice, before)

    assert recalled(again, before) == again


@given(NOTICES)
def test_a_notice_of_which_nothing_is_known_is_as_it_was(notice: Notice) -> None:
    assert recalled(notice, None) == notice


@given(LEAVING, st.floats(1e7, 2e7))
def test_over_any_number_of_restarts_no_deadline_grows(leaving: list[Notice], now: float) -> None:
    found = remembered((), leaving, now=now)
    for later in (now + 8.0, now + 90.0):
        before = of_boot(found, "b1")
        fresh = [Notice(each.source, each.kind, each.id, each.confidence, later + 30.0, later)
                 for each in leaving]  # fmt: skip
        told = [recalled(each, before[each.source, each.id]) for each in fresh]
        found = remembered(found, told, now=later)
        for key, each in of_boot(found, "b1").items():
            assert each.deadline <= before[key].deadline
            assert each.seen == before[key].seen


@given(st.lists(HEARD).map(tuple), LEAVING, SECONDS)
def test_what_is_kept_is_kept_once_and_stays_the_same(
    notices: tuple[Heard, ...], leaving: list[Notice], now: float
) -> None:
    once = remembered(notices, leaving, now=now)

    assert len({each.key for each in once if each.boot == "b1"}) == len(of_boot(once, "b1"))
    assert {(each.source, each.id) for each in leaving} <= set(of_boot(once, "b1"))
    assert all(each.deadline <= now + LONGEST_SECONDS for each in once if each not in notices)
    # Only what is new is a reason to write.
    if all(each.deadline is None or abs(each.deadline) < 1e9 for each in leaving):
        assert remembered(once, [_again(each, now) for each in leaving], now=now) == once


def _again(notice: Notice, now: float) -> Notice:
    deadline = now if notice.deadline is None else notice.deadline
    return Notice(
        notice.source, notice.kind, notice.id, notice.confidence, deadline, notice.seen, "again"
    )


@given(st.lists(HEARD))
def test_only_what_another_boot_was_told_of_and_is_past_is_over(notices: list[Heard]) -> None:
    found = over(notices, "b1", utc=NOON)

    for each in notices:
        if each.id in found:
            assert any(
                other.id == each.id and other.boot == "b0" and other.ends <= NOON
                for other in notices
            )
    assert not over([each for each in notices if each.boot == "b1"], "b1", utc=NOON)
    assert not over([each for each in notices if each.ends > NOON], "b1", utc=NOON)


def test_what_is_announced_for_later_is_not_over_after_a_reboot() -> None:
    retirement = Heard("aws/maintenance", "e1", "b0", 1.0, 2.0, NOON + timedelta(days=14))

    assert over([retirement], "b1", utc=NOON) == ()
    assert over([retirement], "b1", utc=NOON + timedelta(days=14)) == ("e1",)


def test_of_many_boots_the_newest_are_kept() -> None:
    many = tuple(Heard("s", str(n), "b0", 1.0, 2.0, NOON) for n in range(MOST_OF_BEFORE + 9))

    assert remembered(many, []) == many[9:]
