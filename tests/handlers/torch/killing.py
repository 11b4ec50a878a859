"""A rank of a training run that is killed at one point of a step; importable by its process.

The run has all that makes a resume hard: dropout, a loader that shuffles and has workers which
fetch ahead and draw random numbers, moments, a schedule, statistics that are each rank's own, and parameters that are whole,
copied or spread over ranks.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from evac.torch import Checkpointer, Resumable
from tests.handlers.torch.cells import (
    BACK,
    BACKWARD,
    COLLECTIVE,
    DDP,
    FLUSH,
    FORWARD,
    FSDP,
    MOVING,
    STAGING,
)
from tests.handlers.torch.drawing import noise, seed
from tests.handlers.torch.ranks import join
from tests.handlers.torch.training import digest

_SAMPLES, _BATCH, _WORKERS = 24, 4, 2
# How long a thread has been where it is before it is taken to hang there.
_HUNG_SECONDS = 0.2
# What a step takes where the clock says when to stage, and what it says follows from.
_STEP_SECONDS = 0.02
_BY_THE_CLOCK = {"reclaim_every": 1.0, "restart_seconds": 0.0, "stall_share": 1.0}


@dataclass(frozen=True)
class Case:
    """One run of one rank.

    Attributes:
        state: How it is spread: a row of the table.
        folder: Where the ranks meet, and where each leaves its report.
        socket: The daemon's; "" for none.
        store: To commit to without one.
        killed: At which point of the step after *kept*, a column; "" to train to the end. If it
            is one of `MOVING`, at any step once there is a file ``die`` in *folder*.
        kept: The last step that every rank has staged, or committed, before the kill.
        clock: The clock says when to stage; else each step is staged.
        stock: The loader is torch's own.
    """

    state: str
    world: int
    folder: str
    job: str
    steps: int
    socket: str = ""
    store: str = ""
    killed: str = ""
    kept: int = 0
    clock: bool = False
    stock: bool = False


class Fuse(torch.Tensor):
    """Once lit, it ends its process in the moment in which it is copied: amid a stage."""

    lit: ClassVar[bool] = False

    @classmethod
    def light(cls) -> None:
        cls.lit = True

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if cls.lit and func is torch.Tensor.copy_:
            die()
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call] # torch has no types here


class Samples(torch.utils.data.Dataset[torch.Tensor]):
    """Augmented, in the workers."""

    def __init__(self, seed: int) -> None:
        self._data = torch.randn(_SAMPLES, 8, generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, place: int) -> torch.Tensor:
        return self._data[place] * noise()


class Model(torch.nn.Module):
    """Small, but for one parameter that makes writing it take a while."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 32)
        self.norm = torch.nn.BatchNorm1d(32)
        self.dropout = torch.nn.Dropout(0.3)
        self.register_buffer("fuse", torch.zeros(4).as_subclass(Fuse))
        self.last = torch.nn.Linear(32, 1)
        self.wide = torch.nn.Parameter(torch.randn(512, 512))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        hidden = self.dropout(torch.relu(self.norm(self.first(batch))))
        answer: torch.Tensor = self.last(hidden)
        return answer + self.wide.square().mean()


class Training:
    """Everything a training loop holds, built the same way at every start."""

    def __init__(self, case: Case, rank: int) -> None:
        torch.manual_seed(7)
        self.core = Model()
        self.model: torch.nn.Module = self.core
        if case.state == DDP:
            self.model = DistributedDataParallel(self.core)
        if case.state == FSDP:
            mesh = init_device_mesh("cpu", (case.world,))
            fully_shard(self.core.first, mesh=mesh)
            fully_shard(self.core, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=50)
        kind = DataLoader if case.stock else StatefulDataLoader
        loader = kind(
            Samples(rank),
            batch_size=_BATCH,
            shuffle=True,
            num_workers=_WORKERS,
            # This process's own default would import torch anew for each worker.
            multiprocessing_context="fork",
        )
        self.loader: Any = Resumable(loader) if case.stock else loader
        seed(1000 + rank)

    def batches(self) -> Iterator[torch.Tensor]:
        while True:
            yield from self.loader

    def step(self, batch: torch.Tensor) -> str:
        """Train one; the loss, to the last bit."""
        self.optimizer.zero_grad()
        loss = self.model(batch).square().mean()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        return float(loss.item()).hex()

    def digests(self) -> dict[str, str]:
        """What of it there is on this rank."""
        return {
            "parameters": digest(_here(self.model.state_dict())),
            "optimizer": digest(_here(self.optimizer.state_dict())),
            "schedule": digest(self.scheduler.state_dict()),
            "random numbers": digest(torch.get_rng_state()),
        }


def train(case: Case, rank: int) -> None:
    """What a rank does."""
    os.environ["EVAC_SOCKET"] = case.socket or f"{case.folder}/none.sock"
    torch.set_num_threads(1)
    if case.world > 1:
        join(rank, case.world, f"{case.folder}/meet")
    run = Training(case, rank)
    losses: dict[int, str] = {}
    saver = Checkpointer(
        model=run.model,
        optimizer=run.optimizer,
        scheduler=run.scheduler,
        loader=run.loader,
        job=case.job,
        store=case.store or None,
        every=None if case.clock else 1,
        **(_BY_THE_CLOCK if case.clock else {}),  # type: ignore[arg-type] # each of them is a float
    )
    with saver:
        first = saver.restore() or 0
        batches = run.batches()
        for step in range(first + 1, case.steps + 1):
            if case.killed == BACK and step == case.kept:
                _await_evacd(case, rank)
            if case.killed in MOVING:
                if Path(case.folder, "die").exists():
                    run.core.dropout.register_forward_hook(lambda *_: die())
                time.sleep(_STEP_SECONDS)
            elif case.killed and step == case.kept + 1:
                _arm(case, rank, run)
            losses[step] = run.step(next(batches))
            if case.killed in MOVING or case.clock:
                _try_to_stage(saver, step, Path(case.folder, f"{rank}.staged"))
            else:
                _stage(saver, step, case)
        report = {"first": first, "losses": losses, "digests": run.digests()}
    Path(f"{case.folder}/{rank}").write_text(json.dumps(report))
    if case.world > 1:
        dist.destroy_process_group()


def die() -> None:
    """As the kernel would have it."""
    os.kill(os.getpid(), signal.SIGKILL)


def _try_to_stage(saver: Checkpointer, step: int, told: Path) -> None:
    if saver.step(step):
        with told.open("a") as file:
            file.write(f"{step}\n")


def _stage(saver: Checkpointer, step: int, case: Case) -> None:
    # A busy machine may have no free slot yet; the proof needs this very step.
    while not saver.step(step):
        time.sleep(0.005)
    if case.killed and case.store:
        while not list(
            Path(case.store.removeprefix("file://")).glob(f"*/*/step-{step}.*/.metadata")
        ):
            time.sleep(0.005)


def _await_evacd(case: Case, rank: int) -> None:
    """Between two steps, until the daemon has been killed and is there again."""
    Path(case.folder, f"{rank}.waits").touch()
    while not Path(case.folder, "back").exists():
        time.sleep(0.005)


def _arm(case: Case, rank: int, run: Training) -> None:
    """See to it that this step is not survived."""
    if case.killed in (FORWARD, BACK):
        run.core.dropout.register_forward_hook(lambda *_: die())
    elif case.killed == BACKWARD:
        run.core.dropout.register_forward_hook(_die_on_the_way_back)
    elif case.killed == COLLECTIVE:
        if rank == case.world - 1:
            signal.pause()  # the others wait for this one
        _watch(_hangs)
    elif case.killed == STAGING:
        # One alone dies, and others may have staged theirs.
        if rank == case.world - 1:
            run.optimizer.register_step_post_hook(lambda *_: Fuse.light())
    elif case.killed == FLUSH:
        folder = Path(case.store.removeprefix("file://"))
        _watch(lambda: _half_written(folder, case.kept + 1))


def _die_on_the_way_back(_module: torch.nn.Module, _given: Any, out: torch.Tensor) -> None:
    out.register_hook(lambda _gradient: die())  # type: ignore[no-untyped-call] # torch has no types here


def _watch(there: Any) -> None:
    """Die as soon as it is *there*."""

    def watch() -> None:
        while not there():
            time.sleep(0.0005)
        die()

    threading.Thread(target=watch, daemon=True).start()


def _half_written(store: Path, step: int) -> bool:
    return any(half_written(folder) for folder in store.glob(f"*/*/step-{step}.*"))


def half_written(generation: Path) -> bool:
    """Some of a generation's files are there, and not the one that makes it whole."""
    there = {path.name for path in generation.rglob("*") if path.is_file()}
    return bool(there) and not (generation / ".metadata").exists()


def _hangs() -> bool:
    """The training thread has not moved for a while."""
    main = threading.main_thread().ident
    assert main is not None
    seen = set()
    until = time.perf_counter() + _HUNG_SECONDS
    while time.perf_counter() < until:
        frame = sys._current_frames()[main]
        seen.add((frame.f_code, frame.f_lasti))
        time.sleep(0.01)
    return len(seen) == 1


def _here(value: Any) -> Any:
    """The same, with this rank's shard in place of every DTensor."""
    if isinstance(value, DTensor):
        return value.to_local()
    if isinstance(value, dict):
        return {key: _here(one) for key, one in value.items()}
    return value
