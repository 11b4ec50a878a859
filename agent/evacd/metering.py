"""Counts what the daemon asks of its stores: calls, failures and how long they take."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from evac.store import Owner, Store
from evac.store.metered import Metered, Observation
from evacd.clock import Clock


def metered(
    opens: Callable[[str, Owner], Store],
    count: Callable[[str, Mapping[str, Any]], None],
    clock: Clock,
) -> Callable[[str, Owner], Store]:
    """Opens each store once, and counts what is asked of it.

    Nothing is tried again in there: the flush does that behind everybody else, and quiet time comes by again.
    """

    def opened(url: str, owner: Owner) -> Store:
        def observe(one: Observation) -> None:
            facts = {"verb": one.verb, "result": one.result, "seconds": one.seconds}
            count("store.called", {"store": url, **facts})

        return Metered(opens(url, owner), observe, clock=clock.monotonic)

    return cache(opened)
