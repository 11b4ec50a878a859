"""How bodies are cut, lent out and summed."""

import os
import pickle

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from evac.store.parts import (
    LARGEST,
    MAX_PARTS,
    MIB,
    SMALLEST,
    Slices,
    Stopped,
    part_nbytes,
    unbroken,
)
from evac.store.sums import combined


@given(st.integers(0, 1 << 46))
def test_parts_fit_what_s3_takes(nbytes: int) -> None:
    size = part_nbytes(nbytes)

    assert size >= SMALLEST
    assert size % MIB == 0
    assert -(-nbytes // size) <= MAX_PARTS
    assert size <= LARGEST or nbytes > (MAX_PARTS - 1) * LARGEST


@given(st.binary(max_size=200), st.integers(1, 50), st.integers(1, 5))
def test_slices_are_the_body_and_progress_is_never_ahead_of_it(
    data: bytes, size: int, window: int
) -> None:
    seen: list[int] = []
    slices = Slices(memoryview(data), size, window=window, progress=seen.append)
    handed: list[bytes] = []
    for part in slices:
        # What is reported has left the window.
        assert sum(seen) <= max(0, len(handed) - window + 1) * size
        handed.append(bytes(part))

    assert b"".join(handed) == data
    assert sum(seen) == slices.reported <= len(data)
    assert slices.let_go()


def test_memory_that_somebody_holds_is_not_let_go() -> None:
    slices = Slices(memoryview(bytearray(10)), 4, window=1, progress=None)
    next(slices)
    held = pickle.PickleBuffer(next(slices))  # a holder such as a library in C

    assert not slices.let_go()
    held.release()
    assert slices.let_go()


def test_a_stopped_reader_is_told_so_and_not_that_the_body_ended() -> None:
    slices = Slices(memoryview(bytes(10)), 4, window=1, progress=None)
    next(slices)
    slices.stop()

    with pytest.raises(Stopped):
        next(slices)


@given(st.lists(st.binary(max_size=100), max_size=8))
def test_a_combined_sum_is_the_sum_of_the_whole(parts: list[bytes]) -> None:
    assert combined([(crc32c(one), len(one)) for one in parts]) == crc32c(b"".join(parts))


def test_a_combined_sum_holds_for_large_parts() -> None:
    data = os.urandom(3 * MIB + 17)
    cut = [data[:MIB], data[MIB : 2 * MIB + 5], data[2 * MIB + 5 :]]
    assert combined([(crc32c(one), len(one)) for one in cut]) == crc32c(data)


@given(st.lists(st.integers(0, 10), max_size=8))
def test_what_came_counts_up_to_the_first_gap(came: list[int]) -> None:
    got = {number * 10: nbytes for number, nbytes in enumerate(came)}
    whole = 0
    while whole < len(came) and came[whole] == 10:
        whole += 1

    assert unbroken(got, 10) == sum(came[: whole + 1])
