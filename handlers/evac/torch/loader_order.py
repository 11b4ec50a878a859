"""The order in which a sampler goes through the data, from some place on.

An epoch that began with some random numbers has the same order with the same numbers again, if its sampler draws from the
global ones when it begins. What it draws from them later on comes between what training draws, which no state
tells: that is noticed, and told once. Turned down: to give each sampler numbers of its own, with which a run
has another order than it has without evac.
"""

import logging
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, TypeAlias

from evac.torch.rank_state import read_rng

log = logging.getLogger("evac")

# Has a sampler begin; with what is to be called before the first place is asked for.
Begin: TypeAlias = Callable[[Any], tuple[Iterator[Any], Callable[[], None]]]
# Whose samplers draw when an epoch begins; "builtins" for no sampler.
_KNOWN = ("torch", "builtins")


class Order:
    """A sampler's order, from some place on.

    Attributes:
        passed: How much of it the next iterator passes over; None for all, without asking the sampler.
        start: Has the sampler begin; what it returns is called before the first place is asked for.
    """

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self._watch = _Watch(sampler)
        self._newest = _Rest(iter(()), 0, _nothing, self._watch)
        self.passed: int | None = 0
        self.start: Begin = as_it_is

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[Any]:
        if self.passed is None:
            return iter(())
        order, first = self.start(self._sampler)
        self._newest = _Rest(order, self.passed, first, self._watch)
        return self._newest

    def pass_over(self) -> None:
        """Have the newest iterator do that now."""
        self._newest.pass_over()

    def end(self) -> None:
        """Have it end."""
        self._newest.end()


class _Rest(Iterator[Any]):
    def __init__(
        self,
        order: Iterator[Any],
        passed: int,
        first: Callable[[], None],
        watch: "_Watch",
    ) -> None:
        self._order = order
        self._passed = passed
        self._first: Callable[[], None] | None = first
        self._watch = watch
        self._drawn = False

    def __next__(self) -> Any:
        self.pass_over()
        if not self._drawn:
            self._drawn = True
            return next(self._order)
        return self._watch.next(self._order)

    def pass_over(self) -> None:
        first, self._first = self._first, None
        if first is not None:
            first()
        passed, self._passed = self._passed, 0
        for _ in islice(self._order, passed):
            self._drawn = True

    def end(self) -> None:
        self._order, self._passed = iter(()), 0


class _Watch:
    """Says it once where a sampler draws from the global numbers amid an epoch, between what training draws."""

    def __init__(self, sampler: Any) -> None:
        parts = (sampler, getattr(sampler, "sampler", None))
        # torch's draw when an epoch begins.
        own = [one for one in map(type, parts) if one.__module__.partition(".")[0] not in _KNOWN]
        self._name = own[0].__name__ if own else ""

    def next(self, order: Iterator[Any]) -> Any:
        """The next of *order*, of which it is not the first."""
        if not self._name:
            return next(order)
        before = _stand()
        place = next(order)
        if _stand() != before:
            log.warning(
                "%s draws from the global random numbers amid an epoch, where training draws, too: a resumed "
                "epoch goes on in another order, which repeats samples and misses others; "
                "give it a generator of its own, as an attribute",
                self._name,
            )
            self._name = ""
        return place


def _stand() -> tuple[Any, ...]:
    rng = read_rng()
    numpy = rng["numpy"]
    # Legacy numpy's: a kind, an array, where in it.
    return rng["python"], rng["torch"].numpy().tobytes(), numpy and (numpy[1].tobytes(), numpy[2:])


def as_it_is(sampler: Any) -> tuple[Iterator[Any], Callable[[], None]]:
    """Whatever the numbers are; nothing is to be called."""
    return iter(sampler), _nothing


def _nothing() -> None: ...
