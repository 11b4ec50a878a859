"""Half of an accumulated step is never staged, whoever asks for it and when."""

import json
import logging
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from evac.torch import Checkpointer
from evac.torch.accumulation import WAITS, Accumulation
from tests.handlers.torch import ranks
from tests.handlers.torch.fakes import FakeClient
from tests.handlers.torch.training import Run, committed, wait_committed


def micro(run: Run) -> str:
    """One batch's gradients on top of the others; its loss, to the bit."""
    loss = run.model(run.loader.batch()).square().mean()
    loss.backward()
    return float(loss.item()).hex()


def take(run: Run) -> None:
    run.optimizer.step()
    run.scheduler.step()
    run.optimizer.zero_grad()


def go(run: Run, saver: Checkpointer, start: int, end: int, *, each: int = 2) -> list[str]:
    """Batches *start* + 1 to *end*, *each* of them a step; `step` after every batch."""
    losses = []
    for number in range(start + 1, end + 1):
        losses.append(micro(run))
        if number % each == 0:
            take(run)
        saver.step(number)
    return losses


@pytest.mark.parametrize("at", [5, 7])
def test_a_resumed_run_that_dies_in_the_middle_of_its_first_steps_is_resumed_before_it(
    store: str, at: int
) -> None:
    """At its first call the optimizer holds what was restored, and the layout is not planned."""
    whole = Run()
    with whole.saver(store=f"{store}/a") as saver:
        expected = go(whole, saver, 0, 12)
    one = Run()
    with one.saver(store=f"{store}/b") as saver:
        go(one, saver, 0, 4)
        wait_committed(f"{store}/b", 4)
    two = Run()
    with two.saver(store=f"{store}/b") as saver:
        assert saver.restore() == 4
        go(two, saver, 4, at)
        if at > 6:
            wait_committed(f"{store}/b", 6)
    assert not committed(f"{store}/b", at)

    three = Run()
    with three.saver(store=f"{store}/b") as saver:
        start = saver.restore()
        assert start == at - 1
        assert go(three, saver, start, 12) == expected[start:]
    assert three.digest() == whole.digest()


def test_a_stage_that_is_asked_for_in_the_middle_is_refused_and_made_up_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    client, run = FakeClient(["file:///x"]), Run()
    saver = run.saver(client=client.as_client(), every=1000)
    run.train()
    assert saver.stage(1)
    run.optimizer.zero_grad()
    micro(run)
    assert not saver.stage(2)
    assert not saver.stage(2)
    assert WAITS in saver.stats.last_reason
    assert saver.stats.skipped == 2
    micro(run)
    take(run)
    assert saver.step(3)
    assert [step for _, step in client.kept] == [1, 3]
    assert caplog.text.count(WAITS) == 1


def test_who_stages_by_the_clock_is_refused_in_the_middle_of_a_later_step() -> None:
    """A step has been taken since the last stage; it is another one that is half."""
    client, run = FakeClient(["file:///x"]), Run()
    saver = run.saver(client=client.as_client(), slots=8)
    run.train()
    assert saver.stage(1)
    for _ in range(3):
        run.train()
    run.optimizer.zero_grad()
    micro(run)
    assert not saver.stage(2)


def test_step_numbers_that_count_the_optimizers_steps_are_no_better() -> None:
    client, run = FakeClient(["file:///x"]), Run()
    saver = run.saver(client=client.as_client(), slots=8, every=1)
    run.train()
    run.optimizer.zero_grad()
    assert saver.step(1)
    micro(run)
    assert not saver.step(1)
    micro(run)
    take(run)
    assert saver.step(2)


def test_a_layout_that_is_not_planned_yet_is_tried_for_until_a_step_is_whole() -> None:
    """By itself it would be tried for at calls 1, 2, 4, 8...: all of them in the middle."""
    client, run = FakeClient(["file:///x"]), Run()
    run.train()
    run.optimizer.zero_grad()
    saver = run.saver(client=client.as_client(), every=None)
    go(run, saver, 0, 2, each=3)
    assert client.kept == []
    go(run, saver, 2, 3, each=3)
    assert [step for _, step in client.kept] == [3]


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_that_are_left_over_or_cleared_are_no_half_step(to_none: bool) -> None:
    run = Run()
    watch = Accumulation(run.model, run.optimizer)
    run.train()
    assert watch.unfinished() == ""
    # Who evaluates without `no_grad` has not begun a step by it.
    run.model(torch.ones(4, 8)).sum()
    assert watch.unfinished() == ""
    run.optimizer.zero_grad(set_to_none=to_none)
    assert watch.unfinished() == ""
    micro(run)
    assert watch.unfinished() == WAITS
    run.optimizer.zero_grad(set_to_none=to_none)
    assert watch.unfinished() == ""
    micro(run)
    run.optimizer.step()
    micro(run)
    assert watch.unfinished() == WAITS
    watch.close()


def test_sparse_gradients_wait_too() -> None:
    table = torch.nn.Embedding(8, 4, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters())
    watch = Accumulation(table, optimizer)
    table(torch.tensor([1, 2])).sum().backward()
    assert watch.unfinished() == WAITS
    optimizer.step()  # type: ignore[no-untyped-call] # torch has no types here
    assert watch.unfinished() == ""
    table(torch.tensor([3])).sum().backward()
    assert watch.unfinished() == WAITS
    watch.close()


def _sharded(rank: int, folder: str) -> None:
    """`fully_shard` keeps what it has not reduced out of sight; then rank 1 alone is amid a step."""
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign] # a list is all it takes
    logging.getLogger("evac").addHandler(handler)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    assert isinstance(model, FSDPModule)
    optimizer = torch.optim.AdamW(model.parameters())

    def backward(*, last: bool) -> None:
        model.set_requires_gradient_sync(last)
        model(torch.ones(2, 4)).sum().backward()

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad()

    backward(last=True)
    step()
    client = FakeClient([f"file://{folder}/store"])
    saver = Checkpointer(model=model, optimizer=optimizer, job="x", client=client.as_client())
    found = []
    backward(last=False)
    found.append(saver.stage(1))
    backward(last=True)
    found.append(saver.stage(2))
    step()
    # Nothing is planned yet: one rank's finding is everybody's.
    alone = next(model.parameters())
    if rank == 1:
        alone.grad = torch.ones_like(alone)
    found.append(saver.stage(3))
    alone.grad = None
    found.append(saver.stage(4))
    backward(last=False)
    found.append(saver.stage(5))
    backward(last=True)
    step()
    found.append(saver.stage(6))
    Path(folder, str(rank)).write_text(json.dumps([found, heard]))
    saver.close()


def test_what_fully_shard_accumulates_waits_and_all_ranks_wait_for_one(tmp_path: Path) -> None:
    ranks.run(2, _sharded, str(tmp_path))
    for rank in (0, 1):
        found, heard = json.loads((tmp_path / str(rank)).read_text())
        assert found == [False, False, False, True, False, True]
        assert any(WAITS in one for one in heard)
