"""The Scheduled Events parser: what is documented is read, and garbage is never an event."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evacd.notice.azure.document import Document, Event, Foreign, date, parse

PREEMPT: dict[str, Any] = {
    "EventId": "f020ba2e-3bc0-4c40-a10b-86575a9eabd5",
    "EventStatus": "Scheduled",
    "EventType": "Preempt",
    "ResourceType": "VirtualMachine",
    "Resources": ["gpu_0", "gpu_1"],
    "NotBefore": "Mon, 19 Sep 2016 18:29:47 GMT",
    "Description": "Virtual machine is being preempted.",
    "EventSource": "Platform",
    "DurationInSeconds": -1,
}
FIELDS = ["EventId", "Resources", "EventType", "EventStatus"]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def document(*events: object) -> str:
    return json.dumps({"DocumentIncarnation": 4, "Events": list(events)})


def test_a_documented_event_is_read() -> None:
    assert parse(document(PREEMPT)) == Document(
        events=(
            Event(
                id="f020ba2e-3bc0-4c40-a10b-86575a9eabd5",
                type="Preempt",
                status="Scheduled",
                resources=("gpu_0", "gpu_1"),
                not_before="Mon, 19 Sep 2016 18:29:47 GMT",
                description="Virtual machine is being preempted.",
                by="Platform",
            ),
        )
    )


def test_fields_that_older_versions_lack_are_blank() -> None:
    event = {key: PREEMPT[key] for key in FIELDS}

    read = parse(document(event))

    assert isinstance(read, Document)
    assert (read.events[0].not_before, read.events[0].description) == ("", "")


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", [None, "", 7, [1], {}])
def test_a_broken_event_is_named_and_does_not_hide_the_others(field: str, value: object) -> None:
    read = parse(document({**PREEMPT, field: value}, PREEMPT))

    assert isinstance(read, Document)
    assert len(read.events) == 1
    assert read.wrong[0].startswith(f"Events[0].{field}: expected ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "expected a JSON document"),
        ("TRUE", "expected a JSON document"),
        ("[]", "expected a JSON object"),
        ("7", "expected a JSON object"),
        ("{}", "DocumentIncarnation is missing"),
        ('{"Events": []}', "DocumentIncarnation is missing"),
        ('{"DocumentIncarnation": 1}', "Events is missing"),
        ('{"DocumentIncarnation": 1, "Events": {}}', "Events is missing"),
        ('{"error": "Bad request"}', "DocumentIncarnation is missing"),
        ("[" * 50_000, "expected a JSON document"),
    ],
)
def test_a_foreign_body_is_named(text: str, expected: str) -> None:
    read = parse(text)

    assert isinstance(read, Foreign)
    assert expected in read.reason


@given(st.text() | st.binary().map(lambda raw: raw.decode(errors="replace")))
def test_no_text_raises_or_gives_an_event(text: str) -> None:
    read = parse(text)

    assert isinstance(read, Foreign) or not read.events


@given(st.lists(json_values, max_size=4))
def test_no_json_raises_or_gives_an_event(events: list[object]) -> None:
    read = parse(document(*events))

    assert isinstance(read, Document)
    assert read.events == ()
    assert len(read.wrong) == len(events)


@given(st.dictionaries(st.sampled_from(sorted(PREEMPT)), json_values))
def test_no_value_in_a_known_field_raises_or_spoils_a_log(values: dict[str, object]) -> None:
    read = parse(document({**PREEMPT, **values}))

    assert isinstance(read, Document)
    for event in read.events:
        for text in (event.id, event.type, event.status, event.description, event.by):
            assert text.isprintable()
            assert len(text) <= 160


@pytest.mark.parametrize("end", range(0, len(document(PREEMPT)) - 1, 7))
def test_no_beginning_of_a_document_is_a_document(end: int) -> None:
    assert isinstance(parse(document(PREEMPT)[:end]), Foreign)


def test_a_date_is_rfc_1123() -> None:
    assert date("Mon, 19 Sep 2016 18:29:47 GMT") == datetime(2016, 9, 19, 18, 29, 47, tzinfo=UTC)
    assert date("Thu, 01 Jan 2026 01:00:00 +0100") == datetime(2026, 1, 1, tzinfo=UTC)
    assert date("") is None
    assert date("soon") is None
    assert date("Mon, 99 Sep 2016 18:29:47 GMT") is None


@given(st.text())
def test_no_text_as_a_date_raises(text: str) -> None:
    read = date(text)

    assert read is None or read.tzinfo is not None


def test_names_of_machines_differ_in_case_only() -> None:
    event = Event("1", "Preempt", "Scheduled", ("GPU_0",))

    assert event.concerns("gpu_0")
    assert not event.concerns("gpu_00")
    assert not event.concerns("")
