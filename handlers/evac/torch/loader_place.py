"""Where a data loader stands in its epoch, and what becomes of that at another world size.

A loader's state is one rank's: how much of its own share it has taken. Dealt to more ranks, or fewer, the
same number means other samples: 2 -> 1 shows some twice, 1 -> 2 passes others over for good. torch's
`DistributedSampler` deals one order out in turn, so there the ranks' places together are one place in
that order, and it can be dealt anew from there: rounded down, so that fewer samples
than there are ranks come again and none is missed. Of any other loader nothing is known but that its ranks' places are of
no use: it starts at its beginning, which repeats what was seen and misses nothing.

The keys are those of torchdata's `StatefulDataLoader` (0.9-0.11), whose state is the only place they are in, and of
`evac.torch.Resumable`, which begins with whole batches: a few samples more come again.
Turned down: to refuse, which has a job that lost a node at night start over and over again; each rank's
own place, which repeats or misses as much, and does not say so.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

# What is in the state of a `Resumable`, as ``kind``; and in a dataset's, where its worker's numbers are.
RESUMABLE: Final = "evac.torch.Resumable"
NUMBERS: Final = "evac.numbers"


class LikeLoader:
    """Does as a `DataLoader` does, and is none."""


def is_loader(one: Any) -> bool:
    """Whether it goes through data, in a place of its own."""
    return isinstance(one, DataLoader | LikeLoader)


@dataclass(frozen=True)
class Dealt:
    """How an epoch's samples are dealt to ranks.

    Attributes:
        world: How many ranks there are.
        shares: Among how many the loader's sampler deals; None where that is not known.
        share: Samples in one of them; likewise.
        batch: Samples in one of the loader's batches; likewise.
    """

    world: int
    shares: int | None = None
    share: int | None = None
    batch: int | None = None


def dealt(loader: Any, world: int) -> Dealt:
    """How *loader* deals now."""
    for holder in (loader, getattr(loader, "batch_sampler", None)):
        sampler = getattr(holder, "sampler", None)
        if isinstance(sampler, DistributedSampler):
            shares, share = int(sampler.num_replicas), int(sampler.num_samples)
            return Dealt(world, shares, share, batch_of(loader))
    return Dealt(world)


def batch_of(loader: Any) -> int | None:
    """Samples in a batch of *loader*, where that is a number; 1 where it makes single ones."""
    if getattr(loader, "batch_sampler", None) is None:
        return 1
    size = getattr(loader, "batch_size", None)
    return size if isinstance(size, int) else None


def placed(state: Any, *, own: bool, was: Dealt, now: Dealt) -> tuple[Any, str]:
    """Where a loader goes on.

    Args:
        state: What it said, on this rank or on rank 0.
        own: On this rank.

    Returns:
        The state to load, None for none, and what a person should know, or "".
    """
    if own and was.world == now.world and was.shares in (None, now.shares):
        return state, ""
    taken = samples(state)
    whole = now.batch if _is_resumable(state) else 1
    if taken is not None and whole and was.shares and now.shares and now.share is not None:
        total = taken * was.shares
        there = min(total // now.shares, now.share)
        there -= there % whole
        again = max(total - there * now.shares, 0)
        return moved(state, there, whole), (
            f"the data loader goes on at sample {total - again:,} of its epoch, which is dealt to "
            f"{now.shares} where it was to {was.shares}: {again} come again, none is missed"
        )
    seen = "what they had of the epoch comes"
    if taken is not None:
        seen = f"{taken:,} samples that each of them had come"
    return None, (
        f"the data loader starts at its beginning, for its place is one of {was.world} ranks and "
        f"{now.world} are here: {seen} again, none is missed "
        "(with elastic_loader=True it is loaded as it is)"
    )


def samples(state: Any) -> int | None:
    """How many of its share a rank has taken in this epoch; None where the state does not tell."""
    if _is_resumable(state):
        return state["taken"] * state["batch"] if state["batch"] else None
    main = _main(state)
    if main is None or state.get("_steps_since_snapshot", 0):
        return None
    taken = main["_sampler_iter_state"]["samples_yielded"]
    return taken if isinstance(taken, int) else None


def moved(state: Any, taken: int, batch: int) -> Any:
    """The state of a rank that has taken *taken* samples of its share, made from another's.

    Args:
        state: One that `samples` can tell.
        batch: Samples in a batch now, for a `Resumable`.
    """
    if _is_resumable(state):
        batches = taken // batch
        # Its sampler stands elsewhere then, as far as it draws amid an epoch.
        place = {"taken": batches, "begun": batches, "batch": batch, "ahead": None}
        return {**state, **place, "numbers": []}
    main = _main(state)
    assert main is not None
    sampler = dict(main["_sampler_iter_state"])
    batches = -(-main["_sampler_iter_yielded"] * taken // max(sampler["samples_yielded"], 1))
    sampler["samples_yielded"] = taken
    if "sampler_state" in sampler:
        sampler["sampler_state"] = {**sampler["sampler_state"], "yielded": taken}
    new = {**main, "_sampler_iter_state": sampler, "_sampler_iter_yielded": batches}
    if "_snapshot" not in state:
        return {**new, "_num_yielded": batches}
    snapshot = {**state["_snapshot"], "_main_snapshot": new, "_snapshot_step": batches}
    return {**state, "_snapshot": snapshot}


def adopted(state: Any, seed: int) -> Any:
    """The same place, for a rank that has not been there: its workers do not draw what another's do.

    Args:
        seed: Of its workers.
    """
    if _is_resumable(state):
        return {**state, "began": None, "started": None, "numbers": []}
    main = _main(state)
    if main is None or "_snapshot" not in state:
        return state
    workers = {
        name: {**one, "dataset_state": _without_numbers(one["dataset_state"])}
        for name, one in state["_snapshot"]["_worker_snapshots"].items()
    }
    new = {"_main_snapshot": {**main, "_base_seed": seed}, "_worker_snapshots": workers}
    return {**state, "_snapshot": {**state["_snapshot"], **new}}


def _without_numbers(state: Any) -> Any:
    # Of the same form: what lies beside them is a dataset's own, and not all of its state.
    return {**state, NUMBERS: None} if isinstance(state, Mapping) and NUMBERS in state else state


def _is_resumable(state: Any) -> bool:
    return isinstance(state, Mapping) and state.get("kind") == RESUMABLE


def _main(state: Any) -> Mapping[str, Any] | None:
    """What it says of its sampler, in this process."""
    if not isinstance(state, Mapping):
        return None
    main = state["_snapshot"].get("_main_snapshot") if "_snapshot" in state else state
    try:
        main["_sampler_iter_yielded"], main["_sampler_iter_state"]["samples_yielded"]
    except (KeyError, TypeError):
        return None
    known: Mapping[str, Any] = main
    return known
