"""What a checkpoint will lack, by name, as far as it can be seen from the objects that were given."""

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from evac.torch import generators
from evac.torch.loader_place import dealt
from evac.torch.rank_state import RankObjects, Stateful
from evac.torch.resumable import Resumable
from evac.torch.samplers import samplers
from evac.torch.worker_numbers import Held
from evac.torch.worker_state import misplaced, unkept

# Steps to look at: the first ones of a scaler may be left out.
_LOOKS = 3
# Frames between a scaler's step and the optimizer's.
_DEPTH = 30


def lacking(objects: RankObjects) -> list[str]:
    """What is missing, each beginning with "no"."""
    missing = []
    loaders = objects.loaders
    if not loaders:
        missing.append("no data-loader state, so that a resume would replay data")
    if objects.scheduler is None:
        missing.append("no LR schedule")
    for where, loader in loaders.items():
        missing += _of_loader(where, loader, objects)
    return missing


def _of_loader(where: str, loader: Any, objects: RankObjects) -> Iterator[str]:
    known = "the loader" if loader is objects.loader else where
    if reason := misplaced(loader):
        yield f"no place of {known} from the second resume of an epoch on: {reason}"
    if reason := unkept(loader):
        yield f"no random numbers inside {known}'s workers: {reason}"
    for name, one in _draws(loader):
        if isinstance(one, RandomSampler | SubsetRandomSampler | WeightedRandomSampler):
            yield (
                f"no state of {where}.{name}, a {type(one).__name__}, so that a resume would shuffle anew "
                "(StatefulDataLoader(shuffle=True) makes one that has a state)"
            )
            continue
        for attribute in generators.unregistered(one, objects.generators):
            yield f"no state of {where}.{name}.{attribute}, from which it draws (name it in generators=)"
    registered = {id(one) for one in objects.generators.values()}
    for name, one in _held(loader).items():
        if id(one) not in registered:
            yield f"no state of {where}.{name}, from which it draws (name it in generators=)"


def undealt(loader: Any) -> bool:
    """Whether it is a `Resumable` of which each rank takes all: nobody puts a `DistributedSampler` into it."""
    if not isinstance(loader, Resumable) or isinstance(loader.dataset, IterableDataset):
        return False
    return dealt(loader, 1).shares is None


class ScalerWatch:
    """Finds out who calls the optimizer's step: a GradScaler has a state that is easily forgotten."""

    def __init__(self, optimizer: torch.optim.Optimizer, objects: RankObjects) -> None:
        self._known = list(objects.extra.values())
        self._left = _LOOKS
        self._forgotten = False
        self._hook = optimizer.register_step_post_hook(self._look)

    def forgotten(self) -> str:
        """That it is in no checkpoint, in words; "" where there is none, or it is."""
        if not self._forgotten:
            return ""
        return (
            "checkpoints hold no GradScaler, though one steps the optimizer: a resume would begin at "
            "its first scale; pass extra={'scaler': scaler}"
        )

    def close(self) -> None:
        """Look no more."""
        self._hook.remove()

    def _look(self, *_arguments: object) -> None:
        if self._left:
            self._left -= 1
            for scaler in _scalers(sys._getframe(1)):
                self._left = 0
                self._forgotten = not any(one is scaler for one in self._known)


def _scalers(frame: FrameType | None) -> Iterator[Any]:
    for _ in range(_DEPTH):
        if frame is None:
            return
        one: Any = frame.f_locals.get("self")
        # By its type: a proxy may do anything when it is asked for its class.
        if issubclass(type(one), torch.amp.GradScaler) and one.is_enabled():
            yield one
        frame = frame.f_back


def _draws(loader: Any) -> Iterator[tuple[str, Any]]:
    """The loader's parts whose state nobody keeps."""
    if isinstance(loader, Resumable):
        return
    for name, one in samplers(loader).items():
        # torchdata keeps the state of its own within the loader's.
        if not type(one).__module__.startswith("torchdata.") and not isinstance(one, Stateful):
            yield name, one


def _held(loader: Any) -> dict[str, Any]:
    """The generators that samples are made with in this process, where the loader's state lacks them."""
    if not isinstance(loader, DataLoader) or loader.num_workers:
        return {}
    if isinstance(loader.dataset, IterableDataset | Stateful):
        return {}  # read again, or told by itself
    return Held(dataset=loader.dataset, collate=loader.collate_fn).now()
