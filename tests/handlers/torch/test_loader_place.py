"""In a world of another size a loader's place means other samples: dealt anew, or told."""

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from torch.utils.data import DataLoader, Dataset, SequentialSampler
from torch.utils.data.distributed import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from evac.torch import Checkpointer, Resumable, worker_state
from evac.torch.loader_place import Dealt, adopted, dealt, placed, samples
from evac.torch.rank_state import RankObjects
from tests.handlers.torch import ranks
from tests.handlers.torch.drawing import Counting, Noisy, end, seed
from tests.handlers.torch.training import wait_committed

# torchdata calls what torch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.set_vital. is deprecated:UserWarning")


class Numbers(Dataset[int]):
    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, place: int) -> int:
        return place


def loader_of(
    world: int,
    rank: int,
    size: int = 48,
    *,
    stateful: bool = False,
    resumable: bool = False,
    **settings: Any,
) -> Any:
    kind = StatefulDistributedSampler if stateful else DistributedSampler
    data = Numbers(size)
    sampler: DistributedSampler[int] = kind(data, num_replicas=world, rank=rank, seed=3)
    if resumable:
        return Resumable(DataLoader(data, batch_size=2, sampler=sampler, **settings))
    return StatefulDataLoader(data, batch_size=2, sampler=sampler, **settings)


def taken(loader: Any, batches: int | None = None) -> list[int]:
    """What so many batches hold, or all the rest."""
    found: list[int] = []
    for number, batch in enumerate(loader):
        found += batch.tolist()
        if number + 1 == batches:
            break
    return found


def document_of(loader: Any, world: int) -> dict[str, Any]:
    """What a rank keeps of it."""
    return {
        "world": world,
        "shares": dealt(loader, world).shares,
        "scheduler": None,
        "extra": {},
        "loader": loader.state_dict(),
    }


@pytest.mark.parametrize(
    ("settings", "was", "now", "again"),
    [
        ({}, 2, 1, 0),
        ({}, 1, 2, 0),
        ({}, 4, 3, 2),  # 20 were seen: 18 are as many for each of 3
        ({"stateful": True}, 2, 3, 1),
        ({"resumable": True}, 2, 1, 0),
        ({"resumable": True}, 1, 2, 0),
        ({"resumable": True}, 2, 3, 4),  # whole batches: 16 were seen, 12 are two for each of 3
        ({"resumable": True, "num_workers": 2, "multiprocessing_context": "fork"}, 2, 1, 0),
        ({"num_workers": 2, "multiprocessing_context": "fork"}, 2, 1, 0),
        ({"num_workers": 2, "multiprocessing_context": "fork", "stateful": True}, 2, 4, 0),
    ],
)
def test_what_a_distributed_sampler_deals_is_dealt_anew(
    caplog: pytest.LogCaptureFixture, settings: dict[str, Any], was: int, now: int, again: int
) -> None:
    batches = 5 if was == 4 else 4
    seen: list[int] = []
    documents = []
    for rank in range(was):
        loader = loader_of(was, rank, 96, **settings)
        if was == 4:
            # Sizes of batches do not matter, only what was taken.
            loader = StatefulDataLoader(Numbers(96), batch_size=1, sampler=loader.sampler)
        iterator = iter(loader)
        for _ in range(batches):
            seen += next(iterator).tolist()
        documents.append(document_of(loader, was))
        loader._iterator = None
    rest: list[int] = []
    for rank in range(now):
        fresh = loader_of(now, rank, 96, **settings)
        document = documents[min(rank, was - 1)]
        objects = RankObjects(None, fresh, {})
        assert objects.load(document, own=rank < was, rank=rank, world=now) == (
            [] if rank < was else ["its random numbers"]
        )
        rest += taken(fresh)
        # The epoch after it is whole.
        assert len(taken(fresh, None)) == 96 // now
        fresh._iterator = None
    assert set(seen) | set(rest) == set(range(96))
    assert len(set(seen) & set(rest)) == again
    assert caplog.text.count(f": {again} come again, none is missed") == 1


@given(
    size=some.integers(1, 60),
    was=some.integers(1, 6),
    now=some.integers(1, 6),
    part=some.floats(0, 1),
    last=some.booleans(),
)
def test_none_is_missed_and_fewer_come_again_than_there_are_ranks(
    size: int, was: int, now: int, part: float, last: bool
) -> None:
    data = Numbers(size)

    def of(world: int, rank: int) -> DistributedSampler[int]:
        return DistributedSampler(data, world, rank)

    before = [list(of(was, rank)) for rank in range(was)]
    share = of(now, 0).num_samples
    count = round(part * len(before[0]))
    state = {
        "_sampler_iter_yielded": count,
        "_sampler_iter_state": {"samples_yielded": count},
        "_num_yielded": count,
    }
    if last:
        state = {"_snapshot": {"_main_snapshot": state}, "_steps_since_snapshot": 0}
    new, _ = placed(state, own=False, was=Dealt(was, was), now=Dealt(now, now, share))
    if was == now:
        assert samples(new) == count
    there = samples(new)
    assert there is not None
    assert 0 <= there <= share
    seen = {one for mine in before for one in mine[:count]}
    after = [list(of(now, rank))[there:] for rank in range(now)]
    rest = [one for mine in after for one in mine]
    assert seen | set(rest) == set(range(size))
    # What fills up the last round of an epoch comes twice in any world.
    filled = was * len(before[0]) - size + now * share - size
    assert len([one for one in rest if one in seen]) < now + filled


@pytest.mark.parametrize(
    ("resumable", "dataset"), [(True, Noisy), (False, Noisy), (False, Counting)]
)
def test_a_rank_that_is_new_draws_what_no_other_rank_does(
    resumable: bool, dataset: Callable[[], Any]
) -> None:
    """In its loader's workers, where the place, and a data set's own state, is another rank's."""

    def drawn(state: Any = None) -> tuple[list[float], Any]:
        kind: Any = DataLoader if resumable else StatefulDataLoader
        loader = kind(dataset(), batch_size=2, num_workers=1, multiprocessing_context="fork")
        loader = Resumable(loader) if resumable else loader
        worker_state.keep(loader)
        if state is not None:
            loader.load_state_dict(state)
        batches = iter(loader)
        batch = next(batches)
        if dataset is Counting:
            assert batch[:, -1].tolist() == ([1, 2] if state is None else [3, 4])
        found = [float(one) for one in batch[:, 1]]
        state = loader.state_dict()
        end(loader)
        return found, state

    seed(1)
    _, state = drawn()
    seed(2)
    same, _ = drawn(state)
    seed(2)
    new, _ = drawn(adopted(state, 5))
    assert len(set(same) & set(new)) == 0
    assert len(same) == len(new) == 2


class Plain:
    """A loader of which nothing is known."""

    def __init__(self) -> None:
        self.place = 0

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


@pytest.mark.parametrize("elastic", [True, False])
@pytest.mark.parametrize("rank", [0, 1])
def test_of_another_loader_the_place_is_taken_only_where_it_is_the_jobs(
    caplog: pytest.LogCaptureFixture, rank: int, elastic: bool
) -> None:
    """Rank 1 is new."""
    old, new = Plain(), Plain()
    old.place = 7
    objects = RankObjects(None, new, {}, elastic_loader=elastic)
    afresh = objects.load(document_of(old, 1), own=rank == 0, rank=rank, world=2)
    assert new.place == (7 if elastic else 0)
    assert afresh == ([] if rank == 0 else ["its random numbers"])
    assert ("starts at its beginning" in caplog.text) is (not elastic and rank == 0)
    assert ("one of 1 ranks and 2 are here" in caplog.text) is (not elastic and rank == 0)


def test_how_much_comes_again_is_told_where_the_state_tells_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each rank shuffles all of the data for itself."""

    def fresh() -> StatefulDataLoader[int]:
        return StatefulDataLoader(Numbers(48), batch_size=2, shuffle=True)

    old, new = fresh(), fresh()
    iterator = iter(old)
    for _ in range(3):
        next(iterator)
    objects = RankObjects(None, new, {})
    objects.load(document_of(old, 4), own=True, rank=0, world=2)
    assert "6 samples that each of them had come again, none is missed" in caplog.text
    assert len(taken(new)) == 48


def test_in_a_world_of_the_same_size_nothing_is_said_unless_fewer_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """4 ranks that read 4 shares, and 4 that read 2 of them, two ranks alike."""
    old = loader_of(4, 1)
    iterator = iter(old)
    next(iterator)
    same = loader_of(4, 1)
    RankObjects(None, same, {}).load(document_of(old, 4), own=True, rank=0, world=4)
    assert caplog.text == ""
    assert len(taken(same)) == 10
    other = loader_of(2, 1)
    RankObjects(None, other, {}).load(document_of(old, 4), own=True, rank=0, world=4)
    assert "goes on at sample 8 of its epoch, which is dealt to 2 where it was to 4" in caplog.text
    assert len(taken(other)) == 20


@pytest.mark.parametrize(("was", "batch"), [(2, 8), (1, 3)])
def test_dealt_anew_in_batches_of_another_size_none_is_missed(was: int, batch: int) -> None:
    """Whoever keeps the global batch with fewer ranks has larger ones on each."""
    seen: list[int] = []
    for rank in range(was):
        loader = loader_of(was, rank, 64, resumable=True)
        batches = iter(loader)
        for _ in range(5):
            seen += next(batches).tolist()
    document, rest = document_of(loader, was), []
    for rank in range(now := 3 - was):
        data: Any = Numbers(64)
        sampler: Any = DistributedSampler(data, num_replicas=now, rank=rank, seed=3)
        fresh: Any = Resumable(DataLoader(data, batch_size=batch, sampler=sampler))
        RankObjects(None, fresh, {}).load(document, own=False, rank=rank, world=now)
        rest += taken(fresh)
    assert set(seen) | set(rest) == set(range(64))
    assert len(set(seen) & set(rest)) == 4


def test_a_loader_in_batches_of_its_own_is_found_out(caplog: pytest.LogCaptureFixture) -> None:
    data = Numbers(8)
    batches = torch.utils.data.BatchSampler(DistributedSampler(data, 2, 0), 2, drop_last=False)
    assert dealt(StatefulDataLoader(data, batch_sampler=batches), 2) == Dealt(2, 2, 4)
    assert dealt(StatefulDataLoader(data, sampler=SequentialSampler(data)), 2) == Dealt(2)


def train(rank: int, folder: str, world: int, last: int) -> None:
    """Up to step *last*, all of it committed; leaves what it has seen and heard."""
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign] # a list is all it takes
    logging.getLogger("evac").addHandler(handler)
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    loader = loader_of(world, rank)
    store, seen = f"file://{folder}/store", []
    with Checkpointer(
        model=model, optimizer=optimizer, job="x", store=store, every=1000, loader=loader
    ) as saver:
        step = saver.restore() or 0

        def batches() -> Iterator[torch.Tensor]:
            yield from loader

        for batch in batches():
            step += 1
            seen += batch.tolist()
            optimizer.zero_grad()
            model(torch.ones(1, 1)).sum().backward()
            optimizer.step()
            if step == last:
                assert saver.stage(step)
                wait_committed(store, step, "x")
                break
    Path(folder, f"{world}.{rank}").write_text(json.dumps([seen, heard]))
    logging.getLogger("evac").removeHandler(handler)


def test_a_job_that_goes_on_with_fewer_ranks_sees_each_sample_once(tmp_path: Path) -> None:
    ranks.run(2, train, str(tmp_path), 2, 5)
    train(0, str(tmp_path), 1, 0)
    seen = []
    for name in ("2.0", "2.1", "1.0"):
        seen += json.loads((tmp_path / name).read_text())[0]
    assert sorted(seen) == list(range(48))
    heard = json.loads((tmp_path / "1.0").read_text())[1]
    assert any("goes on at sample 20 of its epoch" in one for one in heard)
