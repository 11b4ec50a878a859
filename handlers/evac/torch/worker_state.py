"""Random numbers inside a loader's workers, as part of its state.

torchdata's `StatefulDataLoader` asks the dataset in each worker for its state, batch by batch, keeps that of the
batch that was taken, and gives it back to the worker of the same number. So in the workers, and
nowhere else, the dataset is one that has a state: where the worker's random numbers stand, beside its
own if it has one. Batches are not touched, and in the training process the dataset is what it was.

torchdata restores a dataset, calls ``iter`` on it, restores the iterator, and then asks for the state that the
worker begins with (0.9-0.11, ``worker.py``): there the numbers are put back, because all of these may draw.

An `IterableDataset` without a state is left alone: with one, torchdata would take it to know its own place, and
not read it again from its begin, which draws the same numbers again.
"""

import inspect
from typing import Any

from torch.utils.data import (
    IterableDataset,
    IterDataPipe,
    MapDataPipe,
    default_collate,
    get_worker_info,
)

from evac.torch.loader_place import NUMBERS
from evac.torch.rank_state import Stateful
from evac.torch.resumable import Resumable
from evac.torch.worker_numbers import Numbers, WorkerNumbers

_OWN = "dataset"


def keep(*loaders: Any) -> None:
    """Have *loaders* keep their workers' random numbers with their state, where they can.

    Args:
        loaders: Anything. An iterator that one has already goes on without.
    """
    for one in loaders:
        if _is_torchdata(one) and one.num_workers and _takes(one.dataset):
            _keep(one)


def _keep(loader: Any) -> None:
    if not isinstance(loader.worker_init_fn, _Start):
        iterator = id(vars(loader).get("_iterator"))
        loader.worker_init_fn = _Start(loader.worker_init_fn, loader.collate_fn, iterator)


def unkept(loader: Any) -> str:
    """Why a resume would not go on with its workers' random numbers; "" where it would, or they draw none.

    Args:
        loader: Of any kind; what stands for one that it does not show says so itself, as ``unkept``.
    """
    said = getattr(loader, "unkept", None)
    if isinstance(said, str):
        return said
    workers = getattr(loader, "num_workers", 0)
    if not isinstance(workers, int):
        return ""
    if isinstance(loader, Resumable):
        if not workers and isinstance(loader.dataset, IterableDataset):
            return (
                f"it has none, and if {type(loader.dataset).__name__} draws in this process, training draws in "
                "between: read again, it is other samples (num_workers=1 keeps them apart)"
            )
        if loader.persistent_workers and isinstance(loader.dataset, IterableDataset):
            return "persistent ones that read an IterableDataset, from its second epoch on"
        return ""
    if workers < 1:
        return ""
    if not _is_torchdata(loader):
        return f"of {type(loader).__name__} nothing is known; StatefulDataLoader and evac.torch.Resumable keep them"
    if not loader.in_order:
        return "with in_order=False the next batch is whichever is ready"
    start, kind = loader.worker_init_fn, type(loader.dataset)
    if isinstance(start, _Start):
        iterator = vars(loader).get("_iterator")
        late = iterator is not None and id(iterator) == start.iterator
        return "they were started before the Checkpointer was made" if late else ""
    if isinstance(loader.dataset, IterableDataset):
        return _replayed(kind, persistent=loader.persistent_workers)
    if _takes(loader.dataset):
        return "the loader was not known before they were started"
    # What is no object of somebody's class draws nothing, nor does torch's collate.
    if kind.__module__ == "builtins" and loader.collate_fn is default_collate:
        return ""
    return f"a dataset of the type {kind.__name__} takes no attributes"


def misplaced(loader: Any) -> str:
    """Why a second resume within an epoch would pass over samples; "" where it would not.

    torchdata counts what it reads again of an `IterableDataset` without a state twice (0.9-0.11): resumed once it goes on
    where it stood, and by its state then it stands further on.
    """
    if not _is_torchdata(loader) or not isinstance(loader.dataset, IterableDataset):
        return ""
    kind = type(loader.dataset)
    again = inspect.isgeneratorfunction(inspect.getattr_static(kind, "__iter__", None))
    if isinstance(loader.dataset, IterDataPipe | Stateful) or not again:
        return ""
    return (
        f"StatefulDataLoader counts what it reads again of {kind.__name__}, which has no state_dict, twice; "
        "evac.torch.Resumable(DataLoader(...)) does not"
    )


def _replayed(kind: type, *, persistent: bool) -> str:
    """What is in the way where a dataset of that type is read again from its begin."""
    if persistent:
        return f"persistent ones that read {kind.__name__}, which has no state_dict"
    if not inspect.isgeneratorfunction(inspect.getattr_static(kind, "__iter__", None)):
        return f"where the iterator of {kind.__name__} has a state, it lacks them"
    return ""


def _takes(dataset: Any) -> bool:
    """Whether it can be given a state."""
    if isinstance(dataset, IterDataPipe | MapDataPipe):
        return False
    if isinstance(dataset, IterableDataset) and not isinstance(dataset, Stateful):
        return False
    return (
        hasattr(dataset, "__dict__")
        and inspect.getattr_static(dataset, "__setattr__") is object.__setattr__
    )


def _is_torchdata(loader: Any) -> bool:
    """Whether it is a `StatefulDataLoader`, which nobody has to have installed."""
    return any(
        one.__module__.startswith("torchdata.stateful_dataloader") for one in type(loader).__mro__
    )


class _Start:
    """A worker's start: the loader's own, then its dataset has a state.

    Attributes:
        iterator: The id of the one whose workers have started without.
    """

    def __init__(self, own: Any, collate: Any, iterator: int) -> None:
        self._own = own
        # In a worker the one that it calls, for they come there together.
        self._collate = collate
        self.iterator = iterator

    def __call__(self, worker: int) -> None:
        if self._own is not None:
            self._own(worker)
        info = get_worker_info()
        assert info is not None
        _Keeper(info.dataset, self._collate)


class _Keeper:
    """In a worker: what its dataset answers when it is asked for its state."""

    def __init__(self, dataset: Any, collate: Any) -> None:
        self._holds = (dataset, collate)
        self._numbers = WorkerNumbers(*self._holds)
        # Of the times that it is asked: at the start, and after the first batch, which may make a generator.
        self._looks = 2
        self._loaded: Numbers | None = None
        self._own = (
            (dataset.state_dict, dataset.load_state_dict) if isinstance(dataset, Stateful) else None
        )
        dataset.state_dict, dataset.load_state_dict = self.state_dict, self.load_state_dict

    def state_dict(self) -> dict[str, Any]:
        state = {_OWN: self._own[0]()} if self._own is not None else {}
        if self._looks:
            self._looks -= 1
            self._numbers = WorkerNumbers(*self._holds)
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            self._numbers.put_back(loaded)
        return {**state, NUMBERS: dict(self._numbers.read())}

    def load_state_dict(self, state: Any) -> None:
        own = state
        if isinstance(state, dict) and NUMBERS in state:
            own = state.get(_OWN)
            self._loaded = state[NUMBERS]  # None on a rank that was not there
            # Where this draws, as the first time.
            if self._loaded is not None:
                self._numbers.put_back(self._loaded)
        if self._own is not None and own is not None:
            self._own[1](own)
