"""A fixed end that is known beforehand, such as that of an EC2 Capacity Block.

EC2 tells it by EventBridge only, and begins to end a block's instances 30 minutes before it:
docs.aws.amazon.com/AWSEC2/latest/UserGuide, "Monitor Capacity Blocks".

The date is turned into a deadline once, at the first look, and stays on the monotonic clock:
a step of the wall clock, however it lasts, neither empties the node early nor gives it time.
So that clock has to be right when the daemon begins, and another end, or a clock that was put
right by more than a few seconds, needs a restart. Turned down: to follow a clock that was
slow and is put right. Nothing tells that from one that is put wrong.
"""

import math
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import NoReturn

from evacd.clock import Clock
from evacd.facts import Confidence, Probe, Unknown
from evacd.notice import when
from evacd.notice.polled import Polled
from evacd.notice.standing import Said, Standing

CAPACITY_BLOCK_EARLY_SECONDS = 1800.0
PERIOD_SECONDS = 5.0


class CalendarSource:
    """Announces one end, from the start of the daemon on."""

    name = "calendar"

    def __init__(
        self,
        clock: Clock,
        *,
        end: datetime,
        early_seconds: float = CAPACITY_BLOCK_EARLY_SECONDS,
        kind: str = "end",
        boot: str = "",
        period: float = PERIOD_SECONDS,
    ) -> None:
        """Make it ready.

        Args:
            end: Timezone-aware.
            early_seconds: The machine goes so long before *end*; >= 0.
            kind: The notice's word for it.
            boot: Kernel boot id.
            period: Seconds between two times that it is told.

        Raises:
            ValueError: *end* has no time zone, or a number is out of range.
        """
        if end.tzinfo is None:
            raise ValueError(f"the end {end.isoformat()} has no time zone")
        if not 0 <= early_seconds < math.inf:
            raise ValueError(f"{early_seconds} s before the end, expected 0 or more")
        self._clock = clock
        self._end = end
        self._early = timedelta(seconds=early_seconds)
        self._kind = kind
        self._id = f"calendar:{boot}" if boot else "calendar"
        self._standing = Standing(self.name)
        self._stands = False
        self._polled = Polled(self._look, period=period, clock=clock)

    @property
    def patience(self) -> float:
        """See `evacd.notice.patience_of`."""
        return self._polled.patience

    async def probe(self) -> Probe:
        """See `Source`."""
        return await self._polled.probe()

    async def watch(self, tell: Callable[[Probe], None]) -> NoReturn:
        """See `Source`."""
        await self._polled.watch(tell)

    async def _look(self) -> tuple[Probe, ...]:
        sight = when.Sight(self._clock.monotonic(), self._clock.utc())
        if not self._stands and sight.utc >= self._end:
            # It should be gone; an order at each start of the daemon would help nobody.
            reason = f"the end {self._end.isoformat()} has passed, and the machine runs"
            return (Unknown(self.name, reason, "correct the end or the clock, or remove it"),)
        deadline = when.deadline(self._end - self._early, sight=sight, most=None).deadline
        probes = self._standing.hear([self._said(deadline)], now=sight.monotonic)
        self._stands = True
        return probes

    def _said(self, deadline: float | None) -> Said:
        return Said(
            id=self._id,
            kind=self._kind,
            confidence=Confidence.PLANNED,
            deadline=deadline,
            # Always the same, so that the first reckoning holds.
            dated=self._end.isoformat(),
            detail=f"ends {self._early.total_seconds():.0f} s before {self._end.isoformat()}",
            gone="",
        )
