"""What it costs a data loader to have its workers' random numbers kept.

Two workers, and a loop that does nothing but take batches, beside the same loader without: so the cost is as
large as it gets. The small batches are nothing but their collation; the others are of images that are cropped and
noisy, which is little work for an augmentation. torchdata's loader keeps a state for each batch by itself.
"""

import gc
import os
import random
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from harness import Ratio, Variant, main
from torch.utils.data import DataLoader, Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

from evac.torch import Resumable, worker_state

SECONDS = 4.0
IMAGES, NUMBERS = "images", "numbers"
BATCH, WARM = 32, 20

RATIOS = [
    *(
        Ratio(f"{kind}_rate", "batches_per_s", f"images, {kind}, kept", f"images, {kind}", 0.95)
        for kind in ("torch", "torchdata")
    ),
    *(
        Ratio(
            f"{kind}_cpu",
            "cpu_ms_per_batch",
            f"images, {kind}, kept",
            f"images, {kind}",
            1.05,
            at_least=False,
        )
        for kind in ("torch", "torchdata")
    ),
]


class Images(Dataset[torch.Tensor]):
    """3 x 128 x 128 of a larger one."""

    def __init__(self) -> None:
        self._one = torch.rand(3, 160, 160)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, place: int) -> torch.Tensor:
        top, left = random.randrange(32), random.randrange(32)
        cut = self._one[:, top : top + 128, left : left + 128]
        return cut + torch.randn(cut.shape) * 0.1


class Numbers(Images):
    """One number each, drawn."""

    def __getitem__(self, place: int) -> torch.Tensor:
        return torch.tensor(random.random())


def stock(dataset: Dataset[Any]) -> Any:
    return DataLoader(dataset, batch_size=BATCH, num_workers=2)


def stock_kept(dataset: Dataset[Any]) -> Any:
    return Resumable(DataLoader(dataset, batch_size=BATCH, num_workers=2))


def stateful(dataset: Dataset[Any]) -> Any:
    return StatefulDataLoader(dataset, batch_size=BATCH, num_workers=2)


def stateful_kept(dataset: Dataset[Any]) -> Any:
    loader: Any = StatefulDataLoader(dataset, batch_size=BATCH, num_workers=2)
    worker_state.keep(loader)
    return loader


def rate(make: Callable[[Dataset[Any]], Any], dataset: Dataset[Any]) -> dict[str, float]:
    """Batches per second, once they come; and what they cost in all processes."""
    used, loader = cpu_seconds(), make(dataset)
    batches = iter(loader)
    for _ in range(WARM):
        next(batches)
    started, taken = time.perf_counter(), 0
    while (passed := time.perf_counter() - started) < SECONDS:
        next(batches)
        taken += 1
    # Its workers end with it, and have then been counted.
    del batches, loader
    gc.collect()
    cost = 1e3 * (cpu_seconds() - used) / (WARM + taken)
    return {"batches_per_s": taken / passed, "cpu_ms_per_batch": cost}


def cpu_seconds() -> float:
    """Of this process and those that it has waited for."""
    now = os.times()
    return now.user + now.system + now.children_user + now.children_system


def variants() -> list[Variant]:
    makers = {
        "torch": stock,
        "torch, kept": stock_kept,
        "torchdata": stateful,
        "torchdata, kept": stateful_kept,
    }
    data: dict[str, Dataset[Any]] = {IMAGES: Images(), NUMBERS: Numbers()}
    return [
        Variant(f"{what}, {kind}", lambda make=make, dataset=dataset: rate(make, dataset))  # type: ignore[misc] # bound here
        for what, dataset in data.items()
        for kind, make in makers.items()
    ]


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message="'set_vital' is deprecated")
    sys.exit(main("loader", variants(), RATIOS, rounds=3))
