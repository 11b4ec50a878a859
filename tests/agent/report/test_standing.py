import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evacd.facts import Confidence
from evacd.report.standing import (
    AtStart,
    OperatorDrain,
    Ordered,
    Standing,
    at_start,
    decode,
    encode,
)
from evacd.report.standing_notices import Heard

TIME = datetime(2026, 11, 29, 17, 0, tzinfo=UTC)
ORDER = Ordered("ab12-1", "operator", "drain", Confidence.CERTAIN, TIME)
DRAIN = OperatorDrain("operator:1", 5230.5, "broken fan")
HEARD = Heard("operator", "operator:1", "b1", 1630.5, 5230.5, TIME + timedelta(hours=1))
FULL = Standing("b1", ORDER, ("command",), ("alice/gpt", ""), DRAIN, (HEARD,))

SECONDS = st.floats(allow_nan=False, allow_infinity=False)
TIMES = st.datetimes(timezones=st.just(UTC))
STANDINGS = st.builds(
    Standing,
    boot=st.text(),
    order=st.none()
    | st.builds(Ordered, st.text(), st.text(), st.text(), st.sampled_from(Confidence), TIMES),
    closed=st.lists(st.text()).map(tuple),
    told=st.lists(st.text()).map(tuple),
    drain=st.none() | st.builds(OperatorDrain, st.text(), SECONDS, st.text()),
    notices=st.lists(
        st.builds(Heard, st.text(), st.text(), st.text(), SECONDS, SECONDS, TIMES), max_size=3
    ).map(tuple),
)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def refused(data: bytes) -> bool:
    try:
        decode(data)
    except ValueError:
        return True
    return False


@given(STANDINGS)
def test_what_is_written_is_what_is_read(standing: Standing) -> None:
    assert decode(encode(standing)) == standing


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    assert refused(data)


@given(st.sampled_from(["schema", "boot", "order", "closed", "told", "drain", "notices"]), JSON)
def test_any_value_of_any_field_is_read_or_refused(field: str, value: object) -> None:
    document = json.loads(encode(FULL)) | {field: value}
    # Whatever it does, it raises nothing else.
    refused(json.dumps(document).encode())


@given(st.sampled_from(["order", "drain"]), st.data())
def test_any_part_of_a_fact_is_read_or_refused(field: str, data: st.DataObject) -> None:
    document = json.loads(encode(FULL))
    key = data.draw(st.sampled_from(sorted(document[field])))
    document[field][key] = data.draw(JSON)
    # Whatever it does, it raises nothing else.
    refused(json.dumps(document).encode())


@pytest.mark.parametrize("key", ["source", "id", "boot", "seen", "deadline", "ends"])
@given(value=JSON)
def test_any_part_of_a_notice_is_read_or_refused(key: str, value: object) -> None:
    document = json.loads(encode(FULL))
    document["notices"][0][key] = value
    # Whatever it does, it raises nothing else.
    refused(json.dumps(document).encode())


@pytest.mark.parametrize("bad", ["NaN", "Infinity", "1e999", "true", '"1"', "1" + 400 * "0"])
def test_what_is_no_number_of_seconds_is_refused(bad: str) -> None:
    assert refused(encode(FULL).replace(b"5230.5", bad.encode()))


@given(st.integers(0, len(encode(FULL)) - 2))
def test_a_torn_file_is_refused(length: int) -> None:
    assert refused(encode(FULL)[:length])


def test_a_schema_of_another_version_is_refused() -> None:
    document = json.loads(encode(FULL)) | {"schema": 1}

    with pytest.raises(ValueError, match="schema is 1"):
        decode(json.dumps(document).encode())


def test_a_time_without_a_zone_is_refused() -> None:
    document = json.loads(encode(FULL))
    document["order"]["given"] = "2026-11-29T17:00:00"

    with pytest.raises(ValueError, match="time zone"):
        decode(json.dumps(document).encode())


@pytest.mark.parametrize(
    ("found", "does"),
    [
        (None, AtStart.NOTHING),
        (Standing("b1"), AtStart.NOTHING),
        (Standing("b1", ORDER), AtStart.NOTHING),
        (Standing("b1", ORDER, ("command",)), AtStart.HOLD),
        (Standing("b1", ORDER, (), ("alice/gpt",)), AtStart.HOLD),
        (Standing("b1", ORDER, ("command",), (), DRAIN), AtStart.DRAIN),
        (Standing("b1", None, (), (), DRAIN), AtStart.DRAIN),
        (Standing("b0"), AtStart.NOTHING),
        (Standing("b0", ORDER, ("command",)), AtStart.REOPEN),
        (Standing("b0", ORDER, ("command",), (), DRAIN), AtStart.REOPEN),
        (Standing("b0", ORDER, (), ("alice/gpt",), DRAIN), AtStart.NOTHING),
    ],
)
def test_what_a_start_does(found: Standing | None, does: AtStart) -> None:
    assert at_start(found, "b1") is does


@given(STANDINGS, st.text())
def test_no_drain_of_another_boot_ever_stands_again(found: Standing, boot: str) -> None:
    if found.boot != boot:
        assert at_start(found, boot) in (AtStart.NOTHING, AtStart.REOPEN)
