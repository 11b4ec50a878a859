"""What the daemon does while no order runs: it trickles, keeps an eye on what is at risk, drills."""

from collections.abc import Mapping
from typing import Any

import structlog

from evac.wire import Accepted, Drill, Message, Refuse
from evacd.drill import Drills
from evacd.quiet import Trickle
from evacd.readiness import Readiness

log = structlog.get_logger()


class Calm:
    """The parts of quiet time, as the daemon sees them.

    Args:
        trickles: By lane; empty where nothing is to trickle.
    """

    def __init__(
        self, readiness: Readiness, drills: Drills, trickles: Mapping[str, Trickle]
    ) -> None:
        self._readiness = readiness
        self._drills = drills
        self._trickles = trickles

    def tick(self) -> None:
        """Time has passed: see what has changed, which is too much work for each happening."""
        self._readiness.look()
        self.wake()

    def wake(self) -> None:
        """Something was staged, or became durable."""
        for trickle in self._trickles.values():
            trickle.wake()

    async def trickle(self, lane: str) -> None:
        """Work on *lane* until cancelled; ends at once where nothing is to trickle."""
        if lane in self._trickles:
            await self._trickles[lane].run()

    def drill(self, message: Drill) -> Message:
        """Begin a drill, or say why not."""
        reason = self._drills.begin(message)
        return Refuse(reason) if reason else Accepted()

    def stop(self) -> None:
        """The daemon stops: a drill that runs is of no use any more."""
        self._drills.give_way()

    def shown(self) -> Mapping[str, Any]:
        """For the status."""
        return {"risk": self._readiness.shown(), "drill": self._drills.shown()}


def tell(name: str, data: Mapping[str, Any]) -> None:
    """Log what trickles: a person hears of what became safe, and of what did not."""
    facts = {key: value for key, value in data.items() if key != "generation"}
    if "generation" in data:
        facts["step"] = data["generation"]["step"]
    match name:
        case "trickle.finished":
            log.info(name, **facts)
        case "trickle.failed" | "trickle.crowded":
            log.warning(name, **facts)
        case _:
            log.debug(name, **facts)
