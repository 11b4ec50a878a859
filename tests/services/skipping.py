"""A test whose service this machine cannot run is skipped, with the reason and the cure."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.services.process import Unavailable


@contextmanager
def or_skip() -> Iterator[None]:
    """What is started in this block is needed."""
    try:
        yield
    except Unavailable as why:
        pytest.skip(str(why))
