"""Turns that a callback workload was given, and the one flush that is under way for them. Pure.

A daemon that was started again gives its order's turn anew, and a second order may come in the middle of
the first. To run the workload's function twice at once, over the same files, would spoil both. So there is
one flush at a time: it answers for all turns of its order that came before its end, and those of another
order, or where it failed, have the next one.
"""

from evac._clock import Monotonic
from evac.wire import Done, Turn

_MAX_REASON = 512


class TurnBudget:
    """The time a callback workload has for its flush; it may shrink while the turn runs.

    Attributes:
        order: Id of the order behind this turn.
    """

    def __init__(self, turn: Turn, clock: Monotonic) -> None:
        self.order = turn.order
        self._clock = clock
        self._deadline = clock() + turn.seconds

    def seconds_left(self) -> float:
        """Until the turn is over; 0 afterwards."""
        return max(0.0, self._deadline - self._clock())

    def shorten(self, turn: Turn) -> None:
        """Take what is said of a turn that runs already."""
        self._deadline = min(self._deadline, self._clock() + turn.seconds)


def failed(turn: int, error: BaseException) -> Done:
    """What the daemon is told of a turn whose function raised."""
    reason = f"{type(error).__name__}: {error}"
    if not isinstance(error, Exception):
        # sys.exit, say, which need not have any text.
        reason = f"{error!r} ended the function"
    return Done(turn=turn, ok=False, reason=reason[:_MAX_REASON])


class Turns:
    """One workload's, whichever shell it has. Not for two threads at once."""

    def __init__(self, clock: Monotonic) -> None:
        self._clock = clock
        # What waits for its function, or is under way.
        self._budget: TurnBudget | None = None
        self._under_way = False
        # Which turns the flush answers; not its own where the daemon that gave it is gone.
        self._own: int | None = None
        self._joined: dict[int, TurnBudget] = {}

    def take(self, turn: Turn) -> bool:
        """A turn came; False where a flush is there already: it answers for this one, too, or goes before."""
        fresh = TurnBudget(turn, self._clock)
        if self._budget is None:
            self._budget, self._own = fresh, turn.turn
            return True
        self._budget.shorten(turn)
        if turn.turn in self._joined:
            self._joined[turn.turn].shorten(turn)
        elif turn.turn != self._own:
            self._joined[turn.turn] = fresh
        return False

    def begin(self) -> TurnBudget | None:
        """The flush that is to be made now; None where none is, or one is under way."""
        if self._under_way or self._budget is None:
            return None
        self._under_way = True
        return self._budget

    def ended(self, *, well: bool, last: bool = False) -> tuple[list[int], TurnBudget | None]:
        """The flush that was under way has ended.

        Args:
            last: Another one is not tried.

        Returns:
            Turns that this answers; and the budget of the flush that is to be made now, for the others.
        """
        answered = [] if self._own is None else [self._own]
        order = self._budget.order if self._budget is not None else ""
        for turn, budget in list(self._joined.items()):
            if last or (well and budget.order == order):
                answered.append(turn)
                del self._joined[turn]
        self._budget = self._own = None
        if self._joined:
            self._own = min(self._joined, key=lambda turn: self._joined[turn].seconds_left())
            self._budget = self._joined.pop(self._own)
        self._under_way = self._budget is not None
        return answered, self._budget

    def forget(self) -> None:
        """Another daemon, which tells again what still holds; what is under way goes on."""
        self._own, self._joined = None, {}
        if not self._under_way:
            self._budget = None
