"""Epochs and samples are kept; a sampler, a generator or a scaler that would be forgotten is named."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import RandomSampler, Sampler
from torch.utils.data.distributed import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from evac.torch.lacking import lacking
from evac.torch.progress import Progress
from evac.torch.rank_state import RankObjects
from tests.handlers.torch.fakes import FakeClient
from tests.handlers.torch.training import Loader, Run, wait_committed

# torchdata calls what torch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.set_vital. is deprecated:UserWarning")
DATA: Any = list(range(24))


def dealing() -> StatefulDataLoader[int]:
    """Shuffled by the number of the epoch."""
    sampler: DistributedSampler[int] = DistributedSampler(DATA, 1, 0, seed=3)
    return StatefulDataLoader(DATA, batch_size=4, sampler=sampler)


def in_epoch(store: str, number: int, **told: int) -> list[int]:
    """Two batches of an epoch, staged and committed; what is left of it."""
    run, loader = Run(), dealing()
    loader.sampler.set_epoch(number)  # type: ignore[attr-defined] # a DistributedSampler
    batches = iter(loader)
    with run.saver(store=store, loader=loader, every=1000) as saver:
        next(batches)
        run.train()
        next(batches)
        assert saver.stage(2, **told)
        wait_committed(store, 2)
    return [int(one) for batch in batches for one in batch]


def test_epoch_and_samples_come_back(store: str, caplog: pytest.LogCaptureFixture) -> None:
    in_epoch(store, 0, epoch=5, samples=1234)
    with Run().saver(store=store, loader=dealing()) as saver:
        assert (saver.progress.epoch, saver.progress.samples) == (0, 0)
        assert saver.restore() == 2
        assert (saver.progress.epoch, saver.progress.samples) == (5, 1234)
        saver.step(3, epoch=5)
    assert "data comes again" not in caplog.text


def test_a_samplers_epoch_comes_back_by_itself(
    store: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A loop that never sets it goes on in the order that it was in."""
    rest = in_epoch(store, 3)
    run, loader = Run(), dealing()
    with run.saver(store=store, loader=loader) as saver:
        assert saver.restore() == 2
        assert saver.progress.epoch == 3
        assert [int(one) for batch in loader for one in batch] == rest
        run.train()
        saver.step(3)
    assert "data comes again" not in caplog.text


@pytest.mark.parametrize("by", ["sampler", "loop"])
def test_a_loop_that_counts_from_0_again_is_told_once(
    store: str, caplog: pytest.LogCaptureFixture, by: str
) -> None:
    in_epoch(store, 3, epoch=3)
    run, loader = Run(), dealing()
    with run.saver(store=store, loader=loader, every=1000) as saver:
        assert saver.restore() == 2
        if by == "sampler":
            loader.sampler.set_epoch(0)  # type: ignore[attr-defined] # a DistributedSampler
        for step in (3, 4):
            run.train()
            saver.step(step, epoch=0 if by == "loop" else 3)
    assert caplog.text.count("this is epoch 0, and what was restored is of epoch 3") == 1


def test_an_epoch_that_is_none_is_a_failure_that_is_told(caplog: pytest.LogCaptureFixture) -> None:
    client, run = FakeClient(["file:///x"]), Run()
    saver = run.saver(client=client.as_client())
    run.train()
    # It is staged all the same: with several ranks the others are on their way to a collective.
    assert saver.step(1, epoch=-1)
    assert "epoch: expected 0 or more, got -1" in caplog.text
    assert saver.stats.failed == 1
    assert saver.progress.epoch == 0
    assert saver.step(2, epoch=3)
    assert saver.progress.epoch == 3


@pytest.mark.parametrize(("given", "enabled"), [(False, True), (True, True), (False, False)])
def test_a_scaler_that_is_in_no_checkpoint_is_named_once(
    caplog: pytest.LogCaptureFixture, given: bool, enabled: bool
) -> None:
    client, run = FakeClient(["file:///x"]), Run()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, enabled=enabled)
    extra: dict[str, Any] = {"scaler": scaler} if given else {}
    saver = run.saver(client=client.as_client(), extra=extra, slots=8)
    for step in range(1, 6):
        run.optimizer.zero_grad()
        loss = run.model(run.loader.batch()).square().mean()
        scaler.scale(loss).backward()
        scaler.step(run.optimizer)
        scaler.update()
        assert saver.step(step)
    assert caplog.text.count("no GradScaler") == (enabled and not given)


class Drawn(Sampler[int]):
    """A sampler of one's own, which draws from a generator of its own."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(3)

    def __iter__(self) -> Iterator[int]:
        return iter(self.rng.permutation(24).tolist())

    def __len__(self) -> int:
        return 24


class Kept(Drawn):
    def state_dict(self) -> dict[str, Any]:
        return {"rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rng.bit_generator.state = state["rng"]


def missing(loader: StatefulDataLoader[int], **generators: Any) -> list[str]:
    objects = RankObjects(Run().scheduler, loader, {}, None, generators, progress=Progress(loader))
    return lacking(objects)


def test_what_a_loader_draws_from_and_nobody_keeps_is_named() -> None:
    def over(sampler: Sampler[int]) -> StatefulDataLoader[int]:
        return StatefulDataLoader(DATA, sampler=sampler)

    drawn = Drawn()
    [said] = missing(over(drawn))
    assert said == "no state of loader.sampler.rng, from which it draws (name it in generators=)"
    assert missing(over(drawn), sampler=drawn.rng) == []
    assert missing(over(Kept())) == []
    batches = torch.utils.data.BatchSampler(drawn, 4, drop_last=False)
    [said] = missing(StatefulDataLoader(DATA, batch_sampler=batches))
    assert said.startswith("no state of loader.batch_sampler.sampler.rng")
    # With a generator of its own as well: it is asked anew, and has gone on since.
    for generator in (None, torch.Generator()):
        [said] = missing(over(RandomSampler(DATA, generator=generator)))
        assert said.startswith(
            "no state of loader.sampler, a RandomSampler, so that a resume would"
        )
    assert missing(dealing()) == []
    assert missing(StatefulDataLoader(DATA, shuffle=True)) == []
    assert missing(StatefulDataLoader(DATA, shuffle=True, generator=torch.Generator())) == []


def test_it_is_said_with_the_rest(store: str, caplog: pytest.LogCaptureFixture) -> None:
    loader = StatefulDataLoader(DATA, sampler=Drawn())
    with Run().saver(store=store, loader=loader) as saver:
        assert saver.restore() is None
    assert "checkpoints hold no state of loader.sampler.rng" in caplog.text


class Guarded(Loader):
    """A loader that cannot be looked at."""

    @property
    def num_workers(self) -> int:
        raise RuntimeError("not before the epoch begins")


def test_who_cannot_be_looked_at_costs_no_step(
    store: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Rank 0 alone looks, and the others are on their way to a collective."""
    run = Run()
    with run.saver(store=store, loader=Guarded(1)) as saver:
        assert saver.restore() is None
        run.train()
        assert saver.step(1), saver.stats
    assert "what checkpoints lack cannot be told: RuntimeError('not before" in caplog.text
