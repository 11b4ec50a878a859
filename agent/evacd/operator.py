"""The operator as a source of notices: drain and cancel, from the admin socket. Pure."""

from itertools import count

from evac.wire import Cancel, Drain
from evacd.facts import Cancelled, Confidence, Notice, Noticed

NAME = "operator"


class Operator:
    """One drain at a time; asking again amends it."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._drain: str | None = None

    def drain(self, message: Drain, *, now: float) -> Noticed:
        """What a drain means.

        Args:
            now: Monotonic seconds.
        """
        if self._drain is None:
            self._drain = f"{NAME}:{next(self._numbers)}"
        return Noticed(
            Notice(
                source=NAME,
                kind="drain",
                id=self._drain,
                confidence=Confidence.CERTAIN,
                deadline=now + message.seconds,
                seen=now,
                detail=message.reason,
            )
        )

    def resume(self, id: str, reason: str, *, deadline: float, now: float) -> Noticed:
        """A drain of before a restart of the daemon stands again, so that it can be cancelled.

        Args:
            deadline: Monotonic seconds; may be past.
            now: Monotonic seconds.
        """
        self._drain = id
        return Noticed(Notice(NAME, "drain", id, Confidence.CERTAIN, deadline, now, reason))

    def cancel(self, _: Cancel) -> Cancelled | None:
        """What a cancel means; None where no drain is running."""
        if self._drain is None:
            return None
        drain, self._drain = self._drain, None
        return Cancelled(NAME, drain, "cancelled by operator")
