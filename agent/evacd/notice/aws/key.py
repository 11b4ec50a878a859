"""One key of EC2's metadata as a source: asked, read, compared with what stood before."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn, TypeAlias

from evacd.clock import Clock
from evacd.facts import Cancelled, Probe, Unknown
from evacd.notice import when
from evacd.notice.aws.reading import NOTHING, Found, Reading, Unreadable
from evacd.notice.aws.token import Imds
from evacd.notice.metadata import Failed
from evacd.notice.polled import Polled
from evacd.notice.standing import Said, Standing

PERIOD_SECONDS = 1.0

Read: TypeAlias = Callable[[str], Reading | Unreadable]


class KeySource:
    """Hears what one key announces; an absent key (404) announces nothing."""

    def __init__(
        self,
        name: str,
        key: str,
        read: Read,
        imds: Imds,
        clock: Clock,
        *,
        period: float = PERIOD_SECONDS,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Make it ready; it asks nothing yet.

        Args:
            key: Below ``meta-data/``.
            read: What its text says; pure.
            period: Seconds between questions.
            jitter: Uniform in [0, 1), for the back-off.

        Raises:
            ValueError: *period* is not positive.
        """
        self._name = name
        self._key = key
        self._read = read
        self._imds = imds
        self._clock = clock
        self._standing = Standing(name)
        self._polled = Polled(self._look, period=period, clock=clock, jitter=jitter)

    @property
    def name(self) -> str:
        """See `Source`."""
        return self._name

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
        answer = await self._imds.get(self._key)
        if isinstance(answer, Failed):
            return (Unknown(self.name, answer.reason, answer.cure),)
        reading = NOTHING if answer.status == 404 else self._read(answer.body)
        if isinstance(reading, Unreadable):
            return (
                Unknown(
                    self.name, f"{self._key}: {reading.reason}", "is this EC2's metadata service?"
                ),
            )
        utc = self._clock.utc()
        sight = when.Sight(
            self._clock.monotonic(), utc, when.skew(answer.headers.get("date"), utc=utc)
        )
        return self._heard(reading, sight)

    def _heard(self, reading: Reading, sight: when.Sight) -> tuple[Probe, ...]:
        if reading.unread and not reading.found:
            return (Unknown(self.name, f"{self._key}: {reading.unread}"),)
        # A notice is told without its unreadable neighbours: its source does answer. But what is
        # missing may be one of those, so then nothing is over.
        probes = self._standing.hear(
            [_said(found, sight) for found in reading.found],
            now=sight.monotonic,
            whole=not reading.unread,
        )
        return tuple(
            replace(probe, reason=reading.gone.get(probe.id) or f"{self._key} no longer says so")
            if isinstance(probe, Cancelled)
            else probe
            for probe in probes
        )


def _said(found: Found, sight: when.Sight) -> Said:
    reckoned = when.deadline(found.date, sight=sight, most=found.most)
    detail = found.detail
    if reckoned.suspect and found.date is not None:
        detail += f"; {reckoned.suspect}"
    return Said(
        id=found.id,
        kind=found.kind,
        confidence=found.confidence,
        deadline=reckoned.deadline,
        dated=str(found.date),
        detail=detail,
        gone="",
    )
