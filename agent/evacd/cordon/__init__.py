"""Cordon: no new work lands on a node that is leaving. Beside the flush, never in its way."""

from typing import Protocol

from evacd.facts import Order


class Cordon(Protocol):
    """One scheduler's way to be told. Failures are answers, not exceptions."""

    @property
    def name(self) -> str:
        """For logs and the report: ``command``."""
        ...

    async def close(self, order: Order, *, seconds_left: float) -> str | None:
        """Let no new work land here. Returns what went wrong, or None.

        Ends within the implementation's own time limit, whatever the far end does.
        """
        ...

    async def reopen(self, order: Order, *, reason: str) -> str | None:
        """Undo what `close` did, and only that. Returns what went wrong, or None."""
        ...
