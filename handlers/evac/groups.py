"""One error in place of a group of them: tasks side by side that fail, fail for the same reason."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_error() -> Iterator[None]:
    """Raise the first error of a group that the block raises, so that callers can catch it by its kind."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        try:
            raise error from None
        finally:
            del error, group  # they would hold this frame, and so their own, in a circle
