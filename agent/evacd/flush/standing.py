"""A plan that stands for some steps, so that each of many units costs no more than each of few.

A plan takes as long to make as there are units, so one before each step would cost their square. So that
of many units stands for a share of its steps, as long as nothing has happened but what it says:
every step was whole, its lane is as fast as it was, and the next one begins no later than it was to.
"""

from collections import deque
from collections.abc import Collection, Mapping

from evacd.facts import Plan, Step

# Of so many units a plan is made anew before every step; of n times as many, before every n-th.
FEW = 32
# Seconds that a step may begin later than was planned.
LATE_SECONDS = 0.25
# How far a lane's rate may be from what was planned with, as a share of that.
OFF = 0.1


class StandingPlan:
    """The steps that are left of a plan that was made of many units; none as long as none stands."""

    def __init__(self) -> None:
        self._steps: dict[str, deque[Step]] = {}
        self._rates: Mapping[str, float] = {}
        self._left = 0
        self._whole: Step | None = None

    def made(
        self, plan: Plan, *, units: int, moving: Collection[str], rates: Mapping[str, float]
    ) -> None:
        """A new one.

        Args:
            units: How many there are.
            moving: Units that are at it already.
            rates: Of each lane, bytes per second, with which it was made.
        """
        self.fall()
        self._left = units // FEW
        if self._left:
            self._rates = dict(rates)
            for step in plan.steps:
                if step.unit not in moving:
                    self._steps.setdefault(step.lane, deque()).append(step)

    def fall(self) -> None:
        """It stands no longer: something happened."""
        self._left = 0
        self._steps = {}

    def stands(self, lane: str, *, now: float, limit: float, rate: float) -> bool:
        """Whether *lane* may still go by it.

        Args:
            limit: When a step has to end that is planned in time; monotonic seconds, as *now*.
            rate: Of the lane, as it is believed now.
        """
        if self._left <= 0 or abs(rate - self._rates[lane]) > OFF * self._rates[lane]:
            return False
        step = next(iter(self._steps.get(lane, ())), None)
        if step is None:
            # There is nothing for it to do as long as others have.
            return any(self._steps.values())
        in_time = step.overtime or now + step.ends - step.starts <= limit
        return in_time and now <= step.starts + LATE_SECONDS

    def take(self, lane: str) -> Step | None:
        """The next step on *lane*, which begins now."""
        steps = self._steps.get(lane)
        if not steps:
            return None
        self._left -= 1
        return steps.popleft()

    def whole(self, step: Step) -> None:
        """It went as planned."""
        self._whole = step

    def ended(self, step: Step) -> None:
        """It is over; what did not go as planned brings the plan down."""
        if self._whole is not step:
            self.fall()
