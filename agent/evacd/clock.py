"""Time is an argument: shells hold a `Clock`, the core receives `now`."""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """What tells the time; tests bring their own."""

    def monotonic(self) -> float:
        """Seconds on CLOCK_MONOTONIC, the event loop's clock; every deadline is on it."""
        ...

    def utc(self) -> datetime:
        """The wall clock, timezone-aware. Only notice sources and the journal ask."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def monotonic(self) -> float:
        """See `Clock`."""
        return time.monotonic()  # noqa: TID251 - the one place that may

    def utc(self) -> datetime:
        """See `Clock`."""
        return datetime.now(UTC)
