"""What ranks hold under one name and not as one value is kept for each of them."""

import logging
import pickle
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict_loader import load as load_checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from evac.torch.apart import Held, decide, fingerprint, held, name
from evac.torch.layout import plan
from evac.torch.world import World
from tests.handlers.torch import ranks, unlike
from tests.handlers.torch.training import digest

KINDS = list(unlike.MODELS)


@st.composite
def holdings(draw: st.DrawFn) -> list[dict[str, dict[str, int | None]]]:
    """Of each rank: some keys of some groups; a key is of one group, and of one kind."""
    kinds = {f"{group}{key}": draw(st.booleans()) for group in "abc" for key in range(2)}
    world = draw(st.integers(1, 4))
    found: list[dict[str, dict[str, int | None]]] = [{} for _ in range(world)]
    for rank in range(world):
        for key, own in kinds.items():
            if draw(st.booleans()):
                value = None if own else draw(st.integers(0, 1))
                found[rank].setdefault(key[0], {})[key] = value
    return found


@given(holdings())
def test_every_rank_finds_its_own_value_again(everyone: list[Held]) -> None:
    stored: dict[str, int | None] = {}
    answers = [decide(rank, everyone) for rank in range(len(everyone))]
    own = [names for names, _ in answers]
    for rank, holding in enumerate(everyone):
        for keys in holding.values():
            for key, value in keys.items():
                under = own[rank].get(key, key)
                # Of equal names DCP keeps any one: so all must be equal.
                assert stored.setdefault(under, value) == value
                # What is own by kind shares its name with nobody.
                others = [n.get(key, key) for at, n in enumerate(own) if at != rank]
                held_by = [at for at in range(len(everyone)) if at != rank]
                if value is None:
                    assert not any(
                        other == under
                        for at, other in zip(held_by, others, strict=True)
                        if key in everyone[at].get(key[0], {})
                    )
    # Anybody finds something under the plain name.
    assert {key for holding in everyone for keys in holding.values() for key in keys} <= set(stored)
    assert len({differing for _, differing in answers}) == 1


@given(holdings())
def test_what_goes_together_is_apart_together(everyone: list[Held]) -> None:
    for rank, holding in enumerate(everyone):
        names, _ = decide(rank, everyone)
        for keys in holding.values():
            firsts = {
                key: min(at for at, one in enumerate(everyone) if key in one.get(key[0], {}))
                for key in keys
            }
            mine = {key for key in keys if firsts[key] != rank}
            assert not mine & names.keys() or mine <= names.keys()


def test_equal_values_are_staged_once() -> None:
    one = {"w": {"model.w": 1, "optimizer.state.w.step": 2}}
    assert decide(1, [one, one]) == ({}, ())


def test_a_parameter_goes_with_its_moments() -> None:
    one = {"w": {"model.w": 1, "optimizer.state.w.exp_avg": 2}}
    other = {"w": {"model.w": 1, "optimizer.state.w.exp_avg": 3}}
    names, differing = decide(1, [one, other])
    assert names == {key: f"{name(1)}.{key}" for key in one["w"]}
    assert differing == ("optimizer.state.w.exp_avg",)


def test_what_is_own_by_kind_is_apart_though_it_is_equal_yet() -> None:
    flat, paths = {"model.mean": torch.zeros(2)}, {"model.mean": ("model", "mean")}
    one = held(flat, paths, frozenset({("model", "mean")}))
    assert decide(1, [one, one])[0] == {"model.mean": "evac.rank1.own.model.mean"}
    one = held(flat, paths, frozenset())
    assert decide(1, [one, one])[0] == {}


DTYPES = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool, torch.cfloat]


@settings(deadline=None)
@given(
    st.sampled_from(DTYPES),
    st.sampled_from([(), (0,), (1,), (3, 5), (2, 1, 7), (300_000,)]),
    st.data(),
)
def test_one_bit_anywhere_makes_another_fingerprint(
    dtype: torch.dtype, shape: tuple[int, ...], data: st.DataObject
) -> None:
    nbytes = torch.empty(shape, dtype=dtype).nbytes
    raw = torch.randint(0, 2, (nbytes,), dtype=torch.uint8)
    value = raw.clone().view(dtype).reshape(shape)
    assert fingerprint(value) == fingerprint(value.clone())
    if not nbytes:
        return
    place = data.draw(st.integers(0, nbytes - 1))
    bit = 1 if dtype == torch.bool else 1 << data.draw(st.integers(0, 7))
    raw[place] ^= bit
    assert fingerprint(raw.view(dtype).reshape(shape)) != fingerprint(value)


def test_a_fingerprint_is_of_the_elements_and_not_of_where_they_lie() -> None:
    value = torch.randn(5, 3)
    assert fingerprint(value.t().contiguous().t()) == fingerprint(value)
    assert fingerprint(torch.cat([torch.zeros(1), value.reshape(-1)])[1:].view(5, 3)) == (
        fingerprint(value)
    )
    assert fingerprint(value.conj()) == fingerprint(value)
    different = [value.t(), value.reshape(3, 5), value.view(torch.int32), value.flip(0)]
    assert len({fingerprint(one) for one in [value, *different]}) == 5
    assert fingerprint({"lr": 0.1}) == fingerprint({"lr": 0.1}) != fingerprint({"lr": 0.2})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("unlike")
    ranks.run(2, unlike.save, KINDS, str(made))
    return made


def generation(folder: Path, kind: str) -> Path:
    (found,) = folder.glob(f"store/*/{kind}/step-{unlike.KEPT}.*")
    return found


def metadata(folder: Path) -> Metadata:
    read: Metadata = pickle.loads((folder / ".metadata").read_bytes())
    return read


def test_the_same_ranks_go_on_as_if_nothing_had_been(folder: Path) -> None:
    ranks.run(2, unlike.go_on, KINDS, str(folder))


def test_ranks_do_differ_else_equal_runs_prove_little(folder: Path) -> None:
    for kind in KINDS:
        one, other = ((folder / f"{kind}.{rank}").read_text() for rank in range(2))
        assert one != other, kind


def test_what_ranks_keep_equal_is_staged_once(folder: Path) -> None:
    for kind, equal, apart in (
        ("ddp", "model.first.weight", "model.norm.running_mean"),
        ("experts", "model.shared.weight", "model.expert.weight"),
        ("experts", "optimizer.state.shared.weight.exp_avg", "optimizer.state.expert.weight.step"),
    ):
        keys = metadata(generation(folder, kind)).state_dict_metadata
        assert {equal, apart, f"{name(1)}.{apart}"} <= keys.keys()
        assert f"{name(1)}.{equal}" not in keys


@pytest.mark.parametrize("world", [1, 3])
def test_in_another_world_statistics_are_the_first_ranks_and_experts_are_refused(
    folder: Path, world: int
) -> None:
    ranks.run(world, unlike.in_another_world, str(folder))


def test_the_stages_of_a_pipeline_are_restored_in_one_process(folder: Path) -> None:
    unlike.together(str(folder))


def test_the_weights_alone_hold_each_ranks_own(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    for kind in KINDS:
        for path in generation(tmp_path, kind).iterdir():
            if path.is_file():
                path.unlink()
    ranks.run(2, unlike.weights_only, KINDS, str(tmp_path))


def test_stock_dcp_load_finds_the_first_ranks_under_the_plain_name(folder: Path) -> None:
    saved: dict[str, Any] = torch.load(folder / "ddp.0.pt", weights_only=False)
    then = {key.removeprefix("module."): one for key, one in saved.items()}
    tree = {"model": unlike.Counted().state_dict()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load_checkpoint(tree, checkpoint_id=generation(folder, "ddp"))
    assert digest(tree["model"]) == digest(then)


def islands(rank: int) -> None:
    """Two meshes of two ranks, each with a tensor of its own and one that is equal on both."""
    pairs = init_device_mesh("cpu", (2, 2), mesh_dim_names=("island", "shard"))
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign] # a list is all it takes
    logging.getLogger("evac").addHandler(handler)
    mine = torch.full((4, 2), float(rank // 2))
    spread = {
        name: distribute_tensor(one, pairs["shard"], [Shard(0)])
        for name, one in {"mine": mine, "equal": torch.ones(4, 2)}.items()
    }
    plan(World(), {"model": spread})
    if rank == 0:
        (told,) = heard
        assert "2 parts of DTensors differ between meshes" in told
        assert "model.mine at (0, 0), model.mine at (2, 0)" in told
    else:
        assert not heard


def test_tensors_of_meshes_apart_that_differ_under_one_name_are_told() -> None:
    ranks.run(4, islands)
