"""Logs who comes, who goes and who is turned away: each as often as is good for a log, whatever is done on purpose."""

from collections.abc import Callable, Mapping
from typing import Any

import structlog

from evacd.allowance import Complaints
from evacd.clock import Clock

log = structlog.get_logger()


class Comings:
    """One for all workloads of a node.

    Args:
        count: Told each refusal, by its name in the metrics.
    """

    def __init__(self, clock: Clock, count: Callable[[str, Mapping[str, Any]], None]) -> None:
        self._clock = clock
        self._count = count
        self._complaints = Complaints()
        # A job of many ranks comes at once; one that comes and goes for ever fills no log.
        self._comings = Complaints(burst=256, every=1.0)

    def said(self, write: Callable[..., Any], name: str, unit: str, **facts: object) -> bool:
        """Log that somebody of *unit* came or went; False where that was too often just now."""
        owner = unit.rpartition("/")[0]
        unsaid = self._comings.take(name, owner, now=self._clock.monotonic())
        if unsaid is None:
            return False
        write(name, unit=unit, **facts, **({"unsaid": unsaid} if unsaid else {}))
        return True

    def denied(self, what: str, pid: int, uid: int, reason: str) -> None:
        """Counted each time, and logged once a minute: who does wrong on purpose does so often."""
        self._count(f"denied.{what}", {})
        name = "workload.dropped" if what == "dropped" else "workload.denied"
        unsaid = self._complaints.take(what, uid, now=self._clock.monotonic())
        if unsaid is not None:
            more = {"unsaid": unsaid} if unsaid else {}
            said = {} if what == "dropped" else {"what": what}
            log.warning(name, **said, pid=pid, uid=uid, reason=reason, **more)
