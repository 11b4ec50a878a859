"""The own Kubernetes node as a source: list once, then watch, list again where that fails.

Several marks may stand at once; each is a notice with its own id. A list that fails is
`Unknown`. A watch that fails while lists succeed costs time and not certainty, so it only
degrades the source: lists go on at the back-off's pace.
"""

import asyncio
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NoReturn

import structlog

from evacd.clock import Clock
from evacd.facts import Cancelled, Confidence, Notice, Noticed, Probe, Quiet, Unknown
from evacd.kube import Failed
from evacd.notice.longpoll import Pace
from evacd.notice.node.api import Listed, NodeApi
from evacd.notice.node.defaults import DEFAULT_RULES
from evacd.notice.node.frames import Bookmark, Changed, Expired
from evacd.notice.node.rules import Marks, Match, Rule, read
from evacd.notice.when import Sight, deadline, skew

# A date that comes nearer by less than this is the same date, told again.
JITTER_SECONDS = 1.0

log = structlog.get_logger()


class NodeSource:
    """What is marked on this node, as notices."""

    name = "node"

    def __init__(
        self,
        api: NodeApi,
        clock: Clock,
        *,
        rules: Iterable[Rule] = DEFAULT_RULES,
        pace: Pace | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Make it ready; it asks nothing yet.

        Args:
            rules: In order; of those on the same mark the first that is met counts.
            jitter: Uniform in [0, 1), for the back-off.
        """
        self._api = api
        self._clock = clock
        self._rules = tuple(rules)
        self._pace = pace or Pace()
        self._jitter = jitter
        self._standing: dict[str, Notice] = {}
        self._marks = Marks()
        self._skew = 0.0
        self._degraded = ""

    @property
    def degraded(self) -> str:
        """Why changes are polled for and not told at once; "" where they are told."""
        return self._degraded

    @property
    def shutting_down(self) -> bool:
        """The kubelet said so when it was last heard of: a second sign for a SIGTERM."""
        return self._marks.shutting_down

    async def probe(self) -> Probe:
        """See `Source`; of several notices the most urgent."""
        answer = await self._api.get()
        if isinstance(answer, Failed):
            return Unknown(self.name, answer.reason, answer.cure)
        return min(self._listed(answer), key=_urgency)

    async def watch(self, tell: Callable[[Probe], None]) -> NoReturn:
        """See `Source`."""
        failures = 0
        while True:
            answer = await self._api.get()
            if isinstance(answer, Failed):
                failures += 1
                tell(Unknown(self.name, answer.reason, answer.cure))
            else:
                for probe in self._listed(answer):
                    tell(probe)
                failures = 0 if await self._follow(answer.version, tell) else failures + 1
            await asyncio.sleep(self._backoff(max(failures, 1)))

    async def _follow(self, version: str, tell: Callable[[Probe], None]) -> bool:
        """Watch until that fails: whether it went well for a while."""
        told = False

        def hear(frame: Changed | Bookmark) -> None:
            nonlocal version, told
            version, told = frame.version, True
            self._degrade("")
            if isinstance(frame, Changed):
                for probe in self._changed(frame.node):
                    tell(probe)

        while True:
            began = self._clock.monotonic()
            end = await self._api.watch(version, hear)
            if isinstance(end, Failed):
                self._degrade(f"no watch ({end.reason}): {end.cure}")
                return told
            if isinstance(end, Expired):
                return told
            told = True
            self._degrade("")
            # A server that ends every watch at once must not be asked in a spin.
            await asyncio.sleep(max(0.0, began + self._pace.poll - self._clock.monotonic()))

    def _listed(self, listed: Listed) -> list[Probe]:
        self._skew = skew(listed.date, utc=self._clock.utc())
        return self._changed(listed.node)

    def _changed(self, node: object) -> list[Probe]:
        """What is to be told of the node as it is now; at least one answer."""
        marks = self._marks = read(node, self._rules)
        sight = Sight(self._clock.monotonic(), self._clock.utc(), self._skew)
        met = {match.rule.mark: match for match in marks.matches}
        noticed = {mark: self._notice(mark, match, sight) for mark, match in met.items()}
        gone = [m for m in self._standing if m not in noticed and m not in marks.unclear]
        # What stands first: between one mark's end and the next one's beginning there must be
        # no moment without an order.
        kept = {m: n for m, n in self._standing.items() if m in marks.unclear and m not in met}
        probes: list[Probe] = [Noticed(notice) for notice in (noticed | kept).values()]
        probes += [
            Cancelled(self.name, self._standing[mark].id, f"no longer on the node: {mark}")
            for mark in gone
        ]
        self._standing = noticed | kept
        return probes or [Quiet(self.name)]

    def _notice(self, mark: str, match: Match, sight: Sight) -> Notice:
        before, rule = self._standing.get(mark), match.rule
        when = _deadline(match, sight)
        if before is None:
            return Notice(
                source=self.name,
                kind=rule.kind,
                id=f"{self.name}:{mark}",
                confidence=rule.confidence,
                deadline=when,
                seen=sight.monotonic,
                detail=match.detail,
            )
        if (before.kind, before.detail, before.confidence) == (
            rule.kind,
            match.detail,
            rule.confidence,
        ):
            # Nothing new is said, so the first sight still counts.
            return before
        if rule.confidence < before.confidence:
            return before
        return replace(
            before,
            kind=rule.kind,
            confidence=max(rule.confidence, before.confidence),
            deadline=_nearer(before, when, raised=rule.confidence > before.confidence),
            detail=match.detail,
        )

    def _degrade(self, reason: str) -> None:
        if reason and not self._degraded:
            log.warning("node.unwatched", reason=reason)
        self._degraded = reason

    def _backoff(self, failures: int) -> float:
        doubled = math.ldexp(self._pace.backoff_first, min(failures - 1, 16))
        return min(self._pace.backoff_most, doubled) * (0.5 + 0.5 * self._jitter())


def _deadline(match: Match, sight: Sight) -> float | None:
    rule = match.rule
    if rule.dated and match.date is None:
        return sight.monotonic
    return deadline(match.date, sight=sight, most=rule.window_seconds).deadline


def _nearer(before: Notice, when: float | None, *, raised: bool) -> float | None:
    """The deadline of a mark that says something new."""
    if before.deadline is None or when is None:
        return before.deadline if when is None else when
    if raised and before.confidence is Confidence.ADVISORY:
        # An advice's time bound nobody.
        return when
    return when if when < before.deadline - JITTER_SECONDS else before.deadline


def _urgency(probe: Probe) -> tuple[int, float]:
    if not isinstance(probe, Noticed):
        return 1, 0.0
    notice = probe.notice
    return -notice.confidence, math.inf if notice.deadline is None else notice.deadline


def rules_with(own: Iterable[Rule]) -> tuple[Rule, ...]:
    """A site's own rules, and the known ones behind them."""
    return (*own, *DEFAULT_RULES)
