"""Whether bytes have been seen to get out of this machine since the start. Pure: for readiness."""

from collections.abc import Iterable, Mapping

_WRITTEN = frozenset({"commit.finished", "trickle.finished"})


class Proof:
    """Begins with none; a lane whose store has once taken bytes counts as one that works."""

    def __init__(self, lanes: Iterable[str]) -> None:
        self._missing = dict.fromkeys(lanes, "nothing was written there yet")

    @property
    def missing(self) -> Mapping[str, str]:
        """What is not proven to work, and why."""
        return dict(self._missing)

    def worked(self, lane: str) -> None:
        """It took bytes."""
        self._missing.pop(lane, None)

    def failed(self, lane: str, reason: str) -> bool:
        """It took none; returns whether that is news. It is none where it once did."""
        if self._missing.get(lane, reason) == reason:
            return False
        self._missing[lane] = reason
        return True

    def happened(self, name: str) -> None:
        """An event of the path, as the report has it; most prove nothing.

        What another store takes in a lane's stead is as safe there.
        """
        if name in _WRITTEN:
            self._missing.clear()
