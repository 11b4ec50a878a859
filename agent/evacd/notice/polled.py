"""Asks for ever at a steady period; waits longer only while nothing is known and nothing stands.

The period is from the beginning of one question to the beginning of the next, so that a slow
answer does not make a poll of 1 s one of 3 s, and a service's limit per second holds.
"""

import asyncio
import math
import random
from collections.abc import Awaitable, Callable
from typing import NoReturn

from evacd.clock import Clock
from evacd.facts import Cancelled, Confidence, Noticed, Probe, Unknown

# No back-off is longer: it may hide a notice for so long.
BACKOFF_MOST_SECONDS = 5.0
# Far beyond the time-outs of any question, those that a user may set for his own included.
ANSWER_MOST_SECONDS = 120.0


class Polled:
    """The loop; what is asked, and what the answers mean, is the source's business."""

    def __init__(
        self,
        ask: Callable[[], Awaitable[tuple[Probe, ...]]],
        *,
        period: float,
        clock: Clock,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Make it ready; it asks nothing yet.

        Args:
            ask: One question; at least one probe, all of one moment.
            period: Seconds; more than 0.
            jitter: Uniform in [0, 1), for the back-off.

        Raises:
            ValueError: *period* is not positive.
        """
        if not 0 < period < math.inf:
            raise ValueError(f"the period is {period} s, expected more than 0")
        self._ask = ask
        self._period = period
        self._clock = clock
        self._jitter = jitter
        self._standing: set[str] = set()

    @property
    def patience(self) -> float:
        """See `evacd.notice.patience_of`."""
        return max(self._period, BACKOFF_MOST_SECONDS) + ANSWER_MOST_SECONDS

    async def probe(self) -> Probe:
        """Ask once; of several answers the one that matters most."""
        return weightiest(await self._ask())

    async def watch(self, tell: Callable[[Probe], None]) -> NoReturn:
        """Tell every answer in the moment it arrives, for ever."""
        failures = 0
        while True:
            asked = self._clock.monotonic()
            probes = await self._ask()
            for probe in probes:
                self._keep(probe)
                tell(probe)
            failed = any(isinstance(probe, Unknown) for probe in probes)
            failures = failures + 1 if failed and not self._standing else 0
            if failures:
                await asyncio.sleep(self._backoff(failures))
            else:
                await asyncio.sleep(max(0.0, asked + self._period - self._clock.monotonic()))

    def _keep(self, probe: Probe) -> None:
        match probe:
            case Noticed(notice):
                self._standing.add(notice.id)
            case Cancelled():
                self._standing.discard(probe.id)
            case _:
                pass

    def _backoff(self, failures: int) -> float:
        doubled = math.ldexp(self._period, min(failures - 1, 16))
        pause = min(BACKOFF_MOST_SECONDS, doubled) * (0.5 + 0.5 * self._jitter())
        return max(self._period, pause)


def weightiest(probes: tuple[Probe, ...]) -> Probe:
    """The surest notice, the earlier of equals; else a cancel, an unknown, a quiet.

    Raises:
        ValueError: There is none at all.
    """
    return max(probes, key=_weight)


def _weight(probe: Probe) -> tuple[int, float]:
    match probe:
        case Noticed(notice):
            deadline = math.inf if notice.deadline is None else notice.deadline
            return 2 + notice.confidence - Confidence.ADVISORY, -deadline
        case Cancelled():
            return 1, 0.0
        case Unknown():
            return 0, 0.0
        case _:
            return -1, 0.0
