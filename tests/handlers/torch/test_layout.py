import io
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evac.errors import GenerationError
from evac.segment import PAGE, check_files
from evac.torch.layout import MOST_ZEROS, capacity, encode, frame, plan
from evac.torch.world import World

DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
]


@given(
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 40), max_size=3).map(torch.Size),
)
@settings(deadline=None)
def test_a_frame_around_any_payload_is_what_torch_load_reads(
    dtype: torch.dtype, shape: torch.Size
) -> None:
    tensor = torch.rand(shape).mul(3).to(dtype)
    prefix, suffix = frame(dtype, shape)
    payload = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""

    read = torch.load(io.BytesIO(prefix + payload + suffix), weights_only=True)

    assert read.dtype == dtype
    assert torch.equal(read, tensor)


@given(st.integers(0, 60_000), st.integers(0, 60_000))
@settings(deadline=None, max_examples=300)
def test_an_object_is_read_back_whatever_it_grew_or_shrank_to(planned: int, now: int) -> None:
    room = capacity(len(encode("x" * planned)))
    archive = encode("y" * now)
    if not 0 <= room - len(archive) <= MOST_ZEROS:
        return

    assert torch.load(io.BytesIO(archive + bytes(room - len(archive)))) == "y" * now


@given(st.integers(0, 200_000))
def test_an_object_has_room_to_grow_and_not_too_many_zeros(nbytes: int) -> None:
    assert nbytes + 4096 <= capacity(nbytes) <= nbytes + MOST_ZEROS


def state() -> dict[str, Any]:
    return {
        "model": {"w": torch.randn(300, 7), "b": torch.randn(7), "e": torch.empty(0, 3)},
        "optimizer": {"state": {"w": {"step": torch.tensor(1.0)}}, "param_groups": [{"lr": 0.1}]},
    }


def test_items_never_overlap_and_lie_in_the_body() -> None:
    layout = plan(World(), state())
    end = 0
    for item in layout.items():
        assert item["offset"] >= end
        end = item["offset"] + item["nbytes"]
    assert end <= layout.nbytes
    assert layout.nbytes % PAGE == 0
    assert {item["name"] for item in layout.items()} == layout.keys


def test_large_payloads_start_at_a_page() -> None:
    layout = plan(World(), state())
    (large,) = (item for item in layout.tensors if item.shape == (300, 7))
    assert large.payload % PAGE == 0


def test_equal_states_give_equal_layouts_and_others_do_not() -> None:
    assert plan(World(), state()).name == plan(World(), state()).name
    assert plan(World(), {**state(), "more": 1}).name != plan(World(), state()).name


def test_metadata_names_every_item_where_it_lies() -> None:
    layout = plan(World(), state())
    stored = pickle.loads(layout.metadata).storage_data
    assert {(k.fqn, v.relative_path, v.offset, v.length) for k, v in stored.items()} == {
        (item["name"], file.name, item["offset"] - file.offset, item["nbytes"])
        for item in layout.items()
        for file in layout.files
        if 0 <= item["offset"] - file.offset < file.nbytes
    }


def test_the_weights_have_a_file_and_a_plan_of_their_own() -> None:
    layout = plan(World(), state())
    weights, rest = layout.files
    alone = pickle.loads(layout.weights_metadata)
    of_model = {key for key in layout.keys if key.startswith("model.")}

    check_files(layout.files, body_nbytes=layout.nbytes)
    assert (weights.name, rest.name) == ("weights/__0_0.distcp", layout.body)
    assert {item["name"] for item in layout.items() if item["offset"] < rest.offset} == of_model
    assert set(alone.state_dict_metadata) == set(alone.planner_data) == of_model
    assert {(k.fqn, v.relative_path) for k, v in alone.storage_data.items()} == {
        (key, "__0_0.distcp") for key in of_model
    }


def test_a_state_without_a_model_is_one_file() -> None:
    layout = plan(World(), {"w": torch.randn(3)})
    assert [file.name for file in layout.files] == [layout.body]
    assert layout.weights_metadata == b""


def test_a_tensor_that_is_not_strided_is_refused_by_name() -> None:
    with pytest.raises(GenerationError, match=r"rank 0: .*odd: .*sparse"):
        plan(World(), {"odd": torch.eye(3).to_sparse()})
