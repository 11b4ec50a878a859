"""A plain loop that saves with `torch.distributed.checkpoint`. Kill it, start it again: it goes on.

    python -m integration.examples.checkpoint --store file:///tmp/evac-store --steps 60

With evacd on the node, leave out `--store`. Under torchrun every rank does the same.
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.nn.parallel import DistributedDataParallel

from evac.torch.dcp import EvacWriter


def train(
    steps: int, each: Callable[[int, torch.Tensor], None], job: str = "example-dcp", **evac: Any
) -> dict[str, Any]:
    """Train to *steps*, from wherever the last start of this job has come to."""
    torch.manual_seed(7)
    model: torch.nn.Module = torch.nn.Sequential(
        torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)
    )
    rank = dist.get_rank() if dist.is_initialized() else 0
    if dist.is_initialized():
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    writer = EvacWriter(job, **evac)  # 1

    def state() -> dict[str, Any]:
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments, "seen": seen}

    seen, reader = {"samples": 0}, writer.reader()
    first = reader.find() or 0
    if first:
        loaded = state()
        load(loaded, storage_reader=reader)
        set_state_dict(
            model,
            optimizer,
            model_state_dict=loaded["model"],
            optim_state_dict=loaded["optimizer"],
        )
        seen = loaded["seen"]
    for step in range(first + 1, steps + 1):
        data = torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step + rank))
        optimizer.zero_grad()
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        seen["samples"] += 4
        save(state(), checkpoint_id=f"step-{step}", storage_writer=writer)  # 2
        each(step, loss)
    writer.close()
    return state()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--store", help="where evacd is not: file:///folder, s3://bucket/prefix...")
    parser.add_argument("--steps", type=int, default=60)
    given = parser.parse_args()
    train(given.steps, lambda step, loss: print(step, loss.item()), store=given.store)
