"""A stock `DataLoader` that goes on where it stood: its order, its place, its workers' random numbers.

::

    loader = Resumable(DataLoader(dataset, batch_size=32, shuffle=True, num_workers=8))

An epoch is what its first random numbers make of it: the order that the sampler draws, the seed of
the workers. So those of its begin are kept. A resumed epoch begins with them, passes over what was
taken by the sampler alone, and gives the numbers back as they were restored. Where a worker stands comes
with each batch that it makes, and is taken off again here: what was not taken counts for nothing,
however far the workers are ahead (`evac.torch.rounds`). An `IterableDataset` has no place but what its epoch's
begin leads to: it is read again from there, what was taken is thrown away, and nothing comes with its batches.

The loader is made anew from its public attributes (`evac.torch.remade`). Turned down: to replace the iterator
of a loader that exists, which is private; and a seed of its own for each sample, with which a run has other
numbers than it has without evac.
"""

import logging
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from torch.utils.data import DataLoader, IterDataPipe, MapDataPipe

from evac._clock import Monotonic, monotonic
from evac.torch.loader_place import RESUMABLE, LikeLoader
from evac.torch.remade import Remade
from evac.torch.rounds import Rounds
from evac.torch.worker_numbers import Numbers

log = logging.getLogger("evac")

_T = TypeVar("_T")
# What a worker's numbers take, where none are known yet.
_NBYTES = 12_000
# How often it is told how far a loader is that reads again.
_TELL_SECONDS = 60.0


class Resumable(LikeLoader, Generic[_T]):
    """A `DataLoader` with ``state_dict`` and ``load_state_dict``; every other attribute is the loader's.

    Iterate over this and not over the loader, whose samplers are shared. The state is that of the newest
    iterator at the last batch that was taken from it.

    Args:
        loader: Its order is drawn when an epoch begins, from the global random numbers or by ``set_epoch``, or at any
            time from generators that are attributes of its samplers; one that draws from the global numbers amid
            an epoch, as a sampler in buckets may, is named in a warning. After a resume it has as many workers as before.
            An `IterableDataset` is read again from its epoch's begin, which takes as long as it had taken; one that
            can tell its place in a ``state_dict`` of its own goes on at once with torchdata's `StatefulDataLoader`.
            Without workers (``num_workers=0``) it has to draw nothing from the global random numbers, from which
            training draws in between: a warning names it. With several ranks its sampler is to be a
            `DistributedSampler`: Lightning and accelerate put one into a `DataLoader`, and into this none.
        clock: Seconds, by which it tells how far reading again is.

    Raises:
        ValueError: It goes through its data in its own way.
    """

    def __init__(self, loader: DataLoader[_T], *, clock: Monotonic = monotonic) -> None:
        if reason := _refused(loader):
            raise ValueError(f"Resumable: expected a torch.utils.data.DataLoader, got {reason}")
        self._loader = loader
        self._clock = clock
        self._remade: Remade | None = None
        self._epoch: _Epoch | None = None
        # A state, until an epoch has begun with it.
        self._loaded: dict[str, Any] | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[_T]:
        if self._remade is None:
            self._remade = Remade(self._loader)
        if self._loaded is None:
            begun: _Batches[_T] = _next(self._remade, self._epoch, self._clock)
        else:
            try:
                begun = _resumed(self._remade, self._loaded, self._clock)
            except BaseException:
                # Half begun; another try begins anew, at the same place.
                self._remade = None
                raise
        self._loaded, self._epoch = None, begun.epoch
        return begun

    def state_dict(self) -> dict[str, Any]:
        """Where it stands; empty where no epoch has begun."""
        if self._loaded is not None:
            return dict(self._loaded)
        if self._epoch is None or self._remade is None:
            return {}
        loader = self._remade
        own = {"batch": loader.batch, "ahead": loader.ahead, "generators": loader.own()}
        return {**self._epoch.state(), **own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on there, with the next iterator.

        Raises:
            ValueError: It is another loader's.
        """
        if state and state.get("kind") != RESUMABLE:
            raise ValueError(
                f"Resumable: the state of another loader: {', '.join(map(str, state))}"
            )
        # Workers that live on from epoch to epoch are others then.
        self._remade = self._epoch = None
        self._loaded = dict(state) or None


class _Epoch:
    """One way through the data, and how far that is.

    Args:
        began: The random numbers that it began with.
        started: Those that its workers were started with, where that was for an earlier one.
        rounds: None where no numbers come with a batch.
        taken: Batches.
    """

    def __init__(
        self,
        began: Mapping[str, Any],
        started: Mapping[str, Any] | None,
        rounds: Rounds | None,
        *,
        loader: Remade,
        taken: int = 0,
    ) -> None:
        self.began = began
        self.started = started
        self.rounds = rounds
        self.finished = False
        self.taken = taken
        self._workers = loader.workers
        self._persistent = loader.keeps_workers

    def take(self, batches: Iterator[Any]) -> Any:
        """The next of its *batches*.

        Raises:
            StopIteration: There is none.
        """
        if self.finished:
            raise StopIteration
        try:
            made = next(batches)
        except StopIteration:
            self.finished = True
            raise
        except Exception as error:
            # One that could not be made is one of them, too; one that was late is still to come.
            if not self._workers or _of_a_batch(error):
                self._took(None)
            raise
        if self.rounds is None:
            self._took({})
            return made
        batch, numbers = made
        self._took(numbers)
        return batch

    def take_again(self, batches: Iterator[Any], count: int, clock: Monotonic) -> None:
        """Take so many of its *batches* that were taken before, or as many as there are; it tells how far it is.

        Raises:
            Exception: Of the loader itself, and not of a batch.
        """
        told, first, last = clock(), self.taken, self.taken + count
        while self.taken < last:
            if (now := clock()) - told >= _TELL_SECONDS:
                told = now
                log.info("%d of %d batches are read again", self.taken - first, count)
            before = self.taken
            try:
                self.take(batches)
            except StopIteration:
                return
            except Exception:
                if self.taken == before:
                    raise
                # Whatever it was, the run had it and went on.
                log.debug("a batch that was taken before has failed again", exc_info=True)

    def state(self) -> dict[str, Any]:
        """For a resume."""
        numbers: Sequence[Numbers | None] = ()
        if self.rounds is not None:
            numbers = self.rounds.now if self.finished else self.rounds.began
        known = [sum(map(len, one.values())) for one in numbers if one is not None]
        return {
            "kind": RESUMABLE,
            "workers": self._workers,
            "persistent": self._persistent,
            "taken": self.taken,
            "begun": self.rounds.begun if self.rounds is not None else self.taken,
            "finished": self.finished,
            "began": self.began,
            "started": self.started,
            "numbers": list(numbers),
            # For those that come later: a state that grows has the checkpoint laid out anew.
            "room": bytes(max(known, default=_NBYTES) * (len(numbers) - len(known))),
        }

    def _took(self, numbers: Numbers | None) -> None:
        self.taken += 1
        if self.rounds is not None:
            self.rounds = self.rounds.after(numbers)


class _Batches(Iterator[_T]):
    """Holds no batch, which may be large. Who drops it ends its workers, as with a `DataLoader`'s own."""

    def __init__(self, epoch: _Epoch, batches: Iterator[Any]) -> None:
        self.epoch = epoch
        self._batches = batches

    def __next__(self) -> _T:
        batch: _T = self.epoch.take(self._batches)
        return batch


def _next(loader: Remade, before: _Epoch | None, clock: Monotonic) -> _Batches[Any]:
    """A new epoch, after another."""
    if before is None or not loader.keeps_workers:
        epoch = _Epoch(loader.numbers(), None, loader.rounds(0, ()), loader=loader)
        return _Batches(epoch, loader.begin())
    if not before.finished and loader.end():
        # The loader would make what it has promised, and throw it away; so it is known how that leaves the workers.
        before.take_again(loader.newest, loader.ahead + 1, clock)
    before.finished = True
    stand = before.rounds.now if before.rounds is not None else ()
    started = before.started or before.began
    epoch = _Epoch(loader.numbers(), started, loader.rounds(0, stand), loader=loader)
    return _Batches(epoch, loader.begin())


def _resumed(loader: Remade, state: Mapping[str, Any], clock: Monotonic) -> _Batches[Any]:
    """The epoch that *state* is of, or the one after it."""
    numbers: Sequence[Numbers | None] = state["numbers"]
    if state["workers"] != loader.workers:
        log.warning(
            "random numbers inside the loader's workers start anew: there were %d workers, there are %d",
            state["workers"],
            loader.workers,
        )
        numbers = ()
        if (
            loader.replays
            and not state["finished"]
            and max(state["workers"], 1) != max(loader.workers, 1)
        ):
            # Each reads a part of its own, and these are other parts.
            log.warning(
                "the IterableDataset is read from its epoch's begin: what was taken comes again, none is missed"
            )
            state = {**state, "taken": 0, "begun": 0}
    if state["persistent"] != loader.keeps_workers:
        log.warning(
            "the loader's workers lived on from epoch to epoch: %s, and now: %s; the epochs after this one "
            "are others than they would have been",
            state["persistent"],
            loader.keeps_workers,
        )
    if state["batch"] != loader.batch and not state["finished"]:
        state, numbers = _rebatched(loader, state), ()
    if state["finished"] and not loader.keeps_workers:
        loader.put_back(state["generators"])
        return _next(loader, None, clock)
    started = state["started"] or (state["began"] if state["finished"] else None)
    if loader.keeps_workers and started is not None:
        with loader.as_at(started):
            loader.start_workers(numbers)
    if state["finished"]:
        loader.put_back(state["generators"])
        epoch = _Epoch(loader.numbers(), started, loader.rounds(0, numbers), loader=loader)
        return _Batches(epoch, loader.begin())
    taken = state["taken"]
    passed = state["begun"] if numbers else loader.round_of(taken)
    began = state["began"] or loader.numbers()
    with loader.as_at(began):
        unseeded = started is not None and not loader.keeps_workers
        batches = loader.begin(passed, numbers, unseeded=unseeded)
        epoch = _Epoch(
            began, state["started"], loader.rounds(passed, numbers), loader=loader, taken=passed
        )
        if loader.replays and taken > passed:
            log.info("%d batches of an IterableDataset are read again to go on behind them", taken)
        epoch.take_again(batches, taken - passed, clock)
    # Others may draw from them, too; but a sampler that draws amid an epoch is ahead of the batches by as
    # much as workers are, and where that is not as much as it was it stands elsewhere by now.
    same = (state["batch"], state.get("ahead", loader.ahead)) == (loader.batch, loader.ahead)
    loader.put_back(state["generators"], samplers=same)
    return _Batches(epoch, batches)


def _of_a_batch(error: Exception) -> bool:
    """Whether a worker raised it for a batch: else that one is not done with, and comes the next time.

    torch raises in this process what came from another one in one place (`torch._utils.ExceptionWrapper`, 2.9-2.14), and a
    time-out or the end of a worker elsewhere; by their types and texts they may be alike.
    """
    return any(
        frame.f_code.co_name == "reraise" and frame.f_globals.get("__name__") == "torch._utils"
        for frame, _ in traceback.walk_tb(error.__traceback__)
    )


def _rebatched(loader: Remade, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same place in batches of another size, or the last one before it, so that nothing is missed."""
    was, now, taken = state["batch"], loader.batch, state["taken"]
    # Each worker reads a part of its own of an `IterableDataset`, and is as far as whole rounds are.
    readers = max(loader.workers, 1) if loader.replays else 1
    # Batches of no fixed size tell no place.
    there = taken // readers * was // now * readers if was and now else 0
    again = f"{taken * was - there * (now or 0):,} samples" if was else "what was taken before"
    log.warning(
        "the data loader's batches are of %s samples where they were of %s: it goes on at batch %d of its "
        "epoch, %s come again, none is missed, and random numbers inside its workers start anew",
        now or "no fixed number of",
        was or "no fixed number of",
        there,
        again,
    )
    return {**state, "taken": there, "begun": there}


def _refused(loader: Any) -> str:
    """What it is instead, or ""."""
    kind = type(loader)
    if not isinstance(loader, DataLoader):
        return kind.__name__
    if kind.__iter__ is not DataLoader.__iter__:
        own = (
            " (it has a state of its own: give it as it is)" if hasattr(kind, "state_dict") else ""
        )
        return f"{kind.__name__}, which iterates in its own way{own}"
    if loader.num_workers and not loader.in_order:
        return "one with in_order=False, whose next batch is whichever is ready"
    if isinstance(loader.dataset, IterDataPipe | MapDataPipe):
        return f"one of a {type(loader.dataset).__name__}"
    return ""
