"""Runs whose ranks hold something under one name that is another thing on each; what they do."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from evac.errors import GenerationError
from evac.torch import Checkpointer
from tests.handlers.torch.training import digest, wait_committed

KEPT, STEPS = 2, 4


class Counted(torch.nn.Module):
    """Statistics, a count, a constant, and a state that is no tensor, as fp8 recipes have."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 6)
        self.norm = torch.nn.BatchNorm1d(6)
        self.last = torch.nn.Linear(6, 4)
        self.register_buffer("constant", torch.arange(3))
        self.history: dict[str, Any] = {"largest": torch.zeros(2), "seen": 0, "none": {}}

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        largest = torch.stack([batch.max(), self.history["largest"][0]])
        self.history = {"largest": largest, "seen": self.history["seen"] + 1, "none": {}}
        answer: torch.Tensor = self.last(torch.relu(self.norm(self.first(batch))))
        return answer

    def get_extra_state(self) -> dict[str, Any]:
        return self.history

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.history = state


class Experts(torch.nn.Module):
    """One part that all ranks keep equal, and one that is each rank's own."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = torch.nn.Linear(4, 4)
        torch.manual_seed(int(torch.randint(1 << 30, ()).item()) + _rank())
        self.expert = torch.nn.Linear(4, 4)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.expert(self.shared(batch))
        return answer


class Stages(torch.nn.Module):
    """A pipeline's: each of two ranks has a part, one rank alone has both."""

    def __init__(self) -> None:
        super().__init__()
        for number in range(2):
            stage = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
            if dist.is_initialized() is False or dist.get_rank() == number:
                self.add_module(f"stage{number}", stage)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        for stage in self.children():
            batch = stage(batch)
        return batch


def ddp() -> torch.nn.Module:
    return _wrapped(Counted())


def ddp_unsynced() -> torch.nn.Module:
    return _wrapped(Counted(), forward_sync_buffers=False)


def fsdp() -> torch.nn.Module:
    model = Counted()
    if dist.is_initialized():
        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return model


def _wrapped(model: torch.nn.Module, **settings: bool) -> torch.nn.Module:
    if not dist.is_initialized():
        return model
    return DistributedDataParallel(model, **settings)  # type: ignore[arg-type] # its switches are all bool


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "ddp": ddp, "ddp_unsynced": ddp_unsynced, "ddp_by_hand": ddp,
    "fsdp": fsdp, "experts": Experts, "stages": Stages,
}  # fmt: skip


class Run:
    """One of them in training."""

    def __init__(self, kind: str, seed: int) -> None:
        torch.manual_seed(seed)
        self.kind = kind
        self.model = MODELS[kind]()
        parameters = list(self.model.parameters())
        # A group of its own for the first, at another rate.
        groups: list[dict[str, Any]] = [
            {"params": parameters[:1], "lr": 0.1},
            {"params": parameters[1:]},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=0.01)

    def train(self, step: int) -> None:
        seed = torch.Generator().manual_seed(100 * step + _rank())
        self.optimizer.zero_grad()
        batch = torch.randn(8, 4, generator=seed)
        if self.kind == "ddp_by_hand":
            # As Lightning's manual optimization: from then on DDP leaves each rank its buffers.
            assert isinstance(self.model, DistributedDataParallel)
            with self.model.no_sync():
                self.model(batch).square().mean().backward()
        else:
            self.model(batch).square().mean().backward()
        by_hand = {"experts": "shared", "ddp_by_hand": ""}.get(self.kind)
        for name, parameter in self.model.named_parameters():
            if by_hand is not None and name.startswith(by_hand):
                dist.all_reduce(parameter.grad)
        self.optimizer.step()

    def saver(self, store: str, kind: str) -> Checkpointer:
        return Checkpointer(
            model=self.model, optimizer=self.optimizer, job=kind, store=store, every=1
        )

    def digest(self) -> str:
        """Of what this rank holds."""
        return digest(_here([self.model.state_dict(), self.optimizer.state_dict()]))


def _here(value: Any) -> Any:
    if isinstance(value, DTensor):
        return value.to_local()
    if isinstance(value, dict):
        return {key: _here(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_here(one) for one in value]
    return value


def save(rank: int, kinds: list[str], folder: str) -> None:
    """Commit a step of each, train on, and leave what came of it."""
    store = f"file://{folder}/store"
    for kind in kinds:
        run = Run(kind, seed=1)
        with run.saver(store, kind) as saver:
            for step in range(1, KEPT + 1):
                run.train(step)
            assert saver.step(KEPT), (kind, saver.stats)
            wait_committed(store, KEPT, kind)
            torch.save(run.model.state_dict(), f"{folder}/{kind}.{rank}.pt")
        for step in range(KEPT + 1, STEPS + 1):
            run.train(step)
        Path(f"{folder}/{kind}.{rank}").write_text(run.digest())
        dist.barrier()  # savers of one group hear each other: one after another


def go_on(rank: int, kinds: list[str], folder: str) -> None:
    """Go back to the step that was kept, and on from there: as if nothing had been."""
    wrong = []
    for kind in kinds:
        run = Run(kind, seed=2)
        with run.saver(f"file://{folder}/store", kind) as saver:
            assert saver.restore() == KEPT
        for step in range(KEPT + 1, STEPS + 1):
            run.train(step)
        if run.digest() != Path(f"{folder}/{kind}.{rank}").read_text():
            wrong.append(kind)
        dist.barrier()
    assert not wrong, wrong


def weights_only(rank: int, kinds: list[str], folder: str) -> None:
    """What a model holds comes back out of the weights alone, each rank's own to itself."""
    for kind in kinds:
        run = Run(kind, seed=2)
        with run.saver(f"file://{folder}/store", kind) as saver:
            assert saver.restore(allow_weights_only=True) == KEPT
        then = torch.load(f"{folder}/{kind}.{rank}.pt", weights_only=False)
        assert digest(_here(run.model.state_dict())) == digest(_here(then)), kind
        dist.barrier()


def in_another_world(rank: int, folder: str) -> None:
    """What cannot be is refused by name, and touches nothing; statistics are those of one rank."""
    store = f"file://{folder}/store"
    first = torch.load(f"{folder}/ddp.0.pt", weights_only=False)
    for kind in ("ddp", "ddp_unsynced"):
        run = Run(kind, seed=2)
        with run.saver(store, kind) as saver:
            assert saver.restore() == KEPT
        now = {key.removeprefix("module."): one for key, one in run.model.state_dict().items()}
        if kind == "ddp":
            assert digest(now) == digest({k.removeprefix("module."): v for k, v in first.items()})
    run = Run("experts", seed=2)
    before = run.digest()
    refused = pytest.raises(GenerationError, match=r"expert\.bias was another one on each rank")
    with run.saver(store, "experts") as saver, refused:
        saver.restore()
    assert run.digest() == before


def together(folder: str) -> None:
    """Both stages in one process: their groups become one optimizer's."""
    run = Run("stages", seed=2)
    parameters = dict(run.model.named_parameters())
    fast = [f"stage{number}.0.weight" for number in range(2)]
    groups = [
        {"params": [parameters[name] for name in fast]},
        {"params": [one for name, one in parameters.items() if name not in fast]},
    ]
    run.optimizer = torch.optim.AdamW(groups, lr=0.5)
    with warnings.catch_warnings(), run.saver(f"file://{folder}/store", "stages") as saver:
        warnings.simplefilter("ignore")  # DCP's, of one process
        assert saver.restore() == KEPT
    assert [group["lr"] for group in run.optimizer.param_groups] == [0.1, 0.01]
    saved: dict[str, Any] = {}
    for rank in range(2):
        saved |= torch.load(f"{folder}/stages.{rank}.pt", weights_only=False)
    assert digest({key: saved[key] for key in run.model.state_dict()}) == digest(
        run.model.state_dict()
    )
    assert len(run.optimizer.state) == len(parameters)
