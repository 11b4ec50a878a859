"""The document that users supply: what is right, what is wrong, and where."""

import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evacd.facts import Confidence
from evacd.notice import user
from evacd.notice.user.schema import UserNotice, Wrong, parse
from tests.agent.notice.user.conftest import document, entry

FIELDS = ["id", "kind", "confidence", "deadline", "seconds_left", "detail"]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
notices = st.fixed_dictionaries(
    {
        "id": st.text("abc-:/ é", min_size=1, max_size=128),
        "kind": st.from_regex(r"[a-z0-9][a-z0-9._-]{0,63}", fullmatch=True),
        "confidence": st.sampled_from([each.word for each in Confidence]),
    },
    optional={
        "deadline": st.none()
        | st.datetimes(timezones=st.just(UTC)).map(lambda when: when.isoformat()),
        "seconds_left": st.none() | st.floats(0, 1e9) | st.integers(0, 10**9),
        "detail": st.none() | st.text(max_size=300),
    },
)


@given(st.lists(notices, max_size=8, unique_by=lambda notice: notice["id"]))
def test_every_document_of_the_schema_is_read_in_full(written: list[dict[str, Any]]) -> None:
    read = parse(document(*written))

    assert not isinstance(read, Wrong), read
    assert [notice.id for notice in read] == [notice["id"] for notice in written]
    for notice, wrote in zip(read, written, strict=True):
        assert notice.confidence.word == wrote["confidence"]
        assert (notice.deadline is None) == (wrote.get("deadline") is None)
        assert notice.seconds_left == wrote.get("seconds_left")
        assert notice.detail.isprintable()
        assert len(notice.detail) <= 200


@given(st.binary() | st.text().map(str.encode) | json_values.map(lambda v: json.dumps(v).encode()))
def test_no_bytes_raise_or_give_a_notice(raw: bytes) -> None:
    said = parse(raw)

    # A document without notices is a right one, and gives none.
    assert said == () or isinstance(said, Wrong)


@given(st.lists(json_values, min_size=1, max_size=4))
def test_no_json_in_the_list_raises_or_gives_a_notice(values: list[object]) -> None:
    assert isinstance(parse(document(*values)), Wrong)


@given(st.sampled_from(FIELDS), json_values)
def test_no_value_of_a_field_raises(field: str, value: object) -> None:
    read = parse(document(entry(**{field: value})))

    if isinstance(read, Wrong):
        # Infinity and NaN are no JSON, though Python writes them.
        assert read.where in {f"notices[0].{field}", "the document"}
    else:
        assert read[0].seconds_left is None or 0 <= read[0].seconds_left < math.inf


@pytest.mark.parametrize(
    ("raw", "where", "expected"),
    [
        (b"", "line 1, column 1", "JSON"),
        (b'{"notices":\n [}', "line 2, column 3", "JSON"),
        (b'{"notices": []', "line 1, column 15", "JSON"),
        (b'{"notices": [],\n "\xff": 1}', "line 2", "UTF-8"),
        (b"<html>", "line 1, column 1", "JSON"),
        (b'{"notices": NaN}', "the document", "JSON"),
        (b"[" * 60_000, "the document", "JSON"),
        (b" " * 70_000, "the document", "at most 65536 bytes"),
        (b"[]", "the document", "an object"),
        (b"{}", "notices", "a list, but it is missing"),
        (b'{"notices": {}}', "notices", "a list of at most 64"),
        (b'{"notices": [], "version": 2}', "version", "no other field"),
        (document(*(entry(id=str(n)) for n in range(65))), "notices", "at most 64"),
        (document(entry(), 7), "notices[1]", "an object"),
        (document(entry(), entry()), "notices[1].id", "there twice"),
        (document(entry(dead_line=None)), "notices[0].dead_line", "only confidence, deadline"),
        (document(entry(id="")), "notices[0].id", "1 to 128 printable"),
        (document(entry(id="a\nb")), "notices[0].id", "1 to 128 printable"),
        (document(entry(id=7)), "notices[0].id", "1 to 128 printable"),
        (document(entry(kind="Two words")), "notices[0].kind", "a word of a-z"),
        (document(entry(confidence="sure")), "notices[0].confidence", "one of advisory, planned"),
        (document(entry(confidence=3)), "notices[0].confidence", "one of advisory, planned"),
        (document(entry(deadline="noon")), "notices[0].deadline", "an RFC 3339 date"),
        (document(entry(deadline=1772364600)), "notices[0].deadline", "an RFC 3339 date"),
        (document(entry(deadline="2026-03-01T11:30:00")), "notices[0].deadline", "its offset"),
        (document(entry(deadline="2026-02-30T11:30:00Z")), "notices[0].deadline", "an RFC 3339"),
        (document(entry(deadline="20260301T113000Z")), "notices[0].deadline", "an RFC 3339"),
        (document(entry(deadline="0001-01-01T00:00:00+23:00")), "notices[0].deadline", "RFC 3339"),
        (document(entry(seconds_left=-1)), "notices[0].seconds_left", "0 or more"),
        (document(entry(seconds_left="30")), "notices[0].seconds_left", "a number of seconds"),
        (document(entry(seconds_left=True)), "notices[0].seconds_left", "a number of seconds"),
        (document(entry(seconds_left=10**400)), "notices[0].seconds_left", "a number of seconds"),
        (document(entry(detail=["x"])), "notices[0].detail", "text or null"),
    ],
)
def test_what_is_wrong_is_named_with_what_was_expected(
    raw: bytes, where: str, expected: str
) -> None:
    read = parse(raw)

    assert isinstance(read, Wrong)
    assert read.where == where
    assert expected in read.expected


@pytest.mark.parametrize(
    "text",
    [
        "2026-03-01T11:30:00Z",
        "2026-03-01t11:30:00z",
        "2026-03-01 11:30:00Z",
        "2026-03-01T12:30:00+01:00",
        "2026-03-01T11:30:00.000000000Z",
    ],
)
def test_rfc_3339_in_its_forms(text: str) -> None:
    read = parse(document(entry(deadline=text)))

    assert not isinstance(read, Wrong), read
    assert read[0].deadline == datetime(2026, 3, 1, 11, 30, tzinfo=UTC)


def test_the_documented_example_is_right() -> None:
    page = (Path(user.__file__).parent / "SCHEMA.md").read_text()
    example = page.partition("```json\n")[2].partition("```")[0]

    assert parse(example.encode()) == (
        UserNotice(
            id="capacity-block-7",
            kind="capacity-block-end",
            confidence=Confidence.PLANNED,
            deadline=datetime(2026, 3, 1, 11, 30, tzinfo=UTC),
            detail="the block ends at noon",
        ),
    )
