"""torchdata's loader goes on with the random numbers of its workers; where it cannot, that is said."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from evac.torch import worker_state
from evac.torch.lacking import lacking
from evac.torch.rank_state import RankObjects
from tests.handlers.torch import drawing
from tests.handlers.torch.drawing import (
    Counting,
    Going,
    Loop,
    Masking,
    Noisy,
    Own,
    Stream,
    end,
    resumed,
    seed,
)

# torchdata calls what torch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.set_vital. is deprecated:UserWarning")


def stateful(dataset: Callable[[], Any] = Noisy, **settings: Any) -> StatefulDataLoader[Any]:
    """6 batches of 4, unless told otherwise."""
    given = {"batch_size": 4, "num_workers": 2, "multiprocessing_context": "fork", **settings}
    return StatefulDataLoader(dataset(), **given)


def keeping(**settings: Any) -> StatefulDataLoader[Any]:
    loader = stateful(**settings)
    worker_state.keep(loader)
    return loader


@pytest.mark.parametrize(
    ("settings", "kept", "steps"),
    [
        ({"shuffle": True}, [3], 8),
        ({"shuffle": True, "persistent_workers": True}, [5, 9], 14),
        ({"shuffle": True, "snapshot_every_n_steps": 4}, [3], 5),
        ({"collate_fn": drawing.collated, "worker_init_fn": drawing.seeded}, [3], 5),
        ({"dataset": Own, "persistent_workers": True}, [3, 7], 9),
        ({"dataset": Counting, "shuffle": True}, [3], 5),
        ({"collate_fn": Masking()}, [3, 7], 9),
        ({"dataset": Going, "persistent_workers": True}, [3, 13], 16),
        ({"dataset": Stream}, [3], 7),
    ],
)
def test_it_goes_on_to_the_bit(settings: dict[str, Any], kept: list[int], steps: int) -> None:
    resumed(lambda: keeping(**deepcopy(settings)), kept, steps)


def test_without_a_resume_it_is_the_loader_it_was() -> None:
    seen = []
    for make in (stateful, keeping):
        seed(3)
        loader = make(dataset=Counting, shuffle=True, worker_init_fn=drawing.seeded)
        seen.append(Loop(loader).run(8))
        end(loader)
    assert seen[0] == seen[1]


def test_a_state_from_before_is_taken_for_what_it_holds() -> None:
    """Of a version that kept no numbers, or of a loop without a Checkpointer: the dataset's own state is there."""
    loader = stateful(dataset=Counting)
    loop = Loop(loader)
    loop.run(4)
    new = keeping(dataset=Counting)
    new.load_state_dict(loader.state_dict())
    end(loader)
    made = [sample[-1] for batch, _ in Loop(new).run(1) for sample in batch]
    assert made == [9.0, 10.0, 11.0, 12.0]
    end(new)


class Slotted:
    """Takes no attributes."""

    __slots__ = ()

    def __len__(self) -> int:
        return 4

    def __getitem__(self, place: int) -> int:
        return place


class Iterated(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter([1])


class Another(DataLoader[torch.Tensor]):
    """Has a state that nobody knows."""

    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None: ...


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (keeping, ""),
        (partial(keeping, num_workers=0, multiprocessing_context=None), ""),
        (partial(keeping, dataset=lambda: [1, 2]), ""),
        (partial(keeping, dataset=lambda: [1, 2], collate_fn=drawing.as_is), "type list takes no"),
        (partial(keeping, dataset=Slotted), "the type Slotted takes no attributes"),
        (stateful, "the loader was not known before"),
        (partial(keeping, in_order=False), "with in_order=False the next batch is"),
        (partial(keeping, dataset=Stream), ""),
        (partial(keeping, dataset=Going, persistent_workers=True), ""),
        (partial(keeping, dataset=Stream, persistent_workers=True), "Stream, which has no state"),
        (partial(keeping, dataset=Iterated), "where the iterator of Iterated has a state"),
        (partial(Another, Noisy(), num_workers=1), "of Another nothing is known"),
    ],
)
def test_what_it_cannot_keep_is_named(make: Callable[[], Any], reason: str) -> None:
    missing = lacking(RankObjects(None, make(), {}))
    named = [one for one in missing if "random numbers" in one]
    assert len(named) == bool(reason)
    assert all(
        one.startswith("no random numbers inside the loader's workers: ") and reason in one
        for one in named
    )


def test_workers_that_had_started_before_are_named_until_others_start() -> None:
    loader = stateful(persistent_workers=True)
    batches = iter(loader)
    next(batches)
    worker_state.keep(loader)
    assert "started before" in worker_state.unkept(loader)
    loader.load_state_dict(loader.state_dict())
    assert worker_state.unkept(loader) == ""
    del batches
    end(loader)


def test_it_is_asked_once_however_often_a_checkpointer_is_made() -> None:
    loader = keeping(worker_init_fn=drawing.seeded)
    start = loader.worker_init_fn
    worker_state.keep(loader)
    assert loader.worker_init_fn is start
