"""Cordon: no new work lands on a node that is leaving. Beside the flush, never in its way."""

from typing import Protocol, runtime_checkable

from evacd.facts import Order


class Unanswered(str):
    """What went wrong for want of an answer: it is worth another try later."""

    __slots__ = ()


class Cordon(Protocol):
    """One scheduler's way to be told. Failures are answers, not exceptions."""

    @property
    def name(self) -> str:
        """For logs and the report: ``command``."""
        ...

    async def close(self, order: Order, *, seconds_left: float) -> str | None:
        """Let no new work land here. Returns what went wrong, or None.

        After an `Unanswered` it is called again, with the order as it is by then. Ends within the implementation's own time limit, whatever the far end does.
        """
        ...

    async def reopen(self, order: Order, *, reason: str) -> str | None:
        """Undo what `close` did, and only that. Returns what went wrong, or None.

        Called again after an `Unanswered`.
        """
        ...


@runtime_checkable
class Following(Cordon, Protocol):
    """One that is told more of an order than its beginning, and remembers elsewhere what it did."""

    async def amended(self, order: Order, *, seconds_left: float) -> str | None:
        """The order, for which it is closed, has less time or is surer. As `close` otherwise."""
        ...

    async def emptied(
        self, order: Order, *, kept: int, lost: int, seconds_left: float
    ) -> str | None:
        """Nothing is left to be saved, *kept* jobs are and *lost* are not.

        Called again where that changes. May be cancelled: the order is withdrawn then, or was
        amended, and it is called again. Returns what went wrong, or None.
        """
        ...

    async def left_over(self) -> str | None:
        """The kernel boot id under which an earlier daemon closed it; None where none did.

        Takes as long as it takes to find that out; may be cancelled.
        """
        ...
