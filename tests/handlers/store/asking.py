"""Everything that a store can be asked, to see what each call says when something is wrong."""

import asyncio
from collections.abc import Awaitable, Callable

from evac.errors import StoreError
from evac.store import Store
from tests.handlers.store.contract import MIB


def calls(store: Store) -> dict[str, Callable[[], Awaitable[object]]]:
    """Everything that a store can be asked."""
    return {
        "put": lambda: store.put("a/b", memoryview(b"x")),
        "put in parts": lambda: store.put("a/c", memoryview(bytearray(17 * MIB))),
        "create": lambda: store.create("a/d", b"x"),
        "get": lambda: store.get("a/e"),
        "read": lambda: store.read("a/e", 0, memoryview(bytearray(4))),
        "list": lambda: store.list("a"),
        "delete": lambda: store.delete("a/b"),
    }


async def failures(store: Store) -> dict[str, StoreError | None]:
    """What each call raises, all at once."""
    found: dict[str, StoreError | None] = {}

    async def attempt(name: str, call: Callable[[], Awaitable[object]]) -> None:
        found[name] = None
        try:
            await call()
        except StoreError as error:
            found[name] = error

    async with asyncio.TaskGroup() as tasks:
        for name, call in calls(store).items():
            tasks.create_task(attempt(name, call))
    return found
