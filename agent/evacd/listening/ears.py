"""Hears every source: hands on what it says, then notes how it is.

A notice that stands is told again at each probe, so most of what is heard is no news: one line
in the log and one count per notice, and one line when a source stops or begins to answer.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any, Protocol

import structlog

from evacd.clock import Clock
from evacd.cordon.lull import calm
from evacd.facts import Cancelled, Confidence, Notice, Noticed, Probe
from evacd.health import SourceHealth, heard

log = structlog.get_logger()


class Counts(Protocol):
    """What is counted of it; `evacd.report.metrics.Metrics` does."""

    def probed(self, source: str, probe: Probe) -> None:
        """It gave an answer."""
        ...

    def noticed(self, notice: Notice) -> None:
        """A notice that was not known before."""
        ...

    def crashed(self, source: str) -> None:
        """Its code failed."""
        ...


class Ears:
    """All that the daemon hears comes through here."""

    def __init__(self, act: Callable[[Probe], None], clock: Clock, counts: Counts) -> None:
        """Make it ready.

        Args:
            act: Does what an answer calls for; it is called first of all.
        """
        self._act = act
        self._clock = clock
        self._counts = counts
        self._began = clock.monotonic()
        self._expected: dict[str, Callable[[], str]] = {}
        self._known: dict[tuple[str, str], Notice] = {}
        self.health: dict[str, SourceHealth] = {}

    def expect(self, source: str, note: Callable[[], str] = str) -> None:
        """This source is to be heard from.

        Args:
            note: What is not as it should be although it answers; "" for nothing.
        """
        self._expected[source] = note

    def hear(self, probe: Probe) -> None:
        """Take one answer; returns when everything urgent is under way."""
        self._act(probe)
        source = probe.notice.source if isinstance(probe, Noticed) else probe.source
        self._counts.probed(source, probe)
        match probe:
            case Noticed(notice):
                self._note(notice)
            case Cancelled(_, id, reason):
                if self._known.pop((source, id), None) is not None:
                    log.info("notice.cancelled", source=source, id=id, reason=reason)
        before = self.health.get(source)
        after = heard(before, source, probe, now=self._clock.monotonic())
        self.health[source] = after
        if after.unknowns == 1:
            log.warning("source.degraded", source=source, reason=after.reason, cure=after.cure)
        elif after.answers and before is not None and not before.answers:
            log.info("source.recovered", source=source)

    def standing(self, source: str) -> Iterable[Notice]:
        """What this source announced and did not take back."""
        return tuple(notice for (by, _), notice in self._known.items() if by == source)

    def crashed(self, source: str) -> None:
        """A source's code failed."""
        self._counts.crashed(source)

    # --- how they are --------------------------------------------------------------------

    @property
    def waiting(self) -> str:
        """Why nothing can be said to be heard yet; "" where a source has answered, or none is."""
        if not self._expected or any(each.answers for each in self.health.values()):
            return ""
        if any(each.answered for each in self.health.values()):
            return ""
        silent = (self.health.get(name) for name in self._expected)
        why = [f"{each.source}: {each.reason}" for each in silent if each is not None]
        return "no source has answered yet" + (f" ({'; '.join(why)})" if why else "")

    @property
    def calm(self) -> bool:
        """Every source has answered, and says that there is nothing."""
        return calm(self._expected, self.health, self._known.values())

    def deaf_seconds(self, now: float) -> float:
        """For how long no source at all has been answering; 0 where one does or none is."""
        spans = [now - self._since(name) for name in self._expected]
        return min(spans, default=0.0)

    def _since(self, source: str) -> float:
        health = self.health.get(source)
        if health is None:
            return self._began
        return self._clock.monotonic() if health.answers else health.since

    def shown(self) -> list[Mapping[str, Any]]:
        """Each source for `evac status`; JSON-able."""
        now = self._clock.monotonic()
        return [
            {
                **asdict(self.health.get(name) or SourceHealth(name, False, self._began, 0, _YET)),
                "seconds": now - (self.health[name].since if name in self.health else self._began),
                "note": note(),
            }
            for name, note in self._expected.items()
        ]

    def _note(self, notice: Notice) -> None:
        key = notice.source, notice.id
        if key not in self._known:
            self._counts.noticed(notice)
            left = None if notice.deadline is None else notice.deadline - self._clock.monotonic()
            write = log.info if notice.confidence is Confidence.ADVISORY else log.warning
            write(
                "notice.heard",
                source=notice.source,
                kind=notice.kind,
                id=notice.id,
                confidence=notice.confidence.word,
                window_seconds=None if left is None else round(left, 3),
                detail=notice.detail,
            )
        self._known[key] = notice


_YET = "no answer yet"
