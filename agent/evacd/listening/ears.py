"""Hears every source: hands on what it says, then notes how it is.

A notice that stands is told again at each probe, so most of what is heard is no news: one line
in the log and one count per notice, and one line when a source stops or begins to answer.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import structlog

from evacd.clock import Clock
from evacd.cordon.lull import calm
from evacd.facts import Cancelled, Confidence, Notice, Noticed, Probe
from evacd.health import CERTAIN, Deaf, SourceHealth, heard

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


@dataclass(frozen=True)
class _Expected:
    """A source that is to be heard from.

    Attributes:
        note: What is not as it should be although it answers; "" for nothing.
        since: Monotonic seconds when it was begun to be listened to.
    """

    note: Callable[[], str]
    since: float


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
        self._expected: dict[str, _Expected] = {}
        self._known: dict[tuple[str, str], Notice] = {}
        self.health: dict[str, SourceHealth] = {}
        self._last: dict[str, float] = {}

    def expect(self, source: str, note: Callable[[], str] = str) -> None:
        """This source is to be heard from.

        Args:
            note: What is not as it should be although it answers; "" for nothing.
        """
        self._expected[source] = _Expected(note, self._clock.monotonic())

    def hear(self, probe: Probe) -> None:
        """Take one answer; returns when everything urgent is under way."""
        source = probe.notice.source if isinstance(probe, Noticed) else probe.source
        self._last[source] = self._clock.monotonic()
        self._act(probe)
        self._judge(probe)

    def infer(self, notice: Notice) -> None:
        """Take a notice that no source told: how its source is remains as it was."""
        self._act(Noticed(notice))
        self._note(notice)

    def _judge(self, probe: Probe) -> None:
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

    def silence(self, source: str) -> float:
        """Seconds since it last said anything, "nobody answers me" included."""
        expected = self._expected.get(source)
        now = self._clock.monotonic()
        return now - self._last.get(source, now if expected is None else expected.since)

    def standing(self, source: str) -> Iterable[Notice]:
        """What this source announced and did not take back."""
        return tuple(notice for (by, _), notice in self._known.items() if by == source)

    def crashed(self, source: str) -> None:
        """A source's code failed."""
        self._counts.crashed(source)

    # --- how they are --------------------------------------------------------------------

    @property
    def waiting(self) -> str:
        """Why not all that counts can be said to be heard yet; "" where it can.

        What can tell the machine's end for certain has to have answered once, each of them.
        Where nothing of that kind is listened to, one source of any kind is enough.
        """
        silent = [name for name in self._counted() if not self._answered(name)]
        if not silent or not (self._certain() or len(silent) == len(self._expected)):
            return ""
        known = [each for name in silent if (each := self.health.get(name)) is not None]
        cures = [f"; {each.cure}" if each.cure else "" for each in known]
        why = [
            f"{each.source}: {each.reason}{cure}" for each, cure in zip(known, cures, strict=True)
        ]
        why += [f"{name}: {_YET}" for name in silent if name not in self.health]
        return f"not heard from yet: {', '.join(why)}"

    @property
    def calm(self) -> bool:
        """Every source has answered, and says that there is nothing."""
        return calm(self._expected, self.health, self._known.values())

    def deaf(self) -> tuple[Deaf, ...]:
        """What does not answer now of all that counts.

        That is each source that can tell the machine's end for certain. Where none of that
        kind is listened to: all of them, once none at all answers.
        """
        now = self._clock.monotonic()
        silent = [name for name in self._counted() if not self._answers(name)]
        if not self._certain() and len(silent) < len(self._expected):
            return ()
        return tuple(self._deaf(name, now) for name in silent)

    def _certain(self) -> list[str]:
        return [name for name in self._expected if name in CERTAIN]

    def _counted(self) -> list[str]:
        return self._certain() or list(self._expected)

    def _answers(self, source: str) -> bool:
        return source in self.health and self.health[source].answers

    def _answered(self, source: str) -> bool:
        return source in self.health and self.health[source].answered

    def _deaf(self, source: str, now: float) -> Deaf:
        health = self.health.get(source)
        if health is None:
            return Deaf(source, now - self._expected[source].since, _YET)
        return Deaf(source, now - health.since, health.reason, health.cure)

    def shown(self) -> list[Mapping[str, Any]]:
        """Each source for `evac status`; JSON-able."""
        now = self._clock.monotonic()
        return [
            {**asdict(health), "seconds": now - health.since, "note": expected.note()}
            for name, expected in self._expected.items()
            for health in (
                self.health.get(name) or SourceHealth(name, False, expected.since, 0, _YET),
            )
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
