"""Say each kind of trouble once: a training loop meets it again at every step."""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from threading import Lock

log = logging.getLogger("evac")


class Complaints:
    """Any thread may complain."""

    def __init__(self) -> None:
        self.failed = 0
        self._said: set[str] = set()
        self._lock = Lock()

    def warn(self, kind: str, text: str) -> None:
        """Log *text* as a warning unless *kind* was complained about before."""
        if self._first(kind):
            log.warning("%s", text)

    def fail(self, kind: str, text: str, *, expected: bool = False) -> None:
        """Count a failure, and log it likewise; with its trace, unless such a thing is *expected*."""
        with self._lock:
            self.failed += 1
        if self._first(kind):
            log.warning("%s", text, exc_info=not expected)

    @contextmanager
    def counting(self, where: str) -> Generator[None, None, None]:
        """What fails in here is a failure, and no more than that."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - training goes on whatever this is; it is logged with its trace
            self.fail(type(error).__name__, f"{where}: {error!r}")

    def _first(self, kind: str) -> bool:
        with self._lock:
            first = kind not in self._said
            self._said.add(kind)
        return first
