"""A run with objects of its own that hold tensors; what ranks do with it."""

import json
from collections import deque
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from evac.torch import Checkpointer
from tests.handlers.torch.layouts import full
from tests.handlers.torch.training import digest, wait_committed

KEPT = 2


class Replay:
    """What each rank has seen by itself: large, and another on each."""

    def __init__(self) -> None:
        self.seen = torch.zeros(200, 8)
        self.rewards = deque([0.0], maxlen=9)

    def see(self, batch: torch.Tensor) -> None:
        self.seen = self.seen.roll(len(batch), 0)
        self.seen[: len(batch)] = batch
        self.rewards.append(float(batch.mean()))

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen, "rewards": list(self.rewards), "parts": [self.seen * 2, (1, 2)]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert torch.equal(state["parts"][0], state["seen"] * 2)
        assert state["parts"][1] == (1, 2)
        self.seen = state["seen"].clone()
        self.rewards = deque(state["rewards"], maxlen=9)


class Run:
    """An average of the weights, a second optimizer, and what a rank has seen."""

    def __init__(self, kind: str, seed: int) -> None:
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        torch.manual_seed(seed)
        core = torch.nn.Sequential(
            torch.nn.Linear(8, 1500), torch.nn.BatchNorm1d(1500), torch.nn.Linear(1500, 3)
        )
        self.average = AveragedModel(core)
        if kind == "fsdp" and dist.is_initialized():
            mesh = init_device_mesh("cpu", (dist.get_world_size(),))
            for module in (core, self.average.module):
                fully_shard(module, mesh=mesh)
        self.core = core
        self.model: torch.nn.Module = core
        if kind == "ddp" and dist.is_initialized():
            self.model = DistributedDataParallel(core)
        self.optimizer = torch.optim.SGD(core[0].parameters(), lr=0.1)
        self.second = torch.optim.AdamW(core[2].parameters(), lr=0.1)
        self.replay = Replay()

    def saver(self, store: str, kind: str) -> Checkpointer:
        extra: dict[str, Any] = {
            "average": self.average,
            "second": self.second,
            "replay": self.replay,
        }
        return Checkpointer(
            model=self.model,
            optimizer=self.optimizer,
            extra=extra,
            job=kind,
            store=store,
            every=1,
        )

    def train(self, step: int) -> None:
        batch = torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step + self.rank))
        self.model(batch).square().mean().backward()
        for optimizer in (self.optimizer, self.second):
            optimizer.step()
            optimizer.zero_grad()
        # One by one: foreach takes no mixture of tensors and DTensors.
        for name, one in self.average.module.state_dict().items():
            if one.is_floating_point():
                one.lerp_(self.core.state_dict()[name], 0.1)
        self.average.n_averaged += 1
        self.replay.see(batch)

    def digests(self) -> dict[str, str]:
        """By whose they are; all ranks call it alike."""
        average = full(dict(self.average.module.state_dict()))
        shared = [one for name, one in average.items() if "running" not in name]
        moments = full(self.second.state_dict()["state"])
        own = [self.replay.state_dict(), int(self.average.n_averaged)]
        statistics = [one for name, one in average.items() if "running" in name]
        return {
            "shared": digest([shared, moments]),
            "own": digest(own),
            "statistics": digest(statistics),
        }


def save(rank: int, kinds: list[str], folder: str) -> None:
    store = f"file://{folder}/store"
    for kind in kinds:
        run = Run(kind, seed=1)
        with run.saver(store, kind) as saver:
            for step in range(1, KEPT + 1):
                run.train(step)
            assert saver.step(KEPT), (kind, saver.stats)
            wait_committed(store, KEPT, kind)
        Path(f"{folder}/{kind}.{rank}").write_text(json.dumps(run.digests()))
        dist.barrier()


def restore(rank: int, kinds: list[str], folder: str) -> None:
    for kind in kinds:
        run = Run(kind, seed=2)
        # The moments exist or they do not: they come out of the checkpoint.
        with run.saver(f"file://{folder}/store", kind) as saver:
            assert saver.restore() == KEPT
        now = run.digests()
        saved = 2
        home = rank if rank < saved else 0
        then = json.loads(Path(f"{folder}/{kind}.{home}").read_text())
        assert now == then, (kind, now, then)
        spread = any(isinstance(one, DTensor) for one in run.average.parameters())
        assert spread == (kind == "fsdp" and dist.is_initialized())
        run.train(KEPT + 1)
        dist.barrier()
