import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evac.errors import SegmentError
from evac.generation import Generation
from evac.segment import PAGE, Header, SlotState
from evacd.workloads.inspection import Inspection, inspect, parse_items

items = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.text(max_size=20),
            "offset": st.integers(0, 500),
            "nbytes": st.integers(0, 500),
        },
        optional={"dtype": st.text(max_size=5), "shape": st.lists(st.integers(0, 9), max_size=3)},
    ),
    max_size=30,
)


@given(items, st.sampled_from([None, 0, 3]), st.booleans())
def test_what_json_wrote_is_read_back(
    made: list[dict[str, object]], indent: int | None, plain: bool
) -> None:
    text = json.dumps({"items": made}, indent=indent, ensure_ascii=plain)

    assert list(parse_items(text.encode(), body_nbytes=1000)) == made


def test_a_descriptor_of_many_pieces_is_read_back() -> None:
    # 40 MB would be no other case than this: items cross the borders of the pieces.
    made = [{"name": "n" * (number % 977), "offset": 0, "nbytes": 1} for number in range(3000)]
    text = json.dumps({"items": made})
    assert len(text) > 4 * (1 << 18)

    assert list(parse_items(text.encode(), body_nbytes=1)) == made


@given(st.binary(max_size=200))
def test_noise_is_an_error_that_says_so(noise: bytes) -> None:
    if noise:
        with pytest.raises(SegmentError):
            parse_items(noise, body_nbytes=10)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[]", "descriptor is not"),
        ("{}", "descriptor is not"),
        ('{"items": 5}', "descriptor is not"),
        ('{"items": [', "item 0 is no JSON"),
        ('{"items": [1]}', "item 0 has no name"),
        ('{"items": [{"name": 5, "offset": 0, "nbytes": 0}]}', "item 0 has no name"),
        ('{"items": [{"name": "a", "offset": -1, "nbytes": 0}]}', "numbers >= 0"),
        ('{"items": [{"name": "a", "offset": true, "nbytes": 0}]}', "numbers >= 0"),
        ('{"items": [{"name": "a", "offset": 0.5, "nbytes": 0}]}', "numbers >= 0"),
        ('{"items": [{"name": "a", "offset": 8, "nbytes": 3}]}', "leaves a body of 10"),
        ('{"items": [{"name": "a", "offset": 0, "nbytes": 1} {}]}', "descriptor is not"),
        ('{"items": [{"name": "a", "offset": 0, "nbytes": 1},]}', "item 1 is no JSON"),
        ('{"items": [], "more": 1}', "descriptor is not"),
        ('{"items": []} trailing', "goes on after its end"),
        ('{"items": [{"name": "a", "offset": 0, "nbytes": 1, "x": NaN}]}', "item 0 is no JSON"),
        ('{"items": [{"name": "a", "offset": 0, "nbytes": 1, "x": 1e999}]}', "item 0 is no JSON"),
        (
            '{"items": [{"name": "a", "offset": 0, "nbytes": 1, "x": '
            + "[" * 200
            + "]" * 200
            + "}]}",
            "item 0 nests deeper",
        ),
        ('{"items": [' + "[" * 100_000, "item 0 is no JSON"),
        ('{"items": [{"name": "' + "a" * (1 << 19) + '"}]}', "item 0 is no JSON"),
    ],
)
def test_another_shape_is_refused_and_says_where(text: str, reason: str) -> None:
    with pytest.raises(SegmentError, match=reason.replace("[", r"\[")):
        parse_items(text.encode(), body_nbytes=10)


@pytest.fixture
def slot() -> int:
    fd = os.memfd_create("slot")
    os.ftruncate(fd, 16 * PAGE)
    return fd


def test_an_equal_descriptor_is_parsed_once(slot: int) -> None:
    descriptor = b'{"items": [{"name": "w", "offset": 0, "nbytes": 4}]}'
    os.pwrite(slot, descriptor, 2 * PAGE)
    os.pwrite(slot, b"meta", 3 * PAGE)
    found: list[Inspection] = []
    for step in (1, 2):
        header = Header(
            SlotState.COMPLETE, 0, step, 100, 2 * PAGE, len(descriptor), 3 * PAGE, 4
        ).pack()
        os.pwrite(slot, header, 0)
        known = found[-1] if found else None
        found.append(inspect(slot, 16 * PAGE, Generation(0, step), known))

    assert found[1] is found[0]
    assert found[0].metadata == b"meta"
    os.pwrite(slot, b"META", 3 * PAGE)
    assert inspect(slot, 16 * PAGE, Generation(0, 2), found[1]).metadata == b"META"
    os.close(slot)
