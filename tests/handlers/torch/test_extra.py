"""Tensors of extra objects are laid out, shared and resharded as the model's are."""

import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint.metadata import Metadata

from evac.torch import Checkpointer
from evac.torch.extra import Elsewhere, fill, lift, own
from tests.handlers.torch import extras, ranks
from tests.handlers.torch.fakes import FakeClient
from tests.handlers.torch.training import digest

KINDS = ["ddp", "fsdp"]

LEAVES = st.one_of(
    st.integers(),
    st.text(max_size=3),
    st.none(),
    st.builds(torch.arange, st.integers(0, 3)),
    st.builds(torch.arange, st.integers(512, 515)),
)


def boxes(below: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(below, max_size=3),
        st.dictionaries(st.one_of(st.integers(), st.text(max_size=3)), below, max_size=3),
    )


STATES = st.recursive(LEAVES, lambda below: st.one_of(boxes(below), st.tuples(below)))
WHOLE = torch.arange(1_000_000)
# Of much more than they show.
VIEWS = st.builds(lambda first, end: WHOLE[first:end], st.integers(0, 9), st.integers(9, 600))


@given(STATES)
def test_what_is_lifted_out_comes_back_where_it_was(state: Any) -> None:
    before = digest(state)
    emptied, tensors = lift(state)
    assert digest(state) == before
    travelled = pickle.loads(pickle.dumps(emptied))
    assert digest(fill(travelled, tensors)) == before
    assert all(one.nbytes >= 4096 for one in tensors.values())


@given(st.recursive(st.one_of(LEAVES, VIEWS), boxes))
def test_a_view_does_not_bring_all_of_its_buffer(state: Any) -> None:
    before = digest(state)
    emptied, tensors = lift(state)
    document = pickle.dumps(emptied)
    assert len(document) < 800_000
    assert digest(state) == before == digest(fill(pickle.loads(document), tensors))


def test_a_container_keeps_its_kind_and_its_attributes() -> None:
    state = torch.nn.Linear(40, 40).state_dict()
    emptied, tensors = lift(state)
    assert isinstance(emptied, OrderedDict)
    assert emptied._metadata == state._metadata  # type: ignore[attr-defined] # torch sets it
    assert list(emptied) == list(state)
    assert (emptied["weight"], set(tensors)) == (Elsewhere("weight"), {"weight"})


def test_views_of_all_of_a_buffer_stay_views_of_one() -> None:
    whole = torch.arange(800.0)
    state = {"rows": list(whole.view(100, 8)), "first": whole[:8]}
    emptied, tensors = lift(state)
    assert emptied is state
    assert not tensors


def test_names_that_meet_lose_nothing() -> None:
    state = {"a": {"b": torch.ones(2000)}, "a.b": torch.zeros(2000)}
    emptied, tensors = lift(state)
    assert set(tensors) == {"a.b"}
    assert torch.equal(fill(emptied, tensors)["a.b"], torch.zeros(2000))


def test_only_what_lasts_equal_is_all_ranks() -> None:
    norm = torch.nn.BatchNorm1d(2000)
    moments = torch.optim.Adam(norm.parameters())
    objects = {"module": norm, "moments": moments, "other": extras.Replay()}
    assert own(objects) == {
        ("extra", "module", "running_mean"),
        ("extra", "module", "running_var"),
        ("extra", "other", "seen"),
        ("extra", "other", "parts.0"),
    }


def test_an_average_costs_its_size_once_and_a_block_next_to_nothing() -> None:
    model = torch.nn.Linear(512, 512)
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sizes = []
    for extra in ({}, {"average": average}):
        client = FakeClient(["file:///nowhere"])
        saver = Checkpointer(
            model=model, optimizer=optimizer, extra=extra, job="run", client=client.as_client()
        )
        assert saver.stage(1), saver.stats
        sizes.append(client.reservations[0]["nbytes"])
        saver.close()
    plain, averaged = sizes
    assert isinstance(plain, int)
    assert isinstance(averaged, int)
    assert 0 < averaged - plain - 512 * 512 * 4 < 64 * 1024


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("extras")
    ranks.run(2, extras.save, KINDS, str(made))
    return made


@pytest.mark.parametrize("world", [1, 2, 3])
def test_averages_moments_and_what_a_rank_has_seen_come_back_in_any_world(
    folder: Path, world: int
) -> None:
    ranks.run(world, extras.restore, KINDS, str(folder))


def test_what_ranks_share_is_staged_once(folder: Path) -> None:
    (generation,) = folder.glob(f"store/*/ddp/step-{extras.KEPT}.*")
    metadata: Metadata = pickle.loads((generation / ".metadata").read_bytes())
    keys = metadata.state_dict_metadata.keys()
    average, seen = "extra.average.module.0.weight", "extra.replay.seen"
    assert {average, seen, f"evac.rank1.own.{seen}"} <= keys
    assert f"evac.rank1.own.{average}" not in keys
