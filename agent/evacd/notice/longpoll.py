"""Asks one key for ever: plainly first, then by hanging GET, plainly again where that fails.

A hanging GET on a key that has already changed waits for the *next* change, so every start
and every failure is followed by a plain read. Where hanging GETs keep failing, or answer
without an ETag, plain reads go on at a short period, and hanging is tried again now and then.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, Protocol

from evacd.clock import Clock
from evacd.facts import Probe, Unknown
from evacd.notice.metadata import Answer, Failed


class Ask(Protocol):
    """One request for the key."""

    async def __call__(self, *, etag: str) -> Answer | Failed:
        """Plain and at once where *etag* is "", else held back until it is out of date."""
        ...


@dataclass(frozen=True)
class Pace:
    """How often a key is asked for; all in seconds.

    Attributes:
        poll: Between plain reads, and at least between answers that say nothing new.
        backoff_first: The longest first pause after a failure; it doubles with each.
        backoff_most: No pause is longer: it may hide a notice for so long.
        hang_failures: So many failed hanging GETs in a row, and plain reads take over ...
        hang_again: ... for so long.
    """

    poll: float = 1.0
    backoff_first: float = 0.25
    backoff_most: float = 5.0
    hang_failures: int = 3
    hang_again: float = 60.0


class LongPoll:
    """The loop; what the answers mean is the judge's business."""

    def __init__(
        self,
        ask: Ask,
        judge: Callable[[Answer | Failed], Probe],
        clock: Clock,
        *,
        pace: Pace,
        jitter: Callable[[], float],
    ) -> None:
        """Make it ready; it asks nothing yet.

        Args:
            jitter: Uniform in [0, 1).
        """
        self._ask = ask
        self._judge = judge
        self._clock = clock
        self._pace = pace
        self._jitter = jitter

    async def once(self) -> Probe:
        """One plain read."""
        return self._judge(await self._ask(etag=""))

    async def watch(self, tell: Callable[[Probe], None]) -> NoReturn:
        """Tell every answer in the moment it arrives, for ever."""
        etag, failures, hang_failures, plain_until = "", 0, 0, 0.0
        last: Probe | None = None
        while True:
            hanging, asked = etag != "", self._clock.monotonic()
            answer = await self._ask(etag=etag)
            probe = self._judge(answer)
            tell(probe)
            now = self._clock.monotonic()
            if isinstance(probe, Unknown) or isinstance(answer, Failed):
                etag, failures, last = "", failures + 1, None
                if hanging:
                    hang_failures += 1
                if hang_failures >= self._pace.hang_failures:
                    hang_failures, plain_until = 0, now + self._pace.hang_again
                await asyncio.sleep(self._backoff(failures))
                continue
            failures = 0
            if hanging:
                hang_failures = 0
            etag = answer.etag if now >= plain_until else ""
            if etag == "":
                await asyncio.sleep(self._pace.poll)
            elif hanging and probe == last:
                # Something that answers at once although nothing changed must not be asked
                # in a spin; a true hanging GET took longer than this anyway.
                await asyncio.sleep(max(0.0, asked + self._pace.poll - now))
            last = probe

    def _backoff(self, failures: int) -> float:
        doubled = math.ldexp(self._pace.backoff_first, min(failures - 1, 16))
        return min(self._pace.backoff_most, doubled) * (0.5 + 0.5 * self._jitter())
