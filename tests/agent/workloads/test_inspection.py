import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evac.errors import SegmentError
from evac.generation import Generation
from evac.segment import PAGE, BodyFile, Header, SlotState, describe
from evacd.workloads.inspection import Inspection, inspect, parse

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

    assert list(parse(text.encode(), body_nbytes=1000).items) == made


def test_a_descriptor_of_many_pieces_is_read_back() -> None:
    # 40 MB would be no other case than this: items cross the borders of the pieces.
    made = [{"name": "n" * (number % 977), "offset": 0, "nbytes": 1} for number in range(3000)]
    text = json.dumps({"items": made})
    assert len(text) > 4 * (1 << 18)

    assert list(parse(text.encode(), body_nbytes=1).items) == made


@given(st.binary(max_size=200))
def test_noise_is_an_error_that_says_so(noise: bytes) -> None:
    if noise:
        with pytest.raises(SegmentError):
            parse(noise, body_nbytes=10)


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
        parse(text.encode(), body_nbytes=10)


def file(name: str, offset: int, nbytes: int, kind: str = "rest", **more: object) -> object:
    return {"name": name, "offset": offset, "nbytes": nbytes, "kind": kind, "held": False, **more}


TWO = [file("weights/a.bin", 0, PAGE, "weights"), file("b.bin", PAGE, 100)]


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(1, 9)), min_size=1, max_size=8))
def test_files_that_are_the_body_end_to_end_are_read_back(
    made: list[tuple[bool, bool, int]],
) -> None:
    files: list[BodyFile] = []
    at = 0
    for number, (weights, held, pages) in enumerate(sorted(made, key=lambda one: not one[0])):
        kind, place = ("weights", "weights/") if weights else ("rest", "")
        files.append(BodyFile(f"{place}f{number}.bin", at, pages * PAGE, kind, held))
        at += pages * PAGE

    found = parse(describe([], files, 7), body_nbytes=at)

    assert (found.files, found.weights_metadata_nbytes) == (tuple(files), 7)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (5, "must be a list"),
        ([], "0 files"),
        ([file("b.bin", 0, 1)] * 4097, "at most 4096"),
        ([1], "file 0 is not"),
        ([file("b.bin", 0, PAGE + 100, more=1)], "file 0 is not"),
        ([{"name": "b.bin", "offset": 0, "nbytes": PAGE + 100, "kind": "rest"}], "file 0 is not"),
        ([file("b.bin", 0, PAGE + 100, held=1)], "another type"),
        ([file("b.bin", True, PAGE + 100)], "another type"),
        ([file("b.bin", 0, PAGE + 99)], "the body is 4196"),
        ([file("b.bin", 0, PAGE + 101)], "the body is 4196"),
        ([file("b.bin", 0, -1)], "is empty"),
        ([file("b.bin", -PAGE, PAGE)], "overlaps"),
        ([file("b.bin", 0, 100), file("c.bin", 100, PAGE)], "at a page"),
        ([TWO[0], file("b.bin", 2 * PAGE, 100)], "leaves a gap"),
        ([TWO[0], file("b.bin", 0, 100)], "overlaps"),
        ([TWO[0], file("a.bin", PAGE, 100, "half")], "is of kind 'half'"),
        ([TWO[0], file("weights/b.bin", PAGE, 100)], "no place for what is rest"),
        ([file("a.bin", 0, PAGE, "weights"), TWO[1]], "no place for what is weights"),
        ([file("b.bin", 0, PAGE), file("b.bin", PAGE, 100)], "one name"),
        ([file("b.bin", 0, PAGE), file("weights/a.bin", PAGE, 100, "weights")], "not in the order"),
        ([file("b.bin", 0, PAGE, "copy"), file("a.bin", PAGE, 100)], "not in the order"),
        ([file("b.bin", 0, PAGE + 100, "copy")], "nothing but copies"),
        ([TWO[0], file("../b.bin", PAGE, 100, "copy")], "no name for a file"),
        ([TWO[0], file("../b.bin", PAGE, 100)], "no name for a file"),
        ([TWO[0], file("weights/../b.bin", PAGE, 100, "weights")], "no name for a file"),
        ([TWO[0], file(".metadata", PAGE, 100)], "no name for a file"),
        ([TWO[0], file("__0.manifest.json", PAGE, 100)], "no name for a file"),
        ([TWO[0], file("x" * 10_000 + ".bin", PAGE, 100)], "no name for a file"),
        ([TWO[0], file("x" * 600_000 + ".bin", PAGE, 100)], "descriptor is not"),
    ],
)
def test_files_that_are_not_the_body_are_refused_and_say_why(files: object, reason: str) -> None:
    text = json.dumps({"files": files, "items": []})

    with pytest.raises(SegmentError, match=reason) as refused:
        parse(text.encode(), body_nbytes=PAGE + 100)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    "text",
    [
        '{"items": [], "files": []}',
        '{"files": [] "items": []}',
        '{"weights_metadata_nbytes": 0, "items": []}',
        '{"weights_metadata_nbytes": -1, "items": []}',
        '{"weights_metadata_nbytes": true, "items": []}',
        '{"weights_metadata_nbytes": "1", "items": []}',
        '{"weights_metadata_nbytes": 1}',
        '{"weights_metadata_nbytes": NaN, "items": []}',
        '{"files": ' + "[" * 100_000,
    ],
)
def test_a_head_of_another_shape_is_refused(text: str) -> None:
    with pytest.raises(SegmentError):
        parse(text.encode(), body_nbytes=10)


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


@pytest.mark.parametrize("own", [1, 4, 5])
def test_the_metadata_of_the_weights_lies_at_the_end_of_the_metadata(slot: int, own: int) -> None:
    descriptor = describe([], [], own)
    os.pwrite(slot, descriptor, 2 * PAGE)
    os.pwrite(slot, b"META", 3 * PAGE)
    header = Header(SlotState.COMPLETE, 0, 1, 100, 2 * PAGE, len(descriptor), 3 * PAGE, 4)
    os.pwrite(slot, header.pack(), 0)

    if own > 4:
        with pytest.raises(SegmentError, match="5 bytes of 4"):
            inspect(slot, 16 * PAGE, Generation(0, 1), None)
    else:
        found = inspect(slot, 16 * PAGE, Generation(0, 1), None)
        assert (found.metadata, found.weights_metadata) == (b"META"[: 4 - own], b"META"[4 - own :])
        assert found.weights_nbytes == 0
    os.close(slot)
