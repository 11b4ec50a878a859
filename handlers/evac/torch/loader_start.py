"""A data loader's start in the middle of an epoch, which an uninterrupted run does not have.

A run that goes on has started its loader at the epoch's begin. A resumed one starts it again, and
every `DataLoader` without a ``generator`` of its own then draws the seed of its workers, with none of
them as well, from torch's global numbers (`_BaseDataLoaderIter.__init__`, torch 2.9-2.14): dropout
after it is another one. So what that one start draws is given back; what anybody else draws between a
restore and the first batch is not touched, nor is what is drawn for each batch.

Turned down: to put the numbers back at the model's first forward, which also takes back what was drawn
for the first batch (augmentation in the main process) and by whoever else came first; a start within
the restore, which comes before ``sampler.set_epoch``; a generator for each loader, with which a run
has other numbers than it has without evac.
"""

import logging
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.data import DataLoader

from evac.torch.rank_state import load_rng, read_rng
from evac.torch.resumable import Resumable

log = logging.getLogger("evac")


def resumed(loaders: Iterable[Any], model: torch.nn.Module) -> None:
    """*loaders* are to go on where they stood, and the random numbers are where they were."""
    for one in loaders:
        _resumed(one, model)


def _resumed(loader: Any, model: torch.nn.Module) -> None:
    if isinstance(loader, Resumable):
        return  # it does so itself
    if isinstance(loader, DataLoader):
        _spare(loader)
    elif hasattr(type(loader), "__iter__") and getattr(model, "_compiled_call_impl", None) is None:
        # Nothing is known of its start. Not with `Module.compile`, which would compile this, too.
        _watch(loader, model)


def _spare(loader: DataLoader[Any]) -> None:
    """Give back what its next start draws."""

    def start() -> Any:
        vars(loader).pop("_get_iterator", None)
        before = read_rng()
        try:
            return loader._get_iterator()
        finally:
            load_rng(before)

    # `DataLoader.__iter__` and torchdata's own call it, and it is looked up on the object first.
    vars(loader)["_get_iterator"] = start


def _watch(loader: Any, model: torch.nn.Module) -> None:
    """Say it where numbers were drawn before the first forward."""
    before = read_rng()

    def look(*_arguments: Any) -> None:
        hook.remove()
        now = read_rng()
        if not torch.equal(before["torch"], now["torch"]) or before["python"] != now["python"]:
            log.warning(
                "random numbers were drawn between restore() and the first forward: where it was the "
                "start of %s, training goes on with others than it would have, unless it draws from "
                "a generator of its own",
                type(loader).__name__,
            )

    hook = model.register_forward_pre_hook(look)
