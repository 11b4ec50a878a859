"""The table of slots survives its writer at any instruction, and nothing else of the boot."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evac.generation import Generation
from evacd.errors import AlreadyRunning, StateError
from evacd.workloads.job import Process, Shape, SlotState
from evacd.workloads.keeping import Table
from evacd.workloads.keeping.table import MOST
from evacd.workloads.record import JobRecord, SlotRecord, decode, encode

PAGE = 4096
changes = st.lists(
    st.tuples(st.integers(0, 5), st.one_of(st.none(), st.binary(min_size=1, max_size=60))),
    max_size=30,
)


def rows(path: Path, boot: str = "boot") -> dict[int, bytes]:
    table = Table(path, boot=boot)
    table.close()
    return table.rows


@given(changes)
@settings(max_examples=50, deadline=None)
def test_the_next_one_reads_what_was_written_last(said: list[tuple[int, bytes | None]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table, expected = Table(Path(folder) / "t", boot="boot"), dict[int, bytes]()
        for number, row in said:
            if row is None:
                table.remove(number)
                expected.pop(number, None)
            else:
                table.put(number, row)
                expected[number] = row
        table.close()
        assert rows(Path(folder) / "t") == expected


@pytest.mark.parametrize("half_written", range(0, 40, 3))
def test_a_writer_killed_in_the_midst_of_a_row_leaves_the_row_before(
    tmp_path: Path, half_written: int
) -> None:
    table = Table(tmp_path / "t", boot="boot")
    table.put(0, b"the row before")
    before = (tmp_path / "t").read_bytes()
    table.put(0, b"another, longer row")
    after = (tmp_path / "t").read_bytes()
    table.close()
    # As many bytes of the copy as had got there; the whole of it is 35.
    start = next(i for i in range(PAGE, len(after)) if before[i] != after[i])
    torn = before[:start] + after[start : start + half_written] + before[start + half_written :]
    (tmp_path / "t").write_bytes(torn)

    found = rows(tmp_path / "t")[0]

    assert found == (b"another, longer row" if torn == after else b"the row before")


def test_it_grows_and_a_row_that_is_too_long_is_refused(tmp_path: Path) -> None:
    table = Table(tmp_path / "t", boot="boot")
    for number in range(1000):
        table.put(number, b"%d" % number)
    with pytest.raises(ValueError, match="at most"):
        table.put(0, bytes(MOST + 1))
    table.put(0, bytes(MOST))
    table.close()
    assert rows(tmp_path / "t") == {0: bytes(MOST)} | {n: b"%d" % n for n in range(1, 1000)}


def test_another_boot_finds_nothing(tmp_path: Path) -> None:
    table = Table(tmp_path / "t", boot="boot")
    table.put(0, b"of this boot")
    table.close()
    assert rows(tmp_path / "t", boot="the next") == {}
    assert rows(tmp_path / "t") == {}


@pytest.mark.parametrize("content", [b"", b"x", b"EVACROWS" * 2000, bytes(3 * PAGE)])
def test_a_file_that_is_none_is_begun_anew(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t").write_bytes(content)
    assert rows(tmp_path / "t") == {}


def test_two_at_once_are_refused_and_a_link_is_not_followed(tmp_path: Path) -> None:
    table = Table(tmp_path / "t", boot="boot")
    with pytest.raises(AlreadyRunning):
        Table(tmp_path / "t", boot="boot")
    table.close()
    (tmp_path / "link").symlink_to(tmp_path / "t")
    with pytest.raises(StateError):
        Table(tmp_path / "link", boot="boot")


SLOT = SlotRecord(
    inode=(1, 2), unit="root/train", job="train", rank=3, world=4, priority=5, run="r",
    process=Process(6, 7, 8, 9), share=10, arrived=11.5, died=None, newest=Generation(1, 2),
    current=12, numbers=13, number=14, nbytes=4096,
    shape=Shape("a.bin", "layout", 1, "r", 4), reservation=12, state=SlotState.COMPLETE,
    generation=Generation(1, 2),
)  # fmt: skip
JOB = JobRecord("root/train", Generation(1, 2), ((2, (0, 1)), (1, (0,))))


@pytest.mark.parametrize("record", [SLOT, JOB], ids=["slot", "job"])
def test_a_record_comes_back_as_it_was(record: SlotRecord | JobRecord) -> None:
    assert decode(encode(record)) == record


@given(st.binary(max_size=200))
def test_what_is_no_record_is_none(data: bytes) -> None:
    assert decode(data) is None


@pytest.mark.parametrize(
    "data", [b"[]", b"{}", b"1", b'{"launches":1}', encode(SLOT).replace(b"complete", b"else")]
)
def test_nor_is_what_looks_like_one(data: bytes) -> None:
    assert decode(data) is None
