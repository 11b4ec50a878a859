"""A step that runs: what it has moved so far, what its lane does meanwhile, and when it will end."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from threading import Lock

from evacd.facts import Candidate, Step, Unit
from evacd.plan.again import Underway
from evacd.plan.rate import SLOWEST, Rate

# Seconds that are looked back over: a link is judged by what it does, not by what it did.
BACK_SECONDS = 5.0
# What may be on its way in parts that are told when they are through: four parts of 16 MiB, or
# so many of the largest that was told. As long as these could be through just now, a link that
# seems to stand still is not slow.
UNTOLD_NBYTES = 64 * 1024 * 1024
_UNTOLD_PARTS = 4
# What was seen for less time than this says nothing; before the first part came through nobody
# knows how large they are.
_LEAST_SECONDS = 1.0
_FIRST_SECONDS = 5.0


class Running:
    """One step on one lane, from its first byte on.

    Args:
        rate: Of its lane as it was believed when the step began.
        commit_seconds: What comes on top of its bytes, as far as is known.
        clock: Monotonic seconds, asked from any thread.
        now: When it begins; monotonic seconds.
    """

    def __init__(
        self,
        step: Step,
        rate: Rate,
        *,
        commit_seconds: float,
        now: float,
        clock: Callable[[], float],
    ) -> None:
        self.step = step
        self.began = now
        self._before = rate
        self._commit_seconds = commit_seconds
        self._moved = 0
        self._largest = 0
        self._clock = clock
        self._told = now
        self._lock = Lock()
        self._seen: deque[tuple[float, int]] = deque([(now, 0)])

    def progress(self, nbytes: int) -> None:
        """Further bytes are written; called from any thread."""
        with self._lock:
            self._moved += nbytes
            self._largest = max(self._largest, nbytes)
            self._told = self._clock()

    @property
    def moved(self) -> int:
        """Bytes that are written."""
        return self._moved

    @property
    def left(self) -> int:
        """Bytes that are not written yet."""
        return max(self.step.nbytes - self._moved, 0)

    def look(self, now: float) -> None:
        """Note how far it is."""
        self._seen.append((now, self._moved))
        while len(self._seen) > 2 and self._seen[1][0] <= now - BACK_SECONDS:
            self._seen.popleft()

    def rate(self, now: float) -> Rate:
        """Of its lane, with what was seen last."""
        seen = self._seen_lately(now)
        return self._before if seen is None else self._before.observed(*seen)

    def _seen_lately(self, now: float) -> tuple[int, float] | None:
        """Bytes and seconds that say something else than what was believed.

        Bad news only where nothing else explains it, good news without what it may owe to parts
        that were nearly through when it began.
        """
        since, before = self._seen[0]
        seconds, moved = now - since, self._moved - before
        least = _LEAST_SECONDS if self._largest else _FIRST_SECONDS
        if self.step.generation is None or seconds < least:
            return None
        believed = self._before.bytes_per_second * seconds
        if (hoped := moved + self._untold) < believed:
            return hoped, seconds
        if (sure := moved - self._largest) > believed:
            return sure, seconds
        return None

    def ended(self) -> Rate:
        """Of its lane, with all that was moved, in the time until the last of it was through."""
        if self._moved <= 0:
            # What somebody had written before says nothing of the link.
            return self._before
        return self._before.observed(self._moved, self._told - self.began)

    def committed(self, now: float) -> float:
        """What its commit took: all that came after the last byte."""
        return now - self._told if self._moved > 0 else self._commit_seconds

    def ends(self, now: float) -> float:
        """When it will be through, as it looks now; monotonic seconds."""
        if self.step.generation is None:
            return max(self.step.ends, now)
        seen, left, since = self._seen_lately(now), self.left, self._told
        pace = self.rate(now).bytes_per_second
        if seen is not None and seen[1] >= BACK_SECONDS:
            # Of this very step so much was seen that it counts alone.
            pace = max(seen[0] / seen[1], SLOWEST)
            if pace < self._before.bytes_per_second:
                left, since = max(left - self._untold, 0), now
        seconds = left / pace
        # From when the last part was told: the next one has been on its way since.
        ends = since + (seconds if math.isfinite(seconds) else 3.2e9)
        return max(ends, now) + self._commit_seconds

    @property
    def _untold(self) -> int:
        """Bytes that may be through by now and were not told yet."""
        return min(max(UNTOLD_NBYTES, _UNTOLD_PARTS * self._largest), self.left)

    def of(self, candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
        """The same, and of the one that moves only what is left on its lane."""
        mine = self.step.generation, self.step.kind
        return tuple(
            replace(one, begun=(self.step.lane, self.left))
            if (one.generation, one.kind) == mine
            else one
            for one in candidates
        )

    def rest(self, now: float, *, limit: float) -> Step:
        """What is left of it, as a step that begins now; *limit* is where overtime begins."""
        ends = self.ends(now)
        return replace(self.step, nbytes=self.left, starts=now, ends=ends, overtime=ends > limit)

    def underway(self, now: float) -> Underway:
        """For the planner."""
        return Underway(self.step, self._moved, self.ends(now))


def routed(unit: Unit, rates: Mapping[str, Rate], running: Iterable[Running]) -> Unit:
    """*unit* as it may go: what never took a byte comes behind, and what moves is only its rest."""
    for one in running:
        if one.step.unit == unit.name:
            unit = replace(unit, candidates=one.of(unit.candidates))
    known = [lane for lane in unit.lanes if lane in rates]
    lanes = tuple(sorted(known, key=lambda lane: not rates[lane].measured))
    return unit if lanes == unit.lanes else replace(unit, lanes=lanes)
