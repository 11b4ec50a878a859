"""A small training run whose every number matters: dropout, AdamW, LR schedule, shuffled data.

`train` is the whole program of a rank: it stages each step, and at the end leaves its losses and
the digest of all of its state, or kills itself in the middle.
"""

import hashlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from evac.torch import Checkpointer
from tests.handlers.torch.ranks import join


class Loader:
    """Shuffled samples for ever; goes on where it stood."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._data = torch.randn(24, 8, generator=self._generator)
        self._order: list[int] = []

    def batch(self) -> torch.Tensor:
        if len(self._order) < 4:
            self._order += torch.randperm(24, generator=self._generator).tolist()
        taken, self._order = self._order[:4], self._order[4:]
        return self._data[taken]

    def state_dict(self) -> dict[str, Any]:
        return {"order": list(self._order), "generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._order = list(state["order"])
        self._generator.set_state(state["generator"])


class Run:
    """Everything a training loop holds, built the same way at every start."""

    def __init__(self, *, rank: int = 0, seed: int = 7, ddp: bool = False) -> None:
        torch.manual_seed(seed)
        self.model: torch.nn.Module = torch.nn.Sequential(
            torch.nn.Linear(8, 32), torch.nn.Dropout(0.3), torch.nn.ReLU(), torch.nn.Linear(32, 1)
        )
        if ddp:
            self.model = DistributedDataParallel(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=50)
        self.loader = Loader(seed * 100 + rank)
        torch.manual_seed(1000 * seed + rank)

    def saver(self, **settings: Any) -> Checkpointer:
        return Checkpointer(
            model=self.model,
            optimizer=self.optimizer,
            **{
                "job": "run",
                "every": 1,
                "scheduler": self.scheduler,
                "loader": self.loader,
                **settings,
            },
        )

    def train(self) -> str:
        """One step; the loss, to the last bit."""
        self.optimizer.zero_grad()
        loss = self.model(self.loader.batch()).square().mean()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        return float(loss.item()).hex()

    def digest(self) -> str:
        """Of all that training depends on."""
        state = [self.model.state_dict(), self.optimizer.state_dict()]
        own = [self.scheduler.state_dict(), self.loader.state_dict(), torch.get_rng_state()]
        return digest([*state, *own])


def digest(value: Any) -> str:
    """SHA-256 over the bytes of all tensors and the text of all else."""
    total = hashlib.sha256()

    def feed(one: Any) -> None:
        if isinstance(one, torch.Tensor):
            total.update(f"{one.dtype}{tuple(one.shape)}".encode())
            total.update(one.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(one, dict):
            for key in one:
                total.update(repr(key).encode())
                feed(one[key])
        elif isinstance(one, list | tuple):
            for part in one:
                feed(part)
        else:
            total.update(repr(one).encode())

    feed(value)
    return total.hexdigest()


def committed(store: str, step: int, job: str = "run") -> bool:
    """Whether the store holds *step* whole."""
    root = Path(store.removeprefix("file://"))
    return any(root.glob(f"*/{job}/step-{step}.*/.metadata"))


def wait_committed(store: str, step: int, job: str = "run") -> None:
    until = time.perf_counter() + 30
    while not committed(store, step, job):
        if time.perf_counter() > until:
            raise TimeoutError(f"step {step} is not in {store}")
        time.sleep(0.01)


def train(rank: int, world: int, folder: str, store: str, steps: int, kill_after: int) -> None:
    """What one rank of the run does, in a process of its own.

    Args:
        folder: Where the ranks meet, and where each leaves its report.
        kill_after: The step after which it kills itself; 0 for never.
    """
    torch.set_num_threads(1)
    if world > 1:
        join(rank, world, f"{folder}/meet")
    run = Run(rank=rank, ddp=world > 1)
    losses: dict[int, str] = {}
    with run.saver(store=store) as saver:
        first = saver.restore() or 0
        for step in range(first + 1, steps + 1):
            losses[step] = run.train()
            staged = saver.step(step)
            if step == kill_after:
                # A busy machine may have no free slot yet; the proof needs this very step.
                while not staged:
                    time.sleep(0.01)
                    staged = saver.step(step)
                wait_committed(store, step)
                os.kill(os.getpid(), signal.SIGKILL)
        report = {"first": first, "losses": losses, "digest": run.digest()}
    Path(f"{folder}/{rank}").write_text(json.dumps(report))
    if world > 1:
        dist.destroy_process_group()
