"""What all tests share."""

import asyncio


def pytest_configure() -> None:
    # pytest-asyncio asks for "the current loop" to put it back later. Where none was ever set,
    # Python 3.11 makes one for it, which nobody closes: a warning at the end, and so an error.
    asyncio.set_event_loop(None)
