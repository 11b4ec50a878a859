"""A step that runs: what it has moved so far, what its lane does meanwhile, and when it will end."""

import math
from collections import deque
from collections.abc import Callable
from threading import Lock

from evacd.facts import Step
from evacd.plan.again import Underway
from evacd.plan.rate import Rate

# Seconds that are looked back over: a link is judged by what it does, not by what it did.
BACK_SECONDS = 5.0
# What may be on its way in parts that are told when they are through: four parts of 16 MiB, or
# so many of the largest that was told. As long as these could be through just now, a link that
# seems to stand still is not slow.
UNTOLD_NBYTES = 64 * 1024 * 1024
_UNTOLD_PARTS = 8
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
        """Of its lane, with what was seen last; bad news only where nothing else explains it."""
        since, before = self._seen[0]
        seconds, moved = now - since, self._moved - before
        least = _LEAST_SECONDS if self._largest else _FIRST_SECONDS
        if self.step.generation is None or seconds < least:
            return self._before
        if moved / seconds < self._before.bytes_per_second:
            untold = max(UNTOLD_NBYTES, _UNTOLD_PARTS * self._largest)
            hoped = moved + min(untold, self.left)
            if hoped / seconds >= self._before.bytes_per_second:
                return self._before
            moved = hoped
        else:
            # A part that was nearly through when this began counts for less.
            moved -= self._largest
            if moved / seconds <= self._before.bytes_per_second:
                return self._before
        return self._before.observed(moved, seconds)

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
        seconds = self.left / self.rate(now).bytes_per_second
        # From when the last part was told: the next one has been on its way since.
        ends = self._told + (seconds if math.isfinite(seconds) else 3.2e9)
        return max(ends, now) + self._commit_seconds

    def underway(self, now: float) -> Underway:
        """For the planner."""
        return Underway(self.step, self._moved, self.ends(now))
