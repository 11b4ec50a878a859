"""What a put tells of its progress when it takes several tries."""

from collections.abc import Callable
from threading import Lock


class Told:
    """Tells of further bytes, of no byte twice: a later attempt begins at the first one again.

    Args:
        progress: As `Store.put` takes it.
    """

    def __init__(self, progress: Callable[[int], None] | None) -> None:
        self._progress = progress
        self._told = 0
        self._lock = Lock()  # several threads write one body

    def attempt(self) -> Callable[[int], None]:
        """The *progress* of one attempt."""
        written = 0

        def further(nbytes: int) -> None:
            nonlocal written
            with self._lock:
                written += nbytes
                step = max(written - self._told, 0)
                self._told += step
            if self._progress is not None and step:
                self._progress(step)

        return further
