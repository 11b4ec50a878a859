"""Blocking work in pieces that a few threads share; the first failure ends it for all."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from threading import Lock

from evac.store.threads import SHARED, Threads


class Errands:
    """Pieces named by a number, each done once by whichever thread is free.

    Args:
        numbers: In the order in which they are begun.
        work: Does one piece.
        lender: Whose threads help.
    """

    def __init__(
        self, numbers: Sequence[int], work: Callable[[int], None], lender: Threads = SHARED
    ) -> None:
        self._lender = lender
        self._numbers = numbers
        self._work = work
        self._lock = Lock()
        self._next = 0
        self._error: Exception | None = None

    @property
    def failed(self) -> bool:
        """Whether a piece has failed: what is done now is for nothing."""
        return self._error is not None

    def run(self, threads: int) -> None:
        """Do them all, in this thread and in up to *threads* - 1 of the lender's that are idle.

        Raises:
            Exception: The first that any piece raised; no thread works on any more then.
        """
        wanted = min(threads, len(self._numbers)) - 1
        lent: list[Future[None]] = []
        # While the interpreter shuts down nobody lends any more: then this thread does it all.
        with suppress(RuntimeError):
            lent.extend(self._lender.pool().submit(self._drain) for _ in range(wanted))
        self._drain()
        for helper in lent:
            if not helper.cancel():  # one that never got a thread has nothing left to do
                helper.result()
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # it would hold this frame, and so the caller's memory, in a circle

    def _drain(self) -> None:
        try:
            while (number := self._take()) is not None:
                self._work(number)
        except Exception as error:  # noqa: BLE001 - handed to the thread that asked
            with self._lock:
                self._error = self._error or error

    def _take(self) -> int | None:
        with self._lock:
            if self._error is not None or self._next >= len(self._numbers):
                return None
            self._next += 1
            return self._numbers[self._next - 1]
