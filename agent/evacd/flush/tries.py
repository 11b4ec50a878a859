"""What was tried: what failed for good, and what comes back after a pause. Pure.

A store that was away for a second is no reason to lose a job that has a minute left. So what failed in
a way that may pass is tried again, after a pause that grows, and behind all that was not tried
yet: a dead lane takes no time from others, nor from another lane for the same job.
"""

from collections.abc import Iterable

from evacd.facts import Try

# Seconds from a failure to the next try; doubled each time.
FIRST_SECONDS = 0.5
LONGEST_SECONDS = 5.0


class Tries:
    """Of one order, or of what is rescued without one."""

    def __init__(self) -> None:
        self._over: set[Try] = set()
        self._paused: dict[Try, float] = {}
        self._times: dict[Try, int] = {}

    @property
    def over(self) -> frozenset[Try]:
        """What is not tried again."""
        return frozenset(self._over)

    @property
    def made(self) -> frozenset[Try]:
        """What was tried at all, what comes back included."""
        return frozenset(self._over | self._paused.keys())

    @property
    def any_comes_back(self) -> bool:
        """Whether anything failed that may be tried again."""
        return bool(self._paused)

    def barred(self, now: float) -> frozenset[Try]:
        """What is not to be tried, or not yet."""
        return frozenset(self._over | {one for one, at in self._paused.items() if at > now})

    def next(self, now: float) -> float | None:
        """When the next pause ends; None where none is left."""
        return min((at for at in self._paused.values() if at > now), default=None)

    def began(self, one: Try) -> None:
        """It is under way, and nothing to begin with any more."""
        self._paused.pop(one, None)
        self._over.add(one)

    def stopped(self, one: Try) -> None:
        """It did not fail: it is as if it had not begun."""
        self._over.discard(one)

    def failed(self, one: Try, *, now: float, longest: float = LONGEST_SECONDS) -> None:
        """It may be tried again, later."""
        times = self._times[one] = self._times.get(one, 0) + 1
        self._over.discard(one)
        self._paused[one] = now + min(longest, FIRST_SECONDS * 2.0 ** min(times - 1, 16))

    def give_up(self, these: Iterable[Try]) -> None:
        """They are of no use."""
        for one in these:
            self.began(one)

    def forget(self, unit: str | None = None) -> None:
        """Begin anew, with one unit or with all."""
        for known in (self._paused, self._times):
            for one in [one for one in known if unit in (None, one[0])]:
                del known[one]
        self._over = {one for one in self._over if unit not in (None, one[0])}
