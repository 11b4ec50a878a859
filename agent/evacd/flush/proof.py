"""Whether bytes are seen to get out of this machine. Pure: for readiness, and for what would be lost now."""

from collections.abc import Iterable, Mapping
from typing import Any

from evac.store import is_durable

_WRITTEN = frozenset({"commit.finished", "trickle.finished"})
# So many generations in a row that a store did not take in quiet time, and it counts as one that takes nothing:
# each of them had tries of its own.
_IN_VAIN = 3


class Proof:
    """Begins with none; one durable store that has once taken bytes is enough.

    Who is saved goes to whichever works. Memory of a peer proves nothing: it is no safe place.
    """

    def __init__(self, lanes: Iterable[str]) -> None:
        self._why = dict.fromkeys(lanes, "nothing was written there yet")
        self._dead: dict[str, str] = {}
        self._works: set[str] = set()
        self._in_vain: dict[str, int] = {}

    @property
    def missing(self) -> Mapping[str, str]:
        """What is not proven to work, and why; nothing as soon as there is a place to save to."""
        if any(map(is_durable, self._works)):
            return {}
        return {lane: why for lane, why in self._why.items() if is_durable(lane)}

    @property
    def dead(self) -> Mapping[str, str]:
        """What was tried and takes no byte, and why; peers' memory, too."""
        return self._dead

    def worked(self, lane: str) -> None:
        """It took bytes."""
        for kept in (self._why, self._dead, self._in_vain):
            kept.pop(lane, None)
        self._works.add(lane)

    def failed(self, lane: str, reason: str) -> bool:
        """It took none; returns whether that is news. It is none where it once did."""
        if self._why.get(lane, reason) == reason:
            return False
        self._why[lane] = self._dead[lane] = reason
        return True

    def happened(self, name: str, data: Mapping[str, Any]) -> bool:
        """An event of the path, as the report has it; most prove nothing.

        Returns:
            Whether it is news that its store takes nothing any more.
        """
        if name in _WRITTEN:
            self.worked(data["store"])
        if name != "trickle.failed" or data["fenced"]:
            return False
        lane = data["store"]
        self._in_vain[lane] = self._in_vain.get(lane, 0) + 1
        if self._in_vain[lane] < _IN_VAIN:
            return False
        news = lane in self._works
        self._works.discard(lane)
        self._why[lane] = self._dead[lane] = data["reason"]
        return news
