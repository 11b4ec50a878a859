"""What is to be done from now on: all that the plan follows from, and the plan.

Planned is in layers, each behind the one before it: who has nothing safe, what failed and may be tried
again, and then what those who have something safe would still have more of.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from evacd.clock import Clock
from evacd.facts import Order, Outcome, Plan, Try, Unit
from evacd.flush.asked import Asked
from evacd.flush.running import Running, routed
from evacd.flush.seams import OnBoard
from evacd.flush.story import Story
from evacd.flush.tries import Tries
from evacd.flush.wants import Wants
from evacd.plan import schedule
from evacd.plan.rate import Rate

# An orphan's flush has no notice behind it, so it has all the time that a plan may need.
_NO_HURRY_SECONDS = 24 * 3600.0


class Planning:
    """The lanes with their rates, what moves, and what became of what was tried; see `Flush`."""

    def __init__(
        self,
        on_board: OnBoard,
        story: Story,
        *,
        lanes: Iterable[str],
        assumed: float,
        reserve: float,
        commit_seconds: float,
        clock: Clock,
    ) -> None:
        self._on_board = on_board
        self._story = story
        self._reserve = reserve
        self._clock = clock
        # What became of each unit, as far as is known.
        self.outcomes: dict[str, Outcome] = story.outcomes
        self.rates: dict[str, Rate] = {lane: Rate(assumed) for lane in lanes}
        self.commits = dict.fromkeys(self.rates, commit_seconds)
        self.order: Order | None = None
        self._orphans: set[str] = set()
        # Of orphans that have one: a workload that leaves has not the node's time.
        self._own: dict[str, float] = {}
        self._tries = Tries()
        self._asked = Asked()
        self._running: dict[str, Running] = {}

    @property
    def running(self) -> tuple[Running, ...]:
        """What moves now, one step per lane at most."""
        return tuple(self._running.values())

    @property
    def failures(self) -> Mapping[str, str]:
        """Why what was tried of each unit failed."""
        return self._story.failures

    @property
    def _until(self) -> float | None:
        """The last deadline there is: until then, what failed may still be saved in time."""
        ends = [*self._own.values(), *([self.order.deadline] if self.order else [])]
        return max(ends, default=None)

    def plan(self, aboard: Sequence[Unit] | None = None) -> Plan:
        """What would be done from now on, beginning with what moves; *aboard* are all units."""
        now = self._clock.monotonic()
        return self._laid_out(aboard or self._on_board.units(), now, self._tries.barred(now))

    def _laid_out(self, aboard: Sequence[Unit], now: float, barred: Collection[Try]) -> Plan:
        """The plan in which of all that was tried before, only what is *barred* is left out."""
        made = self._tries.made
        wants, free = self._wants(aboard, made), self._free(now)
        again = wants if barred == made else self._wants(aboard, barred)
        limit = self.order.deadline - self._reserve if self.order else math.inf
        moving = tuple(one.rest(now, limit=limit) for one in self._running.values())
        unsafe = self._schedule(wants.unsafe(), free, now, made)
        steps = unsafe.steps
        for units, overtime in (
            (again.unsafe() if again is not wants else (), True),
            (again.unfinished(), not any(step.overtime for step in steps)),
            # A second generation is worth the window's rest, but no overtime.
            (again.newer(), False),
            (again.held(), False),
        ):
            planned = {step.unit for step in steps}
            behind = free | {step.lane: step.ends for step in steps}
            left = (unit for unit in units if unit.name not in planned)
            more = self._schedule(left, behind, now, barred)
            steps += tuple(step for step in more.steps if overtime or not step.overtime)
        return Plan((*moving, *steps), unsafe.given_up)

    def _schedule(
        self, units: Iterable[Unit], free: Mapping[str, float], now: float, tried: Collection[Try]
    ) -> Plan:
        order = self.order
        moving = {one.step.unit for one in self._running.values()}
        return schedule(
            [unit for unit in units if unit.name not in moving],
            deadline=order.deadline if order else now + _NO_HURRY_SECONDS,
            rates=self.rates_now(now),
            reserve=self._reserve,
            commit_seconds=self.commits,
            now=now,
            free=free,
            tried=tried,
        )

    def _comes_back(self, units: Sequence[Unit], now: float) -> bool:
        """Whether there is anything that failed, may be tried again, and still could be in time."""
        if not self._tries.any_comes_back or now >= (self._until or now):
            return False
        return bool(self._laid_out(units, now, self._tries.over).steps)

    def _wants(self, units: Sequence[Unit], tried: Collection[Try]) -> Wants:
        return Wants(
            tuple(
                replace(unit, deadline=self._own[unit.name]) if unit.name in self._own else unit
                for unit in map(self.routed, units)
            ),
            self.order is not None,
            self._orphans,
            self.outcomes,
            tried,
            self._story.failures,
            self._asked,
        )

    def routed(self, unit: Unit) -> Unit:
        """*unit* with its lanes in the order in which it takes them, and with what moves of it."""
        return routed(unit, self.rates, self._running.values())

    def rates_now(self, now: float) -> dict[str, float]:
        """What each lane does, by what moves there where something does."""
        rates = self.rates | {lane: one.rate(now) for lane, one in self._running.items()}
        return {lane: rate.bytes_per_second for lane, rate in rates.items()}

    def _free(self, now: float) -> dict[str, float]:
        return {lane: one.ends(now) for lane, one in self._running.items()}
