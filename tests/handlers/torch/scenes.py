"""What ranks do in the tests of many ranks; importable by the processes that do it."""

import logging
import os
import random
import signal
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as load_checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from evac.errors import GenerationError
from evac.torch import Checkpointer
from tests.handlers.torch import ranks
from tests.handlers.torch.training import Run, digest, wait_committed


def stock(run: Run) -> dict[str, Any]:
    model, optimizer = get_state_dict(run.model, run.optimizer)
    return {"model": dict(model), "optimizer": dict(optimizer)}


def save(rank: int, store: str, steps: int, out: str, ddp: bool = True) -> None:
    """Train *steps* steps, all of them committed; leave the digest of the common state."""
    run = Run(rank=rank, ddp=ddp)
    random.seed(rank)
    np.random.seed(rank)
    with run.saver(store=store) as saver:
        for step in range(1, steps + 1):
            run.train()
            assert saver.step(step), saver.stats
            wait_committed(store, step)
        then = [digest(stock(run)), *draws()]
    Path(f"{out}.{rank}").write_text("\n".join(then))


def draws() -> list[str]:
    """The next number of every generator."""
    return [
        float(torch.rand(1).item()).hex(),
        random.random().hex(),
        float(np.random.rand()).hex(),
    ]


def restore(rank: int, store: str, step: int | None, out: str, expected: str) -> None:
    """Restore and compare with what `save` left: state and this rank's own numbers."""
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign] # a list is all it takes
    logging.getLogger("evac").addHandler(handler)
    run = Run(rank=rank, seed=99, ddp=torch.distributed.is_initialized())
    saver = run.saver(store=store)
    assert saver.restore() == step
    now = [digest(stock(run)), *draws()]
    left = Path(f"{expected}.{rank}")
    if left.exists():
        assert now == left.read_text().split("\n")
    else:
        assert now[0] == Path(f"{expected}.0").read_text().split("\n")[0]
    Path(f"{out}.{rank}").write_text("\n".join(heard))
    saver.close()


def plain_load(rank: int, folder: str, expected: str) -> None:
    """Load with torch alone, as somebody who never heard of evac."""
    run = Run(rank=rank, seed=99, ddp=torch.distributed.is_initialized())
    run.train()
    tree = stock(run)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load_checkpoint(tree, checkpoint_id=folder)
    assert digest(tree) == Path(f"{expected}.0").read_text().split("\n")[0]


def fail_alike(rank: int, store: str) -> None:
    """All ranks hear of what only one of them sees."""
    run = Run(rank=rank, ddp=True)
    saver = run.saver(store=store)
    try:
        saver.restore()
    except GenerationError:
        return
    raise AssertionError("restored from nothing")


def one_rank_not_ready(rank: int, store: str) -> None:
    """A rank that cannot plan holds nobody up, and nobody plans without it."""
    run = Run(rank=rank, ddp=True)
    run.train()
    optimizer = run.optimizer if rank == 0 else torch.optim.AdamW(run.model.parameters())
    saver = Checkpointer(model=run.model, optimizer=optimizer, job="run", store=store, every=1)
    assert not saver.step(1)
    assert "rank 1: the optimizer holds no state yet" in saver.stats.last_reason
    saver.close()


def fast(rank: int, store: str, steps: int) -> None:
    """Stage far faster than the store can take it; whole generations come of it all the same."""
    run = Run(rank=rank, ddp=True)
    with run.saver(store=store) as saver:
        for step in range(1, steps + 1):
            run.train()
            saver.step(step)
    assert saver.stats.failed == 0


def stage_and_hang(rank: int, world: int, folder: str, socket: str, steps: int, out: str) -> None:
    """Stage with a daemon, leave what was staged, and wait to be killed."""
    os.environ["EVAC_SOCKET"] = socket
    ranks.join(rank, world, f"{folder}/meet")
    run = Run(rank=rank, ddp=True)
    random.seed(rank)
    np.random.seed(rank)
    saver = run.saver()
    for step in range(1, steps + 1):
        run.train()
        if step == steps:
            # Written before the test may hear of the last stage, from which it is drawn.
            rng = (random.getstate(), np.random.get_state(), torch.get_rng_state())
            Path(f"{out}.{rank}").write_text("\n".join([digest(stock(run)), *draws()]))
            random.setstate(rng[0])
            np.random.set_state(rng[1])
            torch.set_rng_state(rng[2])
        while not saver.stage(step):
            time.sleep(0.01)
    signal.pause()


def stage_weights_and_hang(socket: str, steps: int, out: str) -> None:
    """Stage with a daemon, leave the digest of the model, and wait to be killed."""
    os.environ["EVAC_SOCKET"] = socket
    run = Run()
    saver = run.saver(every=1)
    for step in range(1, steps + 1):
        run.train()
        Path(out).write_text(digest(run.model.state_dict()))
        while not saver.stage(step):
            time.sleep(0.01)
    signal.pause()


def finish(
    rank: int, world: int, folder: str, socket: str, steps: int, discard: bool = False
) -> None:
    """Train with a daemon to the end."""
    os.environ["EVAC_SOCKET"] = socket
    if world > 1:
        ranks.join(rank, world, f"{folder}/meet")
    run = Run(rank=rank, ddp=world > 1)
    saver = run.saver()
    for step in range(1, steps + 1):
        run.train()
        while not saver.stage(step):
            time.sleep(0.01)
    saver.close(discard=discard)
    if world > 1:
        torch.distributed.destroy_process_group()


def go_on(rank: int, world: int, folder: str, socket: str, store: str, over: str) -> None:
    """Train with a daemon and a store until the file *over* is there; leave the last step."""
    os.environ["EVAC_SOCKET"] = socket
    if world > 1:
        ranks.join(rank, world, f"{folder}/meet")
    run = Run(rank=rank, ddp=world > 1)
    last = torch.zeros(1)
    with run.saver(store=store, patience=0.2) as saver:
        step = 0
        while not last:
            step += 1
            run.train()
            saver.step(step)
            last += Path(over).exists()
            if world > 1:
                torch.distributed.broadcast(last, src=0)
            time.sleep(0.01)
        while not saver.stage(step + 1):
            time.sleep(0.01)
    if rank == 0:
        Path(f"{folder}/last").write_text(str(step + 1))
    if world > 1:
        torch.distributed.destroy_process_group()


def sharded(rank: int, store: str, out: str, resume: bool) -> None:
    """A model whose parameters are spread over the ranks (`fully_shard`)."""
    run = Run(rank=rank, seed=99 if resume else 7)
    fully_shard(run.model, mesh=init_device_mesh("cpu", (torch.distributed.get_world_size(),)))
    run.optimizer = torch.optim.AdamW(run.model.parameters(), lr=0.05)
    run.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(run.optimizer, T_max=50)
    with run.saver(store=store) as saver:
        if resume:
            assert saver.restore() == 1
        else:
            run.train()
            assert saver.step(1), saver.stats
            wait_committed(store, 1)
    options = StateDictOptions(full_state_dict=True)
    full = digest(list(get_state_dict(run.model, run.optimizer, options=options)))
    if resume:
        assert Path(out).read_text() == full
    elif rank == 0:
        Path(out).write_text(full)


def adopt(rank: int, world: int, folder: str, socket: str, step: int, expected: str) -> None:
    """Restore with a daemon and compare with what `stage_and_hang` left; leave what was logged."""
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign] # a list is all it takes
    logging.getLogger("evac").addHandler(handler)
    logging.getLogger("evac").setLevel(logging.INFO)
    os.environ["EVAC_SOCKET"] = socket
    if world > 1:
        ranks.join(rank, world, f"{folder}/meet-again")
    run = Run(rank=rank, seed=99, ddp=world > 1)
    saver = run.saver()
    assert saver.restore() == step
    assert [digest(stock(run)), *draws()] == Path(f"{expected}.{rank}").read_text().split("\n")
    run.train()
    for _ in range(2000):
        if saver.stage(step + 1):
            break
        time.sleep(0.01)
    else:
        raise AssertionError(saver.stats)
    Path(f"{folder}/heard.{rank}").write_text("\n".join(heard))
    saver.close()
    if world > 1:
        torch.distributed.destroy_process_group()
