import io
import pickle
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evac.errors import GenerationError
from evac.side import POINTER_BYTES, pointed, pointer

HOW: dict[str, Callable[[io.BytesIO], object]] = {
    "torch": partial(torch.load, weights_only=False),
    "torch, weights only": partial(torch.load, weights_only=True),
    "pickle": pickle.load,
}
BYTES = st.integers(0, 2**64 - 1)


@given(BYTES, BYTES, st.binary(max_size=40))
def test_a_pointer_says_what_it_was_made_of(offset: int, nbytes: int, behind: bytes) -> None:
    left = pointer(offset, nbytes)
    assert len(left) == POINTER_BYTES
    assert pointed(left + behind) == pointed(memoryview(left + behind)) == (offset, nbytes)


@given(st.binary(max_size=100))
def test_nothing_else_is_one(place: bytes) -> None:
    stream = io.BytesIO()
    torch.save(place, stream)
    assert pointed(place) is None
    assert pointed(stream.getvalue()) is None
    assert pointed(pointer(1, 2)[:-1]) is None


@pytest.mark.parametrize("zeros", [0, 100, 40_000])
@pytest.mark.parametrize("how", HOW)
def test_loading_one_as_if_it_were_the_object_fails_and_says_what_to_do(
    how: str, zeros: int
) -> None:
    data = io.BytesIO(pointer(4096, 10) + bytes(zeros))
    with pytest.raises((GenerationError, pickle.UnpicklingError), match=r"evac"):
        HOW[how](data)


def test_without_evac_it_fails_as_well() -> None:
    program = f"import pickle, sys; sys.modules['evac'] = None; pickle.loads({pointer(4096, 10)!r})"
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert found.returncode == 1
    assert "evac" in found.stderr.splitlines()[-1]
