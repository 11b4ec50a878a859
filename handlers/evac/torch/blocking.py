"""Coroutines for a blocking caller."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)


def first(group: BaseExceptionGroup[E]) -> E:
    """The first error in a group, however deep: store calls run side by side in the commit."""
    for error in group.exceptions:
        return first(error) if isinstance(error, BaseExceptionGroup) else error
    raise AssertionError("no group is empty")


def run(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What the coroutine returns; it runs in a loop of its own, in a thread of its own.

    So it may be called where a loop runs already: in a notebook, in an async program.
    """
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="evac-run") as pool:
        return pool.submit(lambda: asyncio.run(make())).result()
