"""Which steps are staged: every so many, or as often as costs least.

The interval in seconds follows from what a stage costs, what a restart costs and how often the
job is reclaimed (`evac.interval`); in steps, it is a number that all ranks must have alike.
Rank 0's clock decides it, with the stall of whichever rank is held up longest: all wait for that one
at their next collective. What is agreed on goes through the gate, and counts for all
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
from evac.interval import Costs, Interval, bounded, shares, verdict

# What is assumed of machines of which nothing is known: spot machines are reclaimed every few
# hours to days (https://arxiv.org/abs/1911.05160 has the distribution for one cloud).
BETWEEN_SECONDS = 6 * 3600.0
# An agreed number of steps is kept while the best one is within this factor: the curve is flat.
_NEAR = 1.5
# Steps and stalls whose median counts.
_REMEMBERED = 16
_MOST_STEPS = 1_000_000_000
# Who is away for longer waits for a machine, or has paused: neither takes any GPU's time.
_MOST_RESTART_SECONDS = 3600.0
# What the gate carries for a pace begins with this.
PACE = "pace "


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
        # Clocks of two machines: what goes backwards is no measurement.
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
        rank: int = 0,
    ) -> None:
        """Decide nothing yet.

        Args:
            every: Steps from one stage to the next; None for as many as cost least.
            share: Most of the time that stalls may take, a part of 1.
            between: Mean seconds between the job's reclaims; None to learn it.
            restart: Seconds that a restart takes; None to learn it.
            rank: The clock of the first one decides for all.

        Raises:
            ValueError: One of them is out of range.
        """
        if every is not None and every < 1:
            raise ValueError(f"every: expected at least 1, got {every}")
        if not 0 < share <= 1:
            raise ValueError(f"stall_share: expected a part of 1 above 0, got {share}")
        Costs(0.0, 0.0 if restart is None else restart, 1.0 if between is None else between)
        self.leads = rank == 0
        self.history = History()
        self.steps = every or 1
        self._rank = rank
        self._fixed = every is not None
        self._share = share
        self._between = between
        self._restart = restart
        self._calls = 0
        self._asked = self.steps
        self._last: tuple[int, float] | None = None
        self._was_due = False
        self._took: deque[float] = deque(maxlen=_REMEMBERED)
        self._stalls: deque[float] = deque(maxlen=_REMEMBERED)
        self._began: float | None = None
        # From the start of this process to its first step.
        self._started = 0.0
        # Of ranks that are held up longer than the one that decides; and what that one counts with.
        self._slower: dict[int, float] = {}
        self._counted = math.inf
        self._said = 0.0

    def due(self, step: int, *, now: float, planned: bool) -> bool:
        """Whether *step*, which has just ended, is one to stage; the same on all ranks.

        Args:
            step: Rises, by whatever the caller counts: also by more than one.
            now: Monotonic seconds.
            planned: The layout is: from now on a stage is no collective.
        """
        if self._began is None:
            self._began, self._started = now, _age_of_process()
        before, self._last = self._last, (step, now)
        rose = step - before[0] if before is not None else 1
        if before is not None and rose > 0:
            self._took.append((now - before[1]) / rose)
        self._calls += 1
        if not (self._fixed or planned):
            return self._calls.bit_count() == 1 or self._calls % 100 == 0
        if rose:
            self._was_due = step // self.steps > (step - max(rose, 1)) // self.steps
        return self._was_due

    def staged(self, stall: float, *, now: float, prepared: bool = False) -> str:
        """A stage kept training waiting; what all ranks are to agree on now, or "".

        Args:
            stall: Seconds.
            now: Monotonic seconds; the next step's time starts here.
            prepared: It planned, or made room, which the next ones need not.
        """
        if self._last is not None:
            self._last = (self._last[0], now)
        if prepared:
            return ""
        self._stalls.append(stall)
        if self._fixed or not self._took:
            return ""
        return self._new_number(now) if self.leads else self._news_of_stall()

    def agreed(self, what: str) -> None:
        """All ranks hear, at the same step, what one of them has answered to `staged`.

        Args:
            what: Begins with `PACE`.
        """
        word, first, stall = what.removeprefix(PACE).split()
        if word == "every":
            self.steps, self._counted = int(first), float(stall)
        else:
            self._slower[int(first)] = float(stall)

    def costs(self, now: float) -> Costs | None:
        """What is known by now; None before the first stage."""
        if not self._stalls:
            return None
        restart = self._restart
        if restart is None:
            restart = max(self.history.restart, self._started if self.history.restart else 0.0)
        between = self._between
        if between is None:
            between = self.history.between(BETWEEN_SECONDS, self._trained(now))
        stall = max(median(self._stalls), *self._slower.values(), 0.0)
        return Costs(stall, restart, between)

    def every_seconds(self) -> float:
        """From one stage to the next; infinite before two steps in a row were seen."""
        return self.steps * median(self._took) if self._took else math.inf

    def interval(self, now: float) -> Interval | None:
        """How often it stages, and why; None before that is known."""
        costs, every = self.costs(now), self.every_seconds()
        if costs is None or not 0 < every < math.inf:
            return None
        return Interval(costs, every, self._share)

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

    def _new_number(self, now: float) -> str:
        steps, asked = self._best(now), self._asked
        if asked / _NEAR < steps < asked * _NEAR:
            return ""
        self._asked = steps
        costs = self.costs(now)
        return f"{PACE}every {steps} {costs.stall if costs else 0.0!r}"

    def _news_of_stall(self) -> str:
        """This rank is held up longer than is counted with, or no longer as long as it said."""
        mine, said = median(self._stalls), self._said
        known = said / _NEAR < mine < said * _NEAR
        if known or not (mine > self._counted * _NEAR or mine < said / _NEAR):
            return ""
        self._said = mine
        return f"{PACE}stall {self._rank} {mine!r}"

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
