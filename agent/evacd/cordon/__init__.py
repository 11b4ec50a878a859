"""Cordon: no new work lands on a node that is leaving. Beside the flush, never in its way."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from evacd.facts import Order


class Unanswered(str):
    """What went wrong for want of an answer: it is worth another try later."""

    __slots__ = ()


class Cordon(Protocol):
    """One scheduler's way to be told. Failures are answers, not exceptions.

    One that keeps no work off itself says so: ``closes`` is False; see `closes`.
    """

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


def closes(cordon: Cordon) -> bool:
    """Whether it keeps work off: not where it only tells, or another handler does."""
    return bool(getattr(cordon, "closes", True))


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


@runtime_checkable
class Telling(Following, Protocol):
    """One that keeps no work off and only tells of it: nothing has to wait for it."""

    async def heard(self, order: str, event: str, data: Mapping[str, Any]) -> str | None:
        """What another cordon did, as the report has it. Returns what went wrong, or None.

        Args:
            order: The order's id.
            event: Its name: ``cordon.failed``.
            data: ``name`` of the cordon, ``reason``, and with a failure ``what`` failed.
        """
        ...
