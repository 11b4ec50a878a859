"""A `DataLoader` made anew from another, to begin amid an epoch and to tell where its workers stand.

Its sampler, its collate function and its workers' start call those of the other one, which is all that
torch offers in public; dataset, batches, pinning and the workers' ids are what they are without. A batch
travels beside its numbers in a tuple, the parts of which are pinned each as by itself.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from evac.torch import generators
from evac.torch.loader_order import Begin, Order, as_it_is
from evac.torch.loader_place import batch_of
from evac.torch.rank_state import load_rng, read_rng
from evac.torch.rounds import Rounds
from evac.torch.samplers import samplers
from evac.torch.worker_numbers import Held, Numbers, WorkerNumbers, changed


class Remade:
    """What `Resumable` iterates over.

    Args:
        loader: To be made anew.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._old = loader
        self.workers = loader.num_workers
        self.replays = isinstance(loader.dataset, IterableDataset)
        self._travels = self.workers > 0 and not self.replays
        # Of workers that live on from epoch to epoch; any other is held by who takes from it alone, and ends with that.
        self.newest: Iterator[Any] = iter(())
        self._start = _Start(loader.worker_init_fn, loader.collate_fn)
        self._order = Order(
            loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        )
        with warnings.catch_warnings():
            # The other one has warned of its number of workers.
            warnings.simplefilter("ignore")
            self._new = self._make()

    @property
    def keeps_workers(self) -> bool:
        """They live on from epoch to epoch."""
        return self.workers > 0 and self._old.persistent_workers

    @property
    def batch(self) -> int | None:
        """Samples in a batch, where that is a number."""
        return batch_of(self._old)

    @property
    def ahead(self) -> int:
        """Batches that workers make ahead, at most."""
        return self.workers * (self._old.prefetch_factor or 0)

    def rounds(self, taken: int, numbers: Sequence[Numbers | None]) -> Rounds | None:
        """Where workers stand at a round's begin; None where no numbers come with a batch.

        Args:
            numbers: Empty where they are as their seeds have them.
        """
        return Rounds.at(taken, numbers or [None] * self.workers) if self._travels else None

    def round_of(self, taken: int) -> int:
        """Where to begin so that batch *taken* is made as it was: so many may be passed over."""
        if self.replays:
            return 0
        return taken - taken % self.workers if self._travels else taken

    def numbers(self) -> dict[str, Any]:
        """Where all random numbers stand that an epoch begins with."""
        return {"rng": {**read_rng(), "cuda": []}, "generators": self.own()}

    def own(self) -> dict[str, Any]:
        """Where the samplers' generators stand; without workers, also those that are drawn from for a batch."""
        return generators.read({**self._generators(), **self._held().now()})

    def put_back(self, own: Mapping[str, Any], *, samplers: bool = True) -> None:
        """Go on from there; of the samplers only if told to."""
        if samplers:
            generators.put_back(self._generators(), own)
        self._held().put_back(own)

    @contextmanager
    def as_at(self, numbers: Mapping[str, Any]) -> Iterator[None]:
        """Begin with those; the global ones are afterwards what they were."""
        before = read_rng()
        load_rng(numbers["rng"])
        self.put_back(numbers["generators"])
        try:
            yield
        finally:
            load_rng(before)

    def begin(
        self,
        passed: int = 0,
        numbers: Sequence[Numbers | None] = (),
        *,
        unseeded: bool = False,
    ) -> Iterator[Any]:
        """The batches of an epoch.

        Args:
            passed: How many to pass over.
            numbers: Where its workers stand, if they are started for it.
            unseeded: Its workers had lived on from another epoch: no seed was drawn for them, and the sampler
                goes on as if none were now.
        """
        self._order.passed, self._start.numbers = passed, numbers
        self._order.start = self._unseeded() if unseeded else as_it_is
        try:
            batches = iter(self._new)
            if self.workers == 0:
                # With the first batch the sampler would draw from numbers that belong to others.
                self._order.pass_over()
        finally:
            self._order.passed, self._start.numbers, self._order.start = 0, (), as_it_is
        if self.keeps_workers:
            self.newest = batches
        return batches

    def start_workers(self, numbers: Sequence[Numbers | None]) -> None:
        """Start those that live on, with nothing to do."""
        self._order.passed, self._start.numbers = None, numbers
        try:
            iter(self._new)
        finally:
            self._order.passed, self._start.numbers = 0, ()

    def end(self) -> bool:
        """Give the workers nothing more to do in this epoch; False where that cannot be."""
        self._order.end()
        return not self.replays

    def _unseeded(self) -> Begin:
        """Begin from where the numbers stand now, also when torch does so twice, and draws the seed in between."""
        put_back = self._take_back()

        def begin(sampler: Any) -> tuple[Iterator[Any], Callable[[], None]]:
            put_back()
            return iter(sampler), self._take_back()

        return begin

    def _take_back(self) -> Callable[[], None]:
        """For what is drawn from here on until it is called."""
        numbers = self.numbers()

        def put_back() -> None:
            load_rng(numbers["rng"])
            self.put_back(numbers["generators"])

        return put_back

    def _held(self) -> Held:
        if self.workers:
            return Held()  # each of them has its own, see `WorkerNumbers`
        return Held(dataset=self._old.dataset, collate=self._old.collate_fn)

    def _generators(self) -> dict[str, Any]:
        found = {
            f"{where}.{name}": vars(one)[name]
            for where, one in samplers(self._old).items()
            for name in generators.unregistered(one, {})
        }
        if self._old.generator is not None:
            found["generator"] = self._old.generator
        return found

    def _make(self) -> DataLoader[Any]:
        old = self._old
        given: dict[str, Any] = {
            "num_workers": self.workers,
            "collate_fn": _Collate(old.collate_fn) if self._travels else old.collate_fn,
            "worker_init_fn": self._start if self._travels else old.worker_init_fn,
            "pin_memory": old.pin_memory,
            "timeout": old.timeout,
            "generator": old.generator,
            "persistent_workers": old.persistent_workers,
            "in_order": old.in_order,
        }
        if old.pin_memory_device:  # which torch is about to give up
            given["pin_memory_device"] = old.pin_memory_device
        if self.workers:
            given["multiprocessing_context"] = old.multiprocessing_context
            given["prefetch_factor"] = old.prefetch_factor
        if self.replays:
            given |= {"batch_size": old.batch_size, "drop_last": old.drop_last}
        elif old.batch_sampler is None:
            given |= {"batch_size": None, "sampler": self._order}
        else:
            given["batch_sampler"] = self._order
        return DataLoader(old.dataset, **given)


class _Start:
    """A worker's start: the loader's own, then where it stands.

    Attributes:
        numbers: Of each worker; pickled, or forked, with what starts now.
    """

    def __init__(self, own: Any, collate: Any) -> None:
        self._own = own
        # In a worker the one that it calls, for they come there together.
        self._collate = collate
        self.numbers: Sequence[Numbers | None] = ()

    def __call__(self, worker: int) -> None:
        if self._own is not None:
            self._own(worker)
        numbers = self.numbers[worker] if self.numbers else None
        info = get_worker_info()
        if numbers is not None and info is not None:
            WorkerNumbers(info.dataset, self._collate).put_back(numbers)


class _Collate:
    """In a worker: the batch, and what of the worker's numbers has changed since the last one."""

    def __init__(self, own: Any) -> None:
        self._own = own
        self._numbers: WorkerNumbers | None = None
        self._told: Numbers = {}

    def __call__(self, samples: Any) -> tuple[Any, Numbers]:
        batch = self._own(samples)
        if self._numbers is None:
            info = get_worker_info()
            assert info is not None
            self._numbers = WorkerNumbers(info.dataset, self._own)
        now = self._numbers.read()
        before, self._told = self._told, now
        return batch, changed(now, before)
