"""Whether bytes have been seen to get out of this machine since the start. Pure: for readiness."""

from collections.abc import Iterable, Mapping
from typing import Any

from evac.store import is_durable

_WRITTEN = frozenset({"commit.finished", "trickle.finished"})


class Proof:
    """Begins with none; one durable store that has once taken bytes is enough.

    Who is saved goes to whichever works. Memory of a peer proves nothing: it is no safe place.
    """

    def __init__(self, lanes: Iterable[str]) -> None:
        self._why = dict.fromkeys(lanes, "nothing was written there yet")
        self._dead: dict[str, str] = {}
        self._proven = False

    @property
    def missing(self) -> Mapping[str, str]:
        """What is not proven to work, and why; nothing as soon as there is a place to save to."""
        if self._proven:
            return {}
        return {lane: why for lane, why in self._why.items() if is_durable(lane)}

    @property
    def dead(self) -> Mapping[str, str]:
        """What was tried and has never taken a byte, and why; peers' memory, too."""
        return self._dead

    def worked(self, lane: str) -> None:
        """It took bytes."""
        self._why.pop(lane, None)
        self._dead.pop(lane, None)
        self._proven = self._proven or is_durable(lane)

    def failed(self, lane: str, reason: str) -> bool:
        """It took none; returns whether that is news. It is none where it once did."""
        if self._why.get(lane, reason) == reason:
            return False
        self._why[lane] = self._dead[lane] = reason
        return True

    def happened(self, name: str, data: Mapping[str, Any]) -> None:
        """An event of the path, as the report has it; most prove nothing."""
        if name in _WRITTEN:
            self.worked(data["store"])
