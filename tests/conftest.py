"""What all tests share."""

import asyncio
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# By default an example that takes longer than 0.2 s fails its law: that says how busy the machine is.
settings.register_profile(
    "evac", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("evac")


def pytest_configure() -> None:
    # pytest-asyncio asks for "the current loop" to put it back later. Where none was ever set,
    # Python 3.11 makes one for it, which nobody closes: a warning at the end, and so an error.
    asyncio.set_event_loop(None)


@pytest.fixture(autouse=True)
def variables() -> Iterator[None]:
    """What is tested may set variables, for the processes that it starts: not for the next test's."""
    before = dict(os.environ)
    yield
    if dict(os.environ) != before:
        os.environ.clear()
        os.environ.update(before)
