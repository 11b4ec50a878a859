"""A thread that runs what it is handed, in order; nothing it runs can end it."""

import logging
from collections.abc import Callable
from queue import SimpleQueue
from threading import RLock, Thread

log = logging.getLogger("evac")


class Worker:
    """One daemon thread, started by the first piece of work."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        # A signal handler may call while its own thread is in here.
        self._starting = RLock()
        self._started = False

    def do(self, work: Callable[[], object]) -> None:
        """Run *work* after all that was handed over before; returns at once."""
        self._queue.put(work)
        with self._starting:
            if not self._started:
                self._started = True
                Thread(target=self._run, name=self._name, daemon=True).start()

    def stop(self) -> None:
        """End once the work handed over so far is done; waits for nothing."""
        self._queue.put(None)

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                work()
            except BaseException:  # sys.exit ends no more than the function that calls it
                log.exception("%s: %r raised; going on", self._name, work)
