"""Several data loaders: those among the extra objects go on as the first one does, and lack nothing unsaid."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from evac.torch import Resumable
from evac.torch.lacking import lacking
from evac.torch.rank_state import RankObjects, unpack
from tests.handlers.torch.drawing import SIZE, Masking, Noisy, Own, Stream, end, noise, plain, seed
from tests.handlers.torch.training import Run, wait_committed

pytestmark = pytest.mark.filterwarnings("ignore:.set_vital. is deprecated:UserWarning")


def torchdatas(**settings: Any) -> StatefulDataLoader[Any]:
    return StatefulDataLoader(Noisy(), batch_size=4, shuffle=True, **settings)


def stock(**settings: Any) -> Resumable[Any]:
    return Resumable(DataLoader(Noisy(), batch_size=5, shuffle=True, **settings))


def forever(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def train(make: Callable[[], Any], store: str, job: str, last: int) -> tuple[int, list[Any]]:
    """Up to step *last*: where it began, and what each step saw and drew."""
    seed(3)
    run, loaders = Run(), (make(), make())
    seen: list[Any] = []
    extra = {"second": loaders[1], "third": run.loader}
    with run.saver(store=store, job=job, loader=loaders[0], extra=extra) as saver:
        first = saver.restore() or 0
        batches = [forever(one) for one in loaders]
        while len(seen) < last - first:
            seen.append(([plain(next(one)) for one in batches], noise(), run.train()))
        assert saver.stage(last)
        wait_committed(store, last, job)
        assert saver.stats.skipped == 0
    del batches
    for one in loaders:
        end(one)
    return first, seen


@pytest.mark.parametrize(
    "make",
    [lambda: torchdatas(num_workers=2, multiprocessing_context="fork"), torchdatas, stock],
    ids=["torchdata's", "torchdata's, no workers", "stock"],
)
def test_a_second_one_goes_on_to_the_bit(make: Callable[[], Any], store: str) -> None:
    # Into the second epoch of both.
    _, whole = train(make, store, "whole", 9)
    _, before = train(make, store, "killed", 4)
    assert train(make, store, "killed", 9) == (4, whole[4:])
    assert before == whole[:4]


@pytest.mark.parametrize("make", [torchdatas, stock])
def test_a_second_one_whose_state_comes_to_hold_tensors_costs_no_layout(
    make: Callable[[], Any], store: str
) -> None:
    run, second = Run(), make()
    with run.saver(store=store, extra={"second": second}) as saver:
        for step in (1, 2, 3):
            run.train()
            if step == 2:
                next(iter(second))
            assert saver.stage(step), saver.stats
            wait_committed(store, step)


@pytest.mark.parametrize("kind", [Resumable, StatefulDataLoader])
def test_in_another_world_a_second_one_is_dealt_anew_or_starts_at_its_beginning(
    kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def objects(world: int) -> RankObjects:
        data: Any = range(SIZE)
        given = {"batch_size": 2}
        dealt = {**given, "sampler": DistributedSampler(data, world, 0, shuffle=False)}
        first, second = (
            Resumable(DataLoader(data, **one)) if kind is Resumable else kind(data, **one)
            for one in (dealt, given)
        )
        return RankObjects(None, None, {"dealt": first, "plain": second})

    before = objects(2)
    for one in before.extra.values():
        batches = iter(one)  # type: ignore[call-overload] # a loader is
        for _ in range(3):
            next(batches)
    block = before.pack(step=3, rank=0, world=2).block
    document = unpack(torch.frombuffer(bytearray(block), dtype=torch.uint8))
    after = objects(1)
    with caplog.at_level(logging.WARNING):
        after.load(document, own=True, rank=0, world=1)
    seen = [next(iter(one)).tolist() for one in after.extra.values()]  # type: ignore[call-overload]
    assert seen == [[12, 13], [0, 1]]
    assert "extra['dealt']: the data loader goes on at sample 12 of its epoch" in caplog.text
    assert "extra['plain']: the data loader starts at its beginning" in caplog.text


def test_what_a_second_one_lacks_is_named() -> None:
    first = StatefulDataLoader(Own(), collate_fn=Masking())
    second = StatefulDataLoader(Stream())
    third: Any = DataLoader(Noisy(), num_workers=1)
    own = {"rng": first.dataset.rng}  # type: ignore[attr-defined] # it has one
    given = RankObjects(None, first, {"second": second, "third": third}, generators=own)
    scheduler, *rest = lacking(given)
    assert scheduler == "no LR schedule"
    where = "loader.dataset.transforms"
    for name in ("0._generator", "0._random", "1._generator", "1._random"):
        said = rest.pop(0)
        assert said.startswith(f"no state of {where}.{name}, from which it draws"), said
    place, third_workers = rest
    assert place.startswith("no place of extra['second'] from the second resume of an epoch on")
    assert "Stream" in place
    assert "Resumable" in place
    assert third_workers.startswith("no random numbers inside extra['third']'s workers: ")
