"""One awkward model, laid out over ranks in every way that is in use; what ranks do with it."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from evac.torch import Checkpointer
from evac.torch.state import TrainingState
from tests.handlers.torch.ranks import join
from tests.handlers.torch.training import digest, wait_committed


class Awkward(torch.nn.Module):
    """Sizes that no number of ranks divides, fewer rows than ranks, and buffers of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = torch.nn.Linear(8, 7)
        self.narrow = torch.nn.Linear(7, 3, bias=False)
        self.tied = torch.nn.Linear(7, 3, bias=False)
        self.tied.weight = self.narrow.weight
        self.coarse = torch.nn.Linear(3, 5, dtype=torch.bfloat16)
        self.unused = torch.nn.Linear(2, 2)
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("turned", torch.randn(4, 3).t())
        self.register_buffer("empty", torch.empty(0, 3))
        self.register_buffer("eighth", torch.randn(9).to(torch.float8_e4m3fn))


def plain(model: Awkward) -> torch.nn.Module:
    return model


def ddp(model: Awkward) -> torch.nn.Module:
    # Seeds make the ranks equal; gloo broadcasts no fp8.
    return DistributedDataParallel(model, forward_sync_buffers=False, init_sync=False)


def fsdp(model: Awkward) -> torch.nn.Module:
    return _sharded(model, init_device_mesh("cpu", (dist.get_world_size(),)))


def hsdp(model: Awkward) -> torch.nn.Module:
    shape = (2, dist.get_world_size() // 2)
    return _sharded(model, init_device_mesh("cpu", shape, mesh_dim_names=("copies", "shards")))


def tp(model: Awkward) -> torch.nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    # Tied again afterwards: what is parallelized is replaced.
    parallelize_module(model, mesh, {"wide": ColwiseParallel(), "narrow": RowwiseParallel()})
    parallelize_module(model, mesh, {"tied": RowwiseParallel()})
    model.tied.weight = model.narrow.weight
    return model


def _sharded(model: Awkward, mesh: Any) -> torch.nn.Module:
    fully_shard(model.coarse, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


LAYOUTS: dict[str, Callable[[Awkward], torch.nn.Module]] = {
    "plain": plain, "ddp": ddp, "fsdp": fsdp, "hsdp": hsdp, "tp": tp,
}  # fmt: skip


class Laid:
    """The model in one layout, and its optimizer."""

    def __init__(self, layout: str, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = LAYOUTS[layout](Awkward())
        # One by one: foreach takes no mixture of tensors and DTensors.
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1, foreach=False)

    def train(self) -> None:
        """A step with made-up gradients: not every layout of such sizes can be run."""
        for name, parameter in self.model.named_parameters():
            if "unused" not in name:
                parameter.grad = parameter.detach() * 0.5 + 1
        self.optimizer.step()

    def saver(self, store: str, job: str) -> Checkpointer:
        return Checkpointer(
            model=self.model, optimizer=self.optimizer, job=job, store=store, every=1
        )

    def digests(self) -> tuple[str, str]:
        """Of model and optimizer, of all ranks together."""
        state = full(TrainingState(self.model, self.optimizer).read())
        return digest(state["model"]), digest(sorted_by_name(state["optimizer"]["state"]))


def full(value: Any) -> Any:
    """The same with every DTensor put together; all ranks call it alike."""
    if isinstance(value, DTensor):
        return value.full_tensor()
    if isinstance(value, dict):
        return {key: full(one) for key, one in value.items()}
    return value


def sorted_by_name(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: sorted_by_name(value[key]) for key in sorted(value)}
    return value


def save(rank: int, layouts: list[str], folder: str, store: str) -> None:
    """Commit one step in each layout, and leave what it was."""
    world = dist.get_world_size()
    for layout in layouts:
        _anew(rank, world, f"{folder}/meet-{layout}-{world}")
        laid, name = Laid(layout, seed=1), f"{layout}{world}"
        laid.train()
        laid.train()
        then = laid.digests()
        with laid.saver(f"{store}/{name}", "run") as saver:
            assert saver.step(2), (name, saver.stats)
            wait_committed(f"{store}/{name}", 2)
        if rank == 0:
            Path(f"{folder}/{name}").write_text("\n".join(then))


def restore(rank: int, cells: list[tuple[str, str]], folder: str, store: str) -> None:
    """Go back to what each was, in whichever layout."""
    world = dist.get_world_size()
    wrong = []
    for saved, layout in cells:
        laid = Laid(layout, seed=2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with laid.saver(f"{store}/{saved}", "run") as saver:
                assert saver.restore() == 2
        if laid.digests() != tuple(Path(f"{folder}/{saved}").read_text().split("\n")):
            wrong.append(f"{saved} -> {layout}{world}")
    assert not wrong, wrong


def _anew(rank: int, world: int, meet: str) -> None:
    """A process group of its own: savers of one group would hear each other."""
    dist.barrier()  # another rank may still be joining the old one
    dist.destroy_process_group()
    join(rank, world, meet)
