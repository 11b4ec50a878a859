"""What a lane sustains: an assumption that measurements correct. Pure.

Wrong on the high side loses a job, wrong on the low side only order among those that fit,
so bad news is believed sooner than good news.
"""

import math
from dataclasses import dataclass

# How much of the past a transfer is weighed against: after so many seconds of one steady
# measurement, half of it is believed, and sooner where less was seen before.
RISE_SECONDS = 8.0
FALL_SECONDS = 2.0
# However long it took, no later transfer decides alone.
MOST_WEIGHT = 0.75
# Below both, a transfer has measured round trips, not the link.
SMALL_NBYTES = 1024 * 1024
SMALL_SECONDS = 1.0
# A link that carries nothing for hours still has a rate, or nothing could be planned.
SLOWEST = 1.0
# A store that once hung for a minute has not become one whose commits take a minute.
SLOWEST_COMMIT_SECONDS = 5.0


@dataclass(frozen=True)
class Rate:
    """One lane's rate as believed now.

    Attributes:
        bytes_per_second: Positive and finite; an assumption at first.
        measured: At least one transfer has been counted in.
        seen_seconds: For how long bytes were seen to move: a probe of some hundred milliseconds
            gives way to the first flush, a day's experience does not.
    """

    bytes_per_second: float
    measured: bool = False
    seen_seconds: float = RISE_SECONDS

    def __post_init__(self) -> None:
        """Refuse what no plan can be made with.

        Raises:
            ValueError: The rate is not a positive number.
        """
        if not (self.bytes_per_second > 0 and math.isfinite(self.bytes_per_second)):
            raise ValueError(f"the rate is {self.bytes_per_second}, expected one above 0")

    def at_least(self, nbytes: int, seconds: float) -> "Rate":
        """The rate after a transfer that was held back: it may be more than that, but no less."""
        seen = self.observed(nbytes, seconds)
        return seen if seen.bytes_per_second > self.bytes_per_second else self

    def observed(self, nbytes: int, seconds: float) -> "Rate":
        """The rate after a transfer: the first counts whole, later ones by the time they took.

        Args:
            nbytes: What arrived; 0 for a stall, which counts.
            seconds: What it took. A transfer that took no time has measured nothing.
        """
        if nbytes < 0 or not (seconds > 0 and math.isfinite(seconds)):
            return self
        if nbytes < SMALL_NBYTES and seconds < SMALL_SECONDS:
            return self
        try:
            seen = nbytes / seconds
        except OverflowError:
            return self
        if not math.isfinite(seen):
            return self
        old = self.bytes_per_second
        memory = min(self.seen_seconds, RISE_SECONDS if seen > old else FALL_SECONDS)
        weight = min(seconds / (seconds + memory), MOST_WEIGHT)
        if not self.measured:
            # Nobody has seen the assumption; whatever was seen is better.
            weight = 1.0
        # Clamped, because a rounded mean may lie a hair outside of what it is the mean of.
        new = min(max(old + (seen - old) * weight, min(old, seen)), max(old, seen))
        past = self.seen_seconds if self.measured else 0.0
        return Rate(
            max(new, min(SLOWEST, old)),
            measured=True,
            seen_seconds=min(past + seconds, RISE_SECONDS),
        )


def commit_after(believed: float, seen: float) -> float:
    """What a commit costs after one that took *seen* seconds: half way there."""
    seen = min(max(seen, 0.0), SLOWEST_COMMIT_SECONDS)
    return believed + (seen - believed) / 2
