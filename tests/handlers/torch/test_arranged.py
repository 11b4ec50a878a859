"""Real ranks in a DDP run arrange a stage and a new layout between them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from evac._callbacks import RunningOrder
from tests.handlers.torch import ranks
from tests.handlers.torch.fakes import FakeClient
from tests.handlers.torch.training import Run, digest, wait_committed

_WORLD = 2
# Steps until something is arranged: what is given up on a busy machine is asked for again half a minute later.
_MOST = 20_000


def _notice(rank: int, folder: str) -> None:
    """Rank 1's node alone hears of it, in the middle of a run that stages nothing by itself."""
    client, run = FakeClient([f"file://{folder}/store"]), Run(rank=rank, ddp=True)
    saver = run.saver(client=client.as_client(), every=10**6)
    step = 0
    for step in range(1, _MOST):
        run.train()
        if step == 5 and rank == 1:
            client.orders[0](RunningOrder("notice", "certain", 0.0))
        saver.step(step)
        # All ranks leave the loop at the same step: what they staged by then is equal.
        if _enough(len(client.kept) > 0):
            break
    _tell(folder, rank, client)
    saver.close()


def _after_another_world(rank: int, folder: str) -> None:
    """As `_notice`, in a world of one that stayed and one that is new: it was formed again in place."""
    # Who leaves before the other has connected ends the other's start.
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        ranks.join(0, 1, f"{folder}/before")
        Run(rank=rank).saver(client=FakeClient().as_client()).close()
        dist.destroy_process_group()
    ranks.join(rank, _WORLD, f"{folder}/again")
    _notice(rank, folder)


def _growth(rank: int, folder: str, verb: str, stride: int, samples: int) -> None:
    """Rank 1's loader outgrows the room that was planned for it; then every step is staged again.

    Args:
        verb: `step`, or `stage` by a loop that decides itself when to.
        stride: From one number of a step to the next.
        samples: That the loader comes to remember.
    """
    client, run = FakeClient([f"file://{folder}/store"]), Run(rank=rank, ddp=True)
    saver = run.saver(client=client.as_client(), every=1)
    for step in range(1, _MOST):
        run.train()
        if step == 4 and rank == 1:
            run.loader._order = [place % 24 for place in range(samples)]
        getattr(saver, verb)(step * stride)
        for number, _ in client.kept:
            if number not in client._free:
                client.free(number)
        if _enough(len(client.reservations) > 1 and client.kept[-1][1] > 4 * stride):
            break
    _tell(folder, rank, client)
    saver.close()


def _late(rank: int, folder: str) -> None:
    """A parameter that no sample reaches at first: Adam's moments of it appear at step 4."""
    client, run = FakeClient([f"file://{folder}/store"]), Run(rank=rank)
    late = torch.nn.Parameter(torch.ones(2))
    run.model.register_parameter("late", late)
    run.optimizer = torch.optim.AdamW(run.model.parameters(), lr=0.05)
    saver = run.saver(client=client.as_client(), scheduler=None, every=1)
    for step in range(1, _MOST):
        if step >= 4:
            late.grad = torch.ones(2)
        for one in run.model.parameters():
            if one is not late:
                one.grad = torch.ones_like(one)
        run.optimizer.step()
        saver.step(step)
        for number, _ in client.kept:
            if number not in client._free:
                client.free(number)
        if _enough(len(client.reservations) > 1 and client.kept[-1][1] > 4):
            break
    _tell(folder, rank, client)
    saver.close()


def _with_expert(rank: int, seed: int) -> tuple[Run, torch.nn.Parameter]:
    """A run with an expert of its own on each rank, which no other rank's samples reach."""
    run = Run(rank=rank, seed=seed)
    expert = torch.nn.Parameter(torch.full((3,), 1.0 + rank))
    run.model.register_parameter("expert", expert)
    run.optimizer = torch.optim.AdamW(run.model.parameters(), lr=0.05)
    return run, expert


def _late_on_one(rank: int, folder: str) -> None:
    """Rank 1 alone gets samples for an expert, from step 4 on: Adam's moments of it appear there."""
    client, (run, expert) = FakeClient([f"file://{folder}/store"]), _with_expert(rank, 7)
    torch.nn.init.ones_(expert)  # equal on both ranks until then
    saver = run.saver(client=client.as_client(), scheduler=None, every=1)
    for step in range(1, _MOST):
        for one in run.model.parameters():
            one.grad = (
                torch.ones_like(one)
                if one is not expert or (rank, step >= 4) == (1, True)
                else None
            )
        run.optimizer.step()
        saver.step(step)
        for number, _ in client.kept:
            if number not in client._free:
                client.free(number)
        if _enough(len(client.reservations) > 1 and client.kept[-1][1] > 4):
            break
    assert (len(run.optimizer.state[expert]) > 0) == (rank == 1)
    _tell(folder, rank, client)
    saver.close()


def _resumed_with_an_expert(rank: int, folder: str) -> None:
    """The same with a store, killed and resumed: each rank has its own moments, or none, again."""
    store = f"file://{folder}/store"
    run, expert = _with_expert(rank, 7)
    with run.saver(store=store, scheduler=None, every=1) as saver:
        for step in range(1, _MOST):
            for one in run.model.parameters():
                late = one is expert and (rank == 0 or step < 4)
                one.grad = None if late else torch.full_like(one, 0.1 * step)
            run.optimizer.step()
            then = _state(run)
            # From the new layout on both stage each step, if there is room.
            if _enough(saver.step(step) and step > 4):
                wait_committed(store, step)
                break
    fresh, _ = _with_expert(rank, 99)
    with fresh.saver(store=store, scheduler=None) as saver:
        assert saver.restore() == step
    assert _state(fresh) == then


def _state(run: Run) -> str:
    """Of model and optimizer, in whichever order its moments appeared."""
    optimizer = run.optimizer.state_dict()
    moments = sorted(optimizer["state"].items())
    return digest([run.model.state_dict(), moments, optimizer["param_groups"]])


def _enough(mine: bool) -> bool:
    every = torch.tensor(float(mine))
    dist.all_reduce(every)
    return float(every) == _WORLD


def _tell(folder: str, rank: int, client: FakeClient) -> None:
    told = {
        "kept": [step for _, step in client.kept],
        "layouts": [one["layout"] for one in client.reservations],
    }
    Path(folder, str(rank)).write_text(json.dumps(told))


def _told(folder: Path) -> list[dict[str, list[int]]]:
    return [json.loads((folder / str(rank)).read_text()) for rank in range(_WORLD)]


@pytest.mark.parametrize("run", [_notice, _after_another_world])
def test_a_notice_to_one_node_has_all_ranks_stage_the_same_step(tmp_path: Path, run: Any) -> None:
    ranks.run(_WORLD, run, str(tmp_path))
    one, other = _told(tmp_path)
    # The first try plans the layout, and stages; then the notice's.
    assert one["kept"] == other["kept"]
    assert one["kept"][-1] >= 5


@pytest.mark.parametrize(
    ("verb", "stride", "samples"), [("step", 1, 60_000), ("stage", 32, 60_000), ("step", 1, 10**6)]
)
def test_a_state_that_outgrew_its_layout_on_one_rank_is_planned_anew_on_all(
    tmp_path: Path, verb: str, stride: int, samples: int
) -> None:
    ranks.run(_WORLD, _growth, str(tmp_path), verb, stride, samples)
    one, other = _told(tmp_path)
    assert one["layouts"] == other["layouts"]
    assert len(set(one["layouts"])) == 2
    # Rank 1 skipped what fitted nowhere; from the new layout on both have the same steps.
    assert one["kept"][-1] == other["kept"][-1]
    assert (one["kept"] == other["kept"]) == (samples < 10**6)
    assert one["kept"][:3] == other["kept"][:3] == [stride, 2 * stride, 3 * stride]


def test_moments_that_appear_late_are_planned_for_between_the_ranks(tmp_path: Path) -> None:
    ranks.run(_WORLD, _late, str(tmp_path))
    one, other = _told(tmp_path)
    assert one["layouts"] == other["layouts"]
    assert len(set(one["layouts"])) == 2
    assert one["kept"] == other["kept"]
    assert one["kept"][:3] == [1, 2, 3]


def test_moments_that_appear_on_one_rank_alone_are_planned_for_by_all(tmp_path: Path) -> None:
    ranks.run(_WORLD, _late_on_one, str(tmp_path))
    one, other = _told(tmp_path)
    assert one["layouts"] == other["layouts"]
    assert len(set(one["layouts"])) == 2
    # Rank 0 has staged on, and rank 1 has skipped, until both had the new layout.
    assert one["kept"][-1] == other["kept"][-1]
    assert one["kept"][:3] == other["kept"][:3] == [1, 2, 3]


def test_moments_of_one_rank_alone_come_back_to_that_rank_alone(tmp_path: Path) -> None:
    ranks.run(_WORLD, _resumed_with_an_expert, str(tmp_path))
