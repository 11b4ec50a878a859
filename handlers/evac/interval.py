"""How often to stage, and whether training on machines that are taken away pays at all. Pure.

Staged too often, training waits; too seldom, each reclaim throws much away. The interval at
which the two cost least is T = C + sqrt(2 (M + R) C + C^2), from the stall C of one stage, the
time R that a restart takes and the mean time M between reclaims of the job: the form of
arXiv 2410.18124, which turns into Young's sqrt(2 C M) where C and R are small. M is a mean of
what seldom is memoryless (spot machines die young or live long), so it is a guide, not a law:
the curve is flat around its minimum.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

from evac.human import seconds as spoken


@dataclass(frozen=True)
class Costs:
    """What a job pays for being reclaimed, in seconds.

    Attributes:
        stall: C: how long training waits for one stage.
        restart: R: from the reclaim until training goes on, whatever had to be waited for.
        between: M: mean time between two reclaims of the job, of any of its machines.
    """

    stall: float
    restart: float
    between: float

    def __post_init__(self) -> None:
        """Refuse what is no time.

        Raises:
            ValueError: A time is negative or no number, or *between* is 0.
        """
        for name, value in (("stall", self.stall), ("restart", self.restart)):
            if not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{name}: expected seconds, 0 or more, got {value}")
        if not self.between > 0:
            raise ValueError(f"between: expected seconds above 0, got {self.between}")


@dataclass(frozen=True)
class Shares:
    """Where the time goes that is paid for: parts of 1.

    Attributes:
        stalls: Training waits while it stages.
        redone: Steps that a reclaim threw away are done again: half an interval each time.
        restarts: Nothing runs, or not yet.
    """

    stalls: float
    redone: float
    restarts: float

    @property
    def useful(self) -> float:
        """What is left; below 0 the job consumes more than it gets done."""
        return 1.0 - self.stalls - self.redone - self.restarts


@dataclass(frozen=True)
class Interval:
    """How often a job stages, and what that follows from.

    Attributes:
        every: Seconds from one stage to the next, above 0.
        share: Most of the time that stalls may take, as in `bounded`; 0 to 1.
    """

    costs: Costs
    every: float
    share: float = 1.0

    def document(self) -> dict[str, Any]:
        """Plain values, for JSON: in seconds and parts of 1."""
        found = shares(self.costs, self.every)
        return {
            **asdict(self.costs),
            "interval": self.every,
            "best": best(self.costs),
            "shares": {**asdict(found), "useful": found.useful},
            "break_even": break_even(self.costs, share=self.share),
            "net_consumer": found.useful <= 0,
        }

    def verdict(self) -> str:
        """See `verdict`."""
        return verdict(self.costs, self.every, share=self.share)


def best(costs: Costs) -> float:
    """The interval that costs least, in seconds from one stage's start to the next's.

    Infinite where the job is never reclaimed; 0 where a stage costs nothing.
    """
    c = costs.stall
    return c + math.sqrt(2 * (costs.between + costs.restart) * c + c * c)


def bounded(costs: Costs, *, share: float) -> float:
    """As `best`, and never so often that stalls take more than *share* (0 to 1) of the time."""
    if not 0 < share <= 1:
        raise ValueError(f"share: expected a part of 1 above 0, got {share}")
    return max(best(costs), costs.stall / share)


def shares(costs: Costs, interval: float) -> Shares:
    """Where the time goes with a stage every *interval* seconds (above 0, may be infinite).

    Without end, all that was ever done is done again: the whole time between two reclaims.
    """
    redone = min(interval / 2, costs.between)
    stalls = costs.stall / interval if interval else 0.0
    return Shares(stalls, redone / costs.between, costs.restart / costs.between)


def break_even(costs: Costs, *, share: float = 1.0) -> float:
    """The mean time between reclaims at which a job with such costs gets nothing done.

    Below it, it is a net consumer of the machines that it is given, however often it stages.
    """
    low, high = 1e-9, max(costs.restart + costs.stall, 1e-6)
    while _useful(costs, high, share) <= 0:
        low, high = high, high * 2
    for _ in range(80):
        middle = (low + high) / 2
        if _useful(costs, middle, share) > 0:
            high = middle
        else:
            low = middle
    return high


def verdict(costs: Costs, interval: float, *, share: float = 1.0) -> str:
    """In one sentence and in numbers, whether the job gets anything done between reclaims.

    Args:
        share: Most of the time that stalls may take, as in `bounded`.
    """
    useful = shares(costs, interval).useful
    every, limit = spoken(costs.between), spoken(break_even(costs, share=share))
    if useful <= 0:
        price = costs.restart + shares(costs, interval).redone * costs.between
        return (
            f"a net consumer of GPU hours: reclaimed every {every} on average, and each time "
            f"{spoken(price)} are lost; it gets something done only where reclaims are more than "
            f"{limit} apart"
        )
    return (
        f"of 100 GPU hours {100 * useful:.1f} train; reclaimed more often than every {limit} "
        "it would be a net consumer"
    )


def _useful(costs: Costs, between: float, share: float) -> float:
    at = Costs(costs.stall, costs.restart, between)
    return shares(at, bounded(at, share=share)).useful
