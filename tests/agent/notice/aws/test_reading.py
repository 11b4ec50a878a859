"""What the text of each key says; and that no text at all raises or makes up a notice."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evacd.facts import Confidence
from evacd.notice.aws.asg import read_state
from evacd.notice.aws.key import Read
from evacd.notice.aws.maintenance import read_events
from evacd.notice.aws.reading import (
    NOTHING,
    Found,
    Reading,
    Unreadable,
    event_date,
    rfc3339,
)
from evacd.notice.aws.rebalance import read_rebalance
from evacd.notice.aws.spot import read_action

SOON = "2017-09-18T08:22:00Z"
SOON_AT = datetime(2017, 9, 18, 8, 22, tzinfo=UTC)


def found(reading: Reading | Unreadable) -> Found:
    """The one thing that it announces."""
    assert isinstance(reading, Reading), reading
    (one,) = reading.found
    return one


# --- dates ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "date"),
    [
        (SOON, SOON_AT),
        ("2017-09-18t08:22:00z", SOON_AT),
        (" 2017-09-18T08:22:00.000Z\n", SOON_AT),
        ("2017-09-18T10:22:00+02:00", SOON_AT),
        ("2017-09-18T08:22:00", None),
        ("2017-09-18", None),
        ("20170918T082200Z", None),
        ("2017-13-18T08:22:00Z", None),
        ("0001-01-01T00:00:00+23:59", None),
        ("\u0662\u0660\u0661\u0667-09-18T08:22:00Z", None),
        ("", None),
        (1505722920, None),
        (None, None),
    ],
)
def test_a_time_is_rfc3339_with_a_zone_or_none(text: object, date: datetime | None) -> None:
    assert rfc3339(text) == date


@pytest.mark.parametrize(
    ("text", "date"),
    [
        ("21 Jan 2019 09:00:43 GMT", datetime(2019, 1, 21, 9, 0, 43, tzinfo=UTC)),
        ("1 Feb 2019 09:00:43 GMT", datetime(2019, 2, 1, 9, 0, 43, tzinfo=UTC)),
        ("01 Dec 2019 23:59:59 GMT", datetime(2019, 12, 1, 23, 59, 59, tzinfo=UTC)),
        ("2017-09-18T08:22:00Z", SOON_AT),
        ("30 Feb 2019 09:00:43 GMT", None),
        ("1 Feb 2019 24:00:00 GMT", None),
        ("1 Feb 2019 09:00:43 PST", None),
        ("1 Feb 2019 09:00:43", None),
        ("1 F\u00e9v 2019 09:00:43 GMT", None),
        ("", None),
        (None, None),
    ],
)
def test_an_events_date_may_have_a_day_of_one_digit(text: object, date: datetime | None) -> None:
    assert event_date(text) == date


@given(st.dates(), st.times())
def test_every_date_that_ec2_can_write_is_read(date: Any, time: Any) -> None:
    moment = datetime.combine(date, time.replace(microsecond=0), tzinfo=UTC)
    month = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
    text = f"{date.day} {month[date.month - 1]} {date.year:04} {time:%H:%M:%S} GMT"

    assert event_date(text) == moment
    assert rfc3339(f"{date.isoformat()}T{time:%H:%M:%S}Z") == moment


# --- spot -------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["terminate", "stop"])
def test_a_spot_interruption_is_certain_within_two_minutes(action: str) -> None:
    assert found(read_action(f'{{"action": "{action}", "time": "{SOON}"}}', boot="b")) == Found(
        "aws/spot:b", action, Confidence.CERTAIN, SOON_AT, 120.0, f"EC2 will {action} it"
    )


def test_a_hibernation_is_now_whatever_its_time() -> None:
    one = found(read_action(f'{{"action": "hibernate", "time": "{SOON}"}}'))

    assert (one.kind, one.confidence, one.date, one.most) == (
        "hibernate",
        Confidence.CERTAIN,
        None,
        0.0,
    )


@pytest.mark.parametrize("time", ["", '"time": null', '"time": "soon"', '"time": 7', '"time": ""'])
def test_a_known_action_without_a_readable_time_is_now(time: str) -> None:
    one = found(read_action('{"action": "terminate"' + (f", {time}" if time else "") + "}"))

    assert (one.confidence, one.date, one.most) == (Confidence.CERTAIN, None, 0.0)
    assert "cannot be read" in one.detail


def test_an_unknown_action_with_a_time_is_an_interruption_by_a_new_word() -> None:
    one = found(read_action(f'{{"action": "defenestrate", "time": "{SOON}"}}'))

    assert (one.kind, one.confidence, one.most) == ("unknown", Confidence.CERTAIN, 120.0)
    assert "'defenestrate'" in one.detail


def test_an_unknown_action_without_a_time_only_advises() -> None:
    one = found(read_action('{"action": "defen\\u0000strate \\ud83d\\ude80' + "x" * 500 + '"}'))

    assert (one.confidence, one.date, one.most) == (Confidence.ADVISORY, None, None)
    assert one.detail.isprintable()
    assert one.detail.isascii()
    assert len(one.detail) < 300


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "terminate",
        '"terminate"',
        "null",
        "[]",
        "{}",
        '[{"action": "terminate"}]',
        '{"action": null}',
        '{"action": " "}',
        '{"action": ["terminate"]}',
        f'{{"time": "{SOON}"}}',
        '{"action": "terminate", "time": "2017',
        "[" * 60_000,
        "9" * 5000,
    ],
)
def test_what_names_no_action_is_unreadable(text: str) -> None:
    assert isinstance(read_action(text), Unreadable)


# --- rebalance --------------------------------------------------------------------------


def test_a_rebalance_advises_and_its_time_is_no_deadline() -> None:
    one = found(read_rebalance(f'{{"noticeTime": "{SOON}"}}', boot="b"))

    assert (one.id, one.confidence) == ("aws/rebalance:b", Confidence.ADVISORY)
    assert (one.date, one.most) == (None, None)
    assert SOON not in one.detail


@pytest.mark.parametrize("text", ["", "{}", '{"noticeTime": "soon"}', SOON, "[]", "null"])
def test_what_has_no_notice_time_is_no_rebalance(text: str) -> None:
    assert isinstance(read_rebalance(text), Unreadable)


# --- Auto Scaling -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "id"),
    [
        ("Terminated", "aws/asg:Terminated:b"),
        ("Terminated\n", "aws/asg:Terminated:b"),
        ("Warmed:Terminated", "aws/asg:Warmed:Terminated:b"),
        ("Warmed:Stopped", "aws/asg:Warmed:Stopped:b"),
        ("Warmed:Hibernated", "aws/asg:Warmed:Hibernated:b"),
    ],
)
def test_a_state_that_ends_the_machine_gives_it_the_hooks_time(state: str, id: str) -> None:
    one = found(read_state(state, boot="b", hook_seconds=600.0))

    assert (one.id, one.confidence) == (id, Confidence.CERTAIN)
    assert (one.date, one.most) == (None, 600.0)


@pytest.mark.parametrize("state", ["InService", "Standby", "Detached", "Warmed:Running"])
def test_a_state_in_which_the_machine_runs_on_is_nothing(state: str) -> None:
    assert read_state(state) == NOTHING


def test_an_unknown_state_only_advises() -> None:
    one = found(read_state("Vaporized"))

    assert (one.kind, one.confidence) == ("unknown", Confidence.ADVISORY)
    assert "'Vaporized'" in one.detail


@pytest.mark.parametrize(
    "text", ["", "terminated", "{}", "Ok", "Not Found", "A" * 100, "T\u00e9st"]
)
def test_what_looks_like_no_state_is_unreadable(text: str) -> None:
    assert isinstance(read_state(text), Unreadable)


# --- any text ---------------------------------------------------------------------------

READS: dict[str, Callable[[str], Reading | Unreadable]] = {
    "spot": read_action,
    "rebalance": read_rebalance,
    "maintenance": read_events,
    "asg": read_state,
}
# The words that the readers look for, so that the fuzz comes near them.
words = st.sampled_from(
    [
        "action",
        "time",
        "noticeTime",
        "Code",
        "EventId",
        "State",
        "NotBefore",
        "Description",
        "terminate",
        "active",
        "[Completed] x",
        SOON,
        "1 Jan 2019 09:00:43 GMT",
    ]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | words,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(words | st.text(), inner, max_size=8)
    ),
    max_leaves=20,
)
documents = st.text() | values.map(json.dumps) | st.binary().map(lambda raw: raw.decode("latin-1"))


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@given(text=documents)
def test_no_text_raises_and_what_is_found_is_fit_to_be_told(read: Read, text: str) -> None:
    reading = read(text)

    if isinstance(reading, Unreadable):
        assert reading.reason.isprintable()
        return
    assert len({one.id for one in reading.found}) == len(reading.found)
    for one in reading.found:
        for told in (one.id, one.kind, one.detail):
            assert told.isprintable()
            assert 0 < len(told) < 1000


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@given(text=st.text(alphabet=st.characters(exclude_characters='"')))
def test_garbage_makes_no_notice_of_weight(read: Read, text: str) -> None:
    """No JSON object with a key, and no state of the list, can be in such a text."""
    reading = read(text)

    certain = isinstance(reading, Reading) and any(
        one.confidence > Confidence.ADVISORY for one in reading.found
    )
    assert not certain or text.strip() in {
        "Terminated",
        "Warmed:Terminated",
        "Warmed:Stopped",
        "Warmed:Hibernated",
    }


@pytest.mark.parametrize("length", range(0, len(f'{{"action":"stop","time":"{SOON}"}}')))
def test_a_body_cut_anywhere_is_unreadable(length: int) -> None:
    assert isinstance(read_action(f'{{"action":"stop","time":"{SOON}"}}'[:length]), Unreadable)
