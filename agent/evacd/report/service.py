"""What this service says of itself to systemd, beat by beat."""

from collections.abc import Mapping, Sequence
from os import environ as _environ

import structlog

from evacd.report.systemd import WATCHDOG, extend, notify, watchdog_seconds

log = structlog.get_logger()

# A stop may take so much longer from each beat on; well above the longest pause between two.
_EXTEND_SECONDS = 60.0


class Service:
    """Fed by the loop. systemd kills and starts again whom it does not hear."""

    def __init__(self, *, environ: Mapping[str, str] = _environ) -> None:
        self._environ = environ
        self._watched = watchdog_seconds(environ=environ)
        self._silent = ""

    def pause(self, most: float) -> float:
        """Seconds between two beats, *most* at most."""
        return most if self._watched is None else min(most, self._watched / 2)

    def beat(
        self, *, dead: Sequence[str], stuck: Sequence[str], stopping: bool, busy: bool
    ) -> None:
        """One turn of the loop.

        Args:
            dead: Tasks that should run for ever and do not.
            stuck: Sources of notices that say nothing any more, not even that nobody answers.
                One that is refused says so, and is none of them.
            stopping: It was told to stop, and ends its tasks itself.
            busy: What an order has to save is still moving.
        """
        if stopping and busy:
            notify(extend(_EXTEND_SECONDS), environ=self._environ)
        wrong = ", ".join(
            [*(f"{one} ended" for one in dead), *(f"{one} is stuck" for one in stuck)]
        )
        if wrong and not stopping:
            if wrong != self._silent:
                log.error("daemon.ailing", reason=wrong, watched=self._watched is not None)
            self._silent = wrong
            return
        self._silent = ""
        if self._watched is not None:
            notify(WATCHDOG, environ=self._environ)
