"""Which steps are staged: every so many, or as often as costs least.

The interval in seconds follows from what a stage costs, what a restart costs and how often the
job is reclaimed (`evac.interval`); in steps, it is a number that all ranks must have alike.
Rank 0's clock decides it. A new number reaches the others through the gate, and counts for all
from the same step on; until the layout is planned, which is a collective, nothing that a clock
says is asked: the tries are counted, and further and further apart.
"""

import math
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import CLOCK_BOOTTIME, clock_gettime
from typing import Any

from evac.human import seconds as spoken
from evac.interval import Costs, bounded, shares, verdict

# What is assumed of machines of which nothing is known: spot machines are reclaimed every few
# hours to days (https://arxiv.org/abs/1911.05160 has the distribution for one cloud).
BETWEEN_SECONDS = 6 * 3600.0
# An agreed number of steps is kept while the best one is within this factor: the curve is flat.
_NEAR = 1.5
# Steps and stalls whose median counts.
_REMEMBERED = 16
_MOST_STEPS = 1_000_000_000
# A try that cannot be told from a day's break says nothing of a restart.
_MOST_RESTART_SECONDS = 24 * 3600.0


@dataclass(frozen=True)
class History:
    """What a job has lived through; goes with it from restart to restart, in its checkpoint.

    Attributes:
        reclaims: How often it was resumed.
        trained: Seconds from each start to the last stage before its end, together.
        restart: Seconds from the last stage before the last end to the start after it; 0 if none.
        told: Wall clock of the moment at which this was written; 0 for never.
    """

    reclaims: int = 0
    trained: float = 0.0
    restart: float = 0.0
    told: float = 0.0

    @classmethod
    def read(cls, document: Mapping[str, Any] | None) -> "History":
        """What a checkpoint holds; an empty one for older checkpoints, or none."""
        try:
            return cls(**document) if document else cls()
        except TypeError:
            return cls()

    def resumed(self, *, now: float) -> "History":
        """A new launch goes on at wall clock *now*."""
        away = now - self.told if self.told else 0.0
        # Clocks of two machines: what goes backwards, or took a day, is no measurement.
        restart = away if 0 < away < _MOST_RESTART_SECONDS else self.restart
        return replace(self, reclaims=self.reclaims + 1, restart=restart)

    def between(self, assumed: float, trained: float) -> float:
        """Mean seconds between reclaims: what is assumed counts as one observation of it.

        Args:
            trained: Seconds of the present launch.
        """
        return (assumed + self.trained + trained) / (1 + self.reclaims)


class Pace:
    """Feed it each step's end; it says whether that step is due."""

    def __init__(
        self,
        *,
        every: int | None = None,
        share: float = 0.01,
        between: float | None = None,
        restart: float | None = None,
        leads: bool = True,
    ) -> None:
        """Decide nothing yet.

        Args:
            every: Steps from one stage to the next; None for as many as cost least.
            share: Most of the time that stalls may take, a part of 1.
            between: Mean seconds between the job's reclaims; None to learn it.
            restart: Seconds that a restart takes; None to learn it.
            leads: This rank's clock decides for all.

        Raises:
            ValueError: One of them is out of range.
        """
        if every is not None and every < 1:
            raise ValueError(f"every: expected at least 1, got {every}")
        if not 0 < share <= 1:
            raise ValueError(f"stall_share: expected a part of 1 above 0, got {share}")
        Costs(0.0, 0.0 if restart is None else restart, 1.0 if between is None else between)
        self.leads = leads
        self.history = History()
        self.steps = every or 1
        self._fixed = every is not None
        self._share = share
        self._between = between
        self._restart = restart
        self._calls = 0
        self._asked = self.steps
        self._last: tuple[int, float] | None = None
        self._took: deque[float] = deque(maxlen=_REMEMBERED)
        self._stalls: deque[float] = deque(maxlen=_REMEMBERED)
        self._began: float | None = None

    def due(self, step: int, *, now: float, planned: bool) -> bool:
        """Whether *step*, which has just ended, is one to stage; the same on all ranks.

        Args:
            now: Monotonic seconds.
            planned: The layout is: from now on a stage is no collective.
        """
        self._began = now if self._began is None else self._began
        if self._last is not None and step == self._last[0] + 1:
            self._took.append(now - self._last[1])
        self._last = (step, now)
        self._calls += 1
        if self._fixed or planned:
            return step % self.steps == 0
        return self._calls.bit_count() == 1 or self._calls % 100 == 0

    def staged(self, stall: float, *, now: float) -> int | None:
        """A stage kept training waiting; the number of steps to agree on, where it changed.

        Args:
            stall: Seconds.
            now: Monotonic seconds; the next step's time starts here.
        """
        self._stalls.append(stall)
        if self._last is not None:
            self._last = (self._last[0], now)
        if self._fixed or not self.leads or not self._took:
            return None
        steps, asked = self._best(now), self._asked
        if asked / _NEAR < steps < asked * _NEAR:
            return None
        self._asked = steps
        return steps

    def costs(self, now: float) -> Costs | None:
        """What is known by now; None before the first stage."""
        if not self._stalls:
            return None
        restart = self._restart
        if restart is None:
            restart = max(self.history.restart, _age_of_process() if self.history.restart else 0.0)
        between = self._between
        if between is None:
            between = self.history.between(BETWEEN_SECONDS, self._trained(now))
        return Costs(median(self._stalls), restart, between)

    def every_seconds(self) -> float:
        """From one stage to the next; infinite before two steps in a row were seen."""
        return self.steps * median(self._took) if self._took else math.inf

    def told(self, now: float) -> str:
        """In one sentence how often it stages, why, and what that is worth; "" before it is known."""
        costs = self.costs(now)
        if costs is None or not self._took:
            return ""
        every = self.every_seconds()
        return (
            f"stages every {_steps(self.steps)}, {spoken(every)}: a stage holds training up for "
            f"{spoken(costs.stall)}, a restart takes {spoken(costs.restart)}, and the job is "
            f"reclaimed every {spoken(costs.between)}; {verdict(costs, every, share=self._share)}"
        )

    def verdict(self, now: float) -> str:
        """Where the job gets nothing done between reclaims, that, in numbers; else ""."""
        costs = self.costs(now)
        if costs is None or not self._took:
            return ""
        interval = bounded(costs, share=self._share)
        if shares(costs, interval).useful > 0:
            return ""
        return f"this job is {verdict(costs, interval, share=self._share)}"

    def remember(self, *, now: float, wall: float) -> dict[str, Any]:
        """For the checkpoint: `History` as it stands."""
        trained = self.history.trained + self._trained(now)
        return vars(replace(self.history, trained=trained, told=wall))

    def _trained(self, now: float) -> float:
        return now - self._began if self._began is not None else 0.0

    def _best(self, now: float) -> int:
        costs, step = self.costs(now), median(self._took)
        if costs is None or not step > 0:
            return self.steps
        steps = bounded(costs, share=self._share) / step
        return max(1, min(round(steps), _MOST_STEPS)) if math.isfinite(steps) else _MOST_STEPS


def _steps(count: int) -> str:
    return "step" if count == 1 else f"{count:,} steps"


def _age_of_process() -> float:
    """Seconds since this process was started: imports and a restore are part of a restart."""
    # Field 22, behind a name that may hold anything: proc(5).
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return clock_gettime(CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
