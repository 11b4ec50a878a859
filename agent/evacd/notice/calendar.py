"""A fixed end that is known beforehand, such as that of an EC2 Capacity Block.

EC2 tells it by EventBridge only, and begins to end a block's instances 30 minutes before it:
docs.aws.amazon.com/AWSEC2/latest/UserGuide, "Monitor Capacity Blocks".
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
            period: Seconds between two looks at the clock.

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
        # Nothing but our own clock tells this date. Where that was slow and is put right, less
        # time is left than first thought; it never becomes more.
        deadline = when.deadline(self._end - self._early, sight=sight, most=None).deadline
        probes = self._standing.hear([self._said(deadline, sight.utc)], now=sight.monotonic)
        self._stands = True
        return probes

    def _said(self, deadline: float | None, utc: datetime) -> Said:
        return Said(
            id=self._id,
            kind=self._kind,
            confidence=Confidence.PLANNED,
            deadline=deadline,
            # Never the same: it is reckoned anew at each look.
            dated=utc.isoformat(),
            detail=f"ends {self._early.total_seconds():.0f} s before {self._end.isoformat()}",
            gone="",
        )
