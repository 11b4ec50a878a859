"""A stock `DataLoader` goes on to the bit, and without a resume it is what it was."""

import multiprocessing
import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from itertools import count, islice
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler
from torch.utils.data.distributed import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from evac.torch import Resumable, worker_state
from evac.torch.introduction import Introduction
from evac.torch.lacking import lacking
from evac.torch.rank_state import RankObjects
from evac.torch.world import World
from tests.agent.daemon.nodes import until
from tests.handlers.torch import drawing
from tests.handlers.torch.drawing import (
    SIZE,
    Loop,
    Masking,
    Noisy,
    Own,
    Stream,
    end,
    plain,
    resumed,
    seed,
)
from tests.handlers.torch.fakes import FakeClient
from tests.handlers.torch.training import Run

pytestmark = [
    # torchdata calls what torch has deprecated.
    pytest.mark.filterwarnings("ignore:.set_vital. is deprecated:UserWarning"),
    # Three workers, on two cores.
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]


class Lazy(Sampler[int]):
    """Draws each place when it is asked for it."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(4)

    def __len__(self) -> int:
        return SIZE

    def __iter__(self) -> Iterator[int]:
        return (int(self.rng.integers(SIZE)) for _ in range(SIZE))


def stock(dataset: Callable[[], Any] = Noisy, workers: int = 2, **settings: Any) -> DataLoader[Any]:
    """6 batches of 4, unless told otherwise; what has to be made anew is given as a function."""
    made = {key: one() if key in ("sampler", "generator") else one for key, one in settings.items()}
    if workers:
        made = {"num_workers": workers, "multiprocessing_context": "fork", **made}
    return DataLoader(dataset(), **{"batch_size": 4, **made})


def resumable(**settings: Any) -> Resumable[Any]:
    return Resumable(stock(**settings))


def from_torch() -> torch.Generator:
    return torch.Generator().manual_seed(5)


@pytest.mark.parametrize(
    ("settings", "kept", "steps"),
    [
        ({"shuffle": True}, [1, 3], 5),
        ({"shuffle": True, "workers": 3, "prefetch_factor": 1}, [5], 6),
        ({"shuffle": True, "persistent_workers": True}, [5, 9], 14),
        ({"shuffle": True, "persistent_workers": True}, [6], 9),  # at an epoch's last batch
        ({"shuffle": True, "batch_size": None}, [23], 24),
        ({"shuffle": True, "workers": 0}, [2, 6, 7], 9),
        ({"collate_fn": drawing.collated, "worker_init_fn": drawing.seeded}, [3], 5),
        ({"collate_fn": drawing.as_is, "dataset": Own, "persistent_workers": True}, [3, 7], 9),
        ({"dataset": Own, "workers": 0, "collate_fn": Masking(random.Random)}, [2, 7], 9),
        ({"collate_fn": Masking(drawing.of_torch).collate}, [3, 7], 9),
        ({"collate_fn": partial(Masking(np.random.RandomState)), "workers": 0}, [3], 5),
        ({"shuffle": True, "generator": from_torch, "persistent_workers": True}, [8], 14),
        ({"sampler": Lazy}, [3], 8),
        ({"sampler": Lazy, "workers": 0}, [3], 8),
        ({"dataset": Stream}, [3], 8),
        ({"dataset": Stream, "workers": 0, "batch_size": None}, [1], 3),
    ],
)
def test_it_goes_on_to_the_bit(settings: dict[str, Any], kept: list[int], steps: int) -> None:
    # A collate of its own for each process that there is in earnest.
    resumed(lambda: resumable(**deepcopy(settings)), kept, steps)


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ({"prefetch_factor": 1}, {"prefetch_factor": 4}),
        ({"workers": 3}, {"workers": 1}),
        ({"workers": 2}, {"workers": 0}),
        ({"workers": 0}, {"workers": 2}),
    ],
)
def test_however_far_workers_are_ahead_a_sampler_that_draws_amid_an_epoch_goes_on(
    was: dict[str, Any], now: dict[str, Any]
) -> None:
    """As torch's own does, 32 samples at a time."""

    def make(**settings: Any) -> Resumable[Any]:
        drawn = RandomSampler(
            range(SIZE), replacement=True, num_samples=400, generator=from_torch()
        )
        return resumable(sampler=lambda: drawn, **settings)

    loader = make(**was)
    batches = iter(loader)
    before = [places([next(batches)]) for _ in range(5)]
    state = loader.state_dict()
    del batches
    loader = make(**now)
    loader.load_state_dict(state)
    whole = [places([batch]) for batch in make()]
    assert before + [places([batch]) for batch in loader] == whole


@pytest.mark.parametrize("leave", [True, False])
def test_workers_end_with_the_loop_that_they_work_for(leave: bool) -> None:
    """Also where it is left early: an evaluation after it has the machine for itself."""
    loader, others = resumable(), set(multiprocessing.active_children())

    def working() -> int:
        return len(set(multiprocessing.active_children()) - others)

    for _ in range(2):
        for _batch in loader:
            assert working() == 2, "those of the loop before work, too"
            if leave:
                break
        until("they have ended", lambda: not working())


@pytest.mark.parametrize("persistent", [True, False])
def test_an_epoch_that_is_left_early_counts_as_far_as_its_workers_went(persistent: bool) -> None:
    make = partial(resumable, shuffle=True, persistent_workers=persistent)
    resumed(make, [3, 7], 10, leaves=4)


@pytest.mark.parametrize(
    "settings",
    [
        {"shuffle": True},
        {"shuffle": True, "persistent_workers": True, "collate_fn": drawing.collated},
        {"shuffle": True, "batch_size": None, "generator": from_torch},
        {"dataset": Stream, "persistent_workers": True},
        {"shuffle": True, "workers": 0},
    ],
)
def test_without_a_resume_it_is_the_loader_it_was(settings: dict[str, Any]) -> None:
    """Types, order, the workers' numbers and those of this process."""
    seen = []
    for wrap in (lambda loader: loader, Resumable):
        seed(3)
        loader = wrap(stock(**settings))
        seen.append(Loop(loader).run(7))
        assert len(loader) == len(stock(**settings)) if "dataset" not in settings else True
        if isinstance(loader, Resumable):
            end(loader)
    assert seen[0] == seen[1]


def test_its_state_begins_empty_and_is_the_loaded_one_until_it_is_iterated_over() -> None:
    first = resumable(shuffle=True)
    assert first.state_dict() == {}
    batches = iter(first)
    next(batches)
    state = first.state_dict()
    second = resumable(shuffle=True)
    second.load_state_dict(state)
    assert second.state_dict() == state
    iter(second)
    assert second.state_dict()["taken"] == 1
    end(first)
    end(second)


def test_its_state_does_not_grow_as_workers_come_to_have_numbers() -> None:
    """Else the checkpoint would be laid out anew."""
    loader = resumable(shuffle=True, workers=3)
    sizes = []
    for _ in loader:
        state = loader.state_dict()
        numbers = sum(len(kind) for one in state["numbers"] if one for kind in one.values())
        sizes.append(numbers + len(state["room"]))
    assert max(sizes) < 1.1 * min(sizes)
    end(loader)


class Failing(Noisy):
    def __getitem__(self, place: int) -> torch.Tensor:
        made = super().__getitem__(place)
        if place == 4:
            raise KeyError(place)
        return made


def taken(batches: Iterator[Any], most: int) -> list[Any]:
    """So many, or all that there are."""
    seen: list[Any] = []
    while len(seen) < most:
        try:
            seen.append(plain(next(batches)))
        except KeyError:
            seen.append("failed")
        except StopIteration:
            break
    return seen


def test_a_batch_that_fails_is_one_of_them() -> None:
    """The loop goes on with the next one; so does a resumed one."""
    seed(3)
    whole = taken(iter(resumable(dataset=Failing)), 9)
    assert len(whole) == 6
    assert whole[1] == "failed"
    for kept in (2, 3):
        seed(3)
        loader = resumable(dataset=Failing)
        batches = iter(loader)
        first = taken(batches, kept)
        state = loader.state_dict()
        # To its end: what torch raises keeps its frames, and workers of what is garbage are waited for.
        taken(batches, 9)
        loader = resumable(dataset=Failing)
        loader.load_state_dict(state)
        assert first + taken(iter(loader), 9) == whole


def test_with_other_workers_the_place_is_kept_and_the_numbers_are_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def places(batches: Any) -> list[Any]:
        return [batch[:, 0].tolist() for batch in batches]

    seed(3)
    whole = places(resumable(shuffle=True))
    seed(3)
    loader = resumable(shuffle=True)
    batches = iter(loader)
    first = places(next(batches) for _ in range(4))
    other = resumable(shuffle=True, workers=3)
    other.load_state_dict(loader.state_dict())
    assert first + places(other) == whole
    assert caplog.text.count("start anew: there were 2 workers, there are 3") == 1
    end(loader)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (list, "got list"),
        (
            partial(StatefulDataLoader, Noisy()),
            "which iterates in its own way .it has a state of its",
        ),
        (partial(DataLoader, Noisy(), num_workers=1, in_order=False), "in_order=False, whose next"),
    ],
)
def test_what_goes_its_own_way_is_refused(make: Callable[[], Any], reason: str) -> None:
    loader = make()
    with pytest.raises(ValueError, match=reason):
        Resumable(loader)


def test_the_state_of_another_loader_is_refused() -> None:
    with pytest.raises(ValueError, match="the state of another loader: _snapshot, taken"):
        resumable().load_state_dict({"_snapshot": {}, "taken": 1})


def test_all_else_is_the_loaders() -> None:
    loader = stock(shuffle=True)
    assert Resumable(loader).sampler is loader.sampler
    assert Resumable(loader).batch_size == 4
    with pytest.raises(AttributeError, match="_iterator"):
        Resumable(loader)._iterator  # noqa: B018 - that it is not there is what is looked for


@pytest.mark.parametrize("persistent", [True, False])
def test_what_it_cannot_keep_is_named(persistent: bool) -> None:
    """And nothing else: its samplers have no state of their own to miss."""
    kept = RankObjects(None, resumable(shuffle=True), {})
    assert lacking(kept) == ["no LR schedule"]
    sampled = resumable(sampler=lambda: BatchSampler(RandomSampler(Noisy()), 2, False))
    assert lacking(RankObjects(None, sampled, {})) == ["no LR schedule"]
    loader = resumable(dataset=Stream, persistent_workers=persistent)
    named = worker_state.unkept(loader)
    assert ("from its second epoch on" in named) is persistent
    named = worker_state.unkept(resumable(dataset=Stream, workers=0))
    assert "if Stream draws in this process, training draws in between" in named
    assert worker_state.unkept(resumable(workers=0)) == ""


@pytest.mark.parametrize("workers", [0, 2])
def test_a_checkpointer_has_it_go_on_and_nothing_to_complain_of(
    store: str, caplog: pytest.LogCaptureFixture, workers: int
) -> None:
    def losses(loader: Any, folder: str, kept: int, last: int) -> list[str]:
        run, found = Run(), []
        with run.saver(store=f"{store}/{folder}", loader=loader, every=1000) as saver:
            step = saver.restore() or 0
            assert step == kept
            batches = iter(loader)
            while step < last:
                batch = next(batches).float()
                run.optimizer.zero_grad()
                loss = run.model(batch.repeat(1, 2)).square().mean()
                loss.backward()
                run.optimizer.step()
                found.append(loss.item().hex())
                step += 1
            assert saver.stage(last)
        end(loader)
        return found

    make = partial(resumable, shuffle=True, workers=workers)
    seed(3)
    whole = losses(make(), "whole", 0, 5)
    seed(3)
    first = losses(make(), "ended", 0, 3)
    assert first + losses(make(), "ended", 3, 5) == whole
    assert "were drawn" not in caplog.text
    assert "checkpoints hold" not in caplog.text


def places(batches: Any) -> list[int]:
    """Of the samples."""
    return [int(sample[0]) for batch in batches for sample in batch]


@pytest.mark.parametrize(
    ("settings", "was", "now", "kept", "again"),
    [
        ({"shuffle": True, "workers": 0}, 2, 4, 4, 0),
        ({"shuffle": True, "workers": 0}, 4, 3, 4, 1),
        ({"shuffle": True}, 4, 8, 3, 4),
        ({"dataset": Stream}, 4, 2, 3, 4),
    ],
)
def test_in_batches_of_another_size_no_sample_is_missed(
    caplog: pytest.LogCaptureFixture,
    settings: dict[str, Any],
    was: int,
    now: int,
    kept: int,
    again: int,
) -> None:
    seed(3)
    loader = resumable(batch_size=was, **settings)
    batches = iter(loader)
    seen = places(next(batches) for _ in range(kept))
    other = resumable(batch_size=now, **settings)
    other.load_state_dict(loader.state_dict())
    rest = places(other)
    assert set(seen) | set(rest) == set(range(SIZE))
    assert len(set(seen) & set(rest)) == again
    assert f"{again} samples come again, none is missed" in caplog.text
    end(loader)


@pytest.mark.parametrize(("was", "now", "again"), [(2, 1, 12), (1, 0, 0)])
def test_a_stream_that_others_read_in_parts_begins_anew(
    caplog: pytest.LogCaptureFixture, was: int, now: int, again: int
) -> None:
    loader = resumable(dataset=Stream, workers=was)
    batches = iter(loader)
    seen = places(next(batches) for _ in range(3))
    other = resumable(dataset=Stream, workers=now)
    other.load_state_dict(loader.state_dict())
    rest = places(other)
    assert set(seen) | set(rest) == set(range(SIZE))
    assert len(set(seen) & set(rest)) == again
    assert ("read from its epoch's begin" in caplog.text) is bool(again)
    end(loader)


def test_batches_of_no_fixed_size_come_again(caplog: pytest.LogCaptureFixture) -> None:
    loader = resumable(workers=0)
    next(iter(loader))
    data = Noisy()
    other = Resumable(DataLoader(data, batch_sampler=BatchSampler(range(SIZE), 5, False)))
    other.load_state_dict(loader.state_dict())
    assert places(other) == list(range(SIZE))
    assert "goes on at batch 0 of its epoch" in caplog.text


class FailsOnce(Sampler[int]):
    """Where a class of it begins for the second time."""

    begun = 0

    def __len__(self) -> int:
        return SIZE

    def __iter__(self) -> Iterator[int]:
        FailsOnce.begun += 1
        if FailsOnce.begun == 2:
            raise OSError("for a moment")
        return iter(torch.randperm(SIZE).tolist())


def test_a_start_that_fails_leaves_the_place_for_another_try() -> None:
    FailsOnce.begun = 0
    loader = resumable(sampler=FailsOnce, workers=0)
    batches = iter(loader)
    seen = places(next(batches) for _ in range(3))
    state = loader.state_dict()
    other = resumable(sampler=FailsOnce, workers=0)
    other.load_state_dict(state)
    with pytest.raises(OSError, match="for a moment"):
        iter(other)
    assert other.state_dict() == state
    assert sorted(seen + places(other)) == list(range(SIZE))


class Late(Noisy):
    """Its third sample waits until a file is there."""

    def __init__(self, go: Path) -> None:
        super().__init__(4)
        self._go = go

    def __getitem__(self, place: int) -> torch.Tensor:
        while place == 2 and not self._go.exists():
            sleep(0.01)
        return super().__getitem__(place)


def patient(batches: Iterator[Any]) -> Iterator[Any]:
    """On a busy machine any batch may be late."""
    while True:
        try:
            yield next(batches)
        except StopIteration:
            return
        except RuntimeError as error:
            assert "timed out" in str(error)  # noqa: PT017 - it may come or not


def test_a_batch_that_is_late_is_still_to_come(tmp_path: Path) -> None:
    """The loop catches the time-out and asks again."""
    go = tmp_path / "go"
    loader = resumable(dataset=partial(Late, go), workers=1, batch_size=1, timeout=1)
    batches = iter(loader)
    seen = places(islice(patient(batches), 2))
    with pytest.raises(RuntimeError, match="timed out"):
        next(batches)
    assert loader.state_dict()["taken"] == 2
    go.touch()
    other = resumable(dataset=partial(Late, go), workers=1, batch_size=1)
    other.load_state_dict(loader.state_dict())
    assert places(other) == [2, 3]
    assert seen + places(patient(batches)) == [0, 1, 2, 3]
    end(loader)


def test_what_is_read_again_is_told_each_minute(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="evac")
    first = resumable(dataset=Stream, workers=0, batch_size=None)
    batches = iter(first)
    for _ in range(5):
        next(batches)
    seconds = count(step=25.0)
    other = Resumable(DataLoader(Stream(), batch_size=None), clock=lambda: next(seconds))
    other.load_state_dict(first.state_dict())
    assert plain(next(iter(other)))[0] == 5
    assert "5 batches of an IterableDataset are read again" in caplog.text
    assert caplog.text.count("2 of 5 batches are read again") == 1
    assert caplog.text.count("of 5 batches are read again") == 1


@pytest.mark.parametrize(
    ("workers", "settings"),
    [
        (0, {"shuffle": True}),
        (2, {"shuffle": True, "generator": from_torch}),
        (2, {"sampler": FailsOnce}),
        (0, {"sampler": FailsOnce, "generator": from_torch}),
    ],
)
def test_without_workers_that_live_on_the_order_is_the_same(
    caplog: pytest.LogCaptureFixture, workers: int, settings: dict[str, Any]
) -> None:
    """In the second epoch of those no seed was drawn for them."""
    FailsOnce.begun = 9
    seed(3)
    loader = resumable(persistent_workers=True, **settings)
    for _ in loader:
        torch.rand(1)
    batches = iter(loader)
    seen = places(next(batches) for _ in range(3))
    state = loader.state_dict()
    seen += places(batches)
    assert sorted(seen) == list(range(SIZE))
    end(loader)
    for _ in range(2):
        # And once more from there.
        other = resumable(workers=workers, **settings)
        other.load_state_dict(state)
        batches = iter(other)
        state = other.state_dict()
        assert places(batches) == seen[12:]
        assert "lived on from epoch to epoch: True, and now: False" in caplog.text
        end(other)


class Buckets(Sampler[int]):
    """Shuffles each when it is reached."""

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self.generator = generator

    def __len__(self) -> int:
        return SIZE

    def __iter__(self) -> Iterator[int]:
        for first in range(0, SIZE, 11):
            yield from (first + torch.randperm(11, generator=self.generator)).tolist()


@pytest.mark.parametrize(
    ("sampler", "told"),
    [
        (Buckets, 1),
        (lambda: Buckets(from_torch()), 0),
        (lambda: RandomSampler(Noisy(), replacement=True, num_samples=99), 0),
        (FailsOnce, 0),
    ],
)
def test_a_sampler_that_draws_amid_an_epoch_is_named_once(
    caplog: pytest.LogCaptureFixture, sampler: Callable[[], Sampler[int]], told: int
) -> None:
    FailsOnce.begun = 9
    loader = resumable(sampler=sampler, workers=0)
    for _ in range(2):
        places(loader)
    assert caplog.text.count("Buckets draws from the global random numbers amid an epoch") == told
    assert caplog.text.count("amid an epoch") == told


@pytest.mark.parametrize(
    ("ranks", "settings", "told"),
    [
        (2, {"shuffle": True}, True),
        (1, {"shuffle": True}, False),
        (2, {"sampler": lambda: DistributedSampler(Noisy(), 2, 0)}, False),
        (2, {"dataset": Stream, "workers": 1}, False),
    ],
)
def test_one_that_all_ranks_read_alike_is_named(
    caplog: pytest.LogCaptureFixture, ranks: int, settings: dict[str, Any], told: bool
) -> None:
    world = World.alone()
    world.size = ranks
    objects = RankObjects(None, resumable(**settings), {})
    Introduction(FakeClient().as_client(), None, objects, world).say()
    assert ("each of 2 ranks takes all of the dataset" in caplog.text) is told
