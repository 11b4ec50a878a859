"""The user's functions: orders, advice and turns, each called away from the socket thread."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from threading import RLock, Thread
from typing import TypeAlias

from evac._clock import Monotonic, monotonic
from evac._worker import Worker
from evac.wire import Advice, Done, Message, OrderGiven, StandDown, Turn

log = logging.getLogger("evac")

_MAX_REASON = 512


@dataclass(frozen=True)
class RunningOrder:
    """This node is to be evacuated.

    Attributes:
        id: Stays the same when the deadline shortens.
        confidence: ``planned``, ``certain`` or ``started``.
        deadline: Seconds on this machine's monotonic clock.
        source: Who said so: ``gcp``, ``operator``.
        kind: What it is: ``preemption``, ``drain``.
    """

    id: str
    confidence: str
    deadline: float
    source: str = ""
    kind: str = ""
    clock: Monotonic = field(default=monotonic, repr=False, compare=False)

    def seconds_left(self) -> float:
        """Until the deadline; 0 in overtime."""
        return max(0.0, self.deadline - self.clock())


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


def order_of(message: OrderGiven, clock: Monotonic) -> RunningOrder:
    """The order that *message*, just read, tells of."""
    return RunningOrder(
        id=message.order,
        confidence=message.confidence,
        deadline=clock() + message.seconds_left,
        source=message.source,
        kind=message.kind,
        clock=clock,
    )


def failed(turn: int, error: BaseException) -> Done:
    """What the daemon is told of a turn whose function raised."""
    return Done(turn=turn, ok=False, reason=f"{type(error).__name__}: {error}"[:_MAX_REASON])


OnOrder: TypeAlias = Callable[[RunningOrder], object]
OnStandDown: TypeAlias = Callable[[str], object]
OnAdvice: TypeAlias = Callable[[Advice], object]
OnTurn: TypeAlias = Callable[[TurnBudget], int | None]


class Callbacks:
    """Keeps the running order and calls who asked for it.

    Orders, advice and stand-downs run in one thread, in the order they came; each turn has
    a thread of its own, so that a long flush keeps no stand-down waiting.
    """

    def __init__(self, done: Callable[[Done], None], clock: Monotonic = monotonic) -> None:
        self.order: RunningOrder | None = None
        self._done = done
        self._clock = clock
        self._worker = Worker("evac-callbacks")
        # A signal handler may call while its own thread is in here.
        self._lock = RLock()
        self._on_order: list[OnOrder] = []
        self._on_stand_down: list[OnStandDown] = []
        self._on_advice: list[OnAdvice] = []
        self._on_turn: OnTurn | None = None
        self._turns: dict[int, TurnBudget] = {}
        # A turn may come before the workload has got as far as `on_turn`.
        self._waiting: dict[int, TurnBudget] = {}

    def hear(self, message: Message) -> None:
        """Take what the daemon sends by itself; returns at once."""
        match message:
            case OrderGiven():
                self._ordered(message)
            case StandDown():
                with self._lock:
                    self.order, asked = None, list(self._on_stand_down)
                for stand_down in asked:
                    self._worker.do(partial(stand_down, message.reason))
            case Advice():
                with self._lock:
                    wanted = list(self._on_advice)
                for advise in wanted:
                    self._worker.do(partial(advise, message))
            case Turn():
                self._take_turn(message)
            case _:
                log.warning("evacd sent %r unasked; ignored", message.type)

    def on_order(self, function: OnOrder) -> None:
        """Call *function* for each order and amendment, and now for one that runs already."""
        with self._lock:
            self._on_order.append(function)
            order = self.order
        if order is not None:
            self._worker.do(partial(function, order))

    def on_stand_down(self, function: OnStandDown) -> None:
        """Call *function* with the reason when an order is withdrawn."""
        with self._lock:
            self._on_stand_down.append(function)

    def on_advice(self, function: OnAdvice) -> None:
        """Call *function* with each advisory notice."""
        with self._lock:
            self._on_advice.append(function)

    def on_turn(self, function: OnTurn) -> None:
        """Call *function* at each turn, and now for one that waits already."""
        with self._lock:
            self._on_turn = function
            waiting, self._waiting = self._waiting, {}
            self._turns |= waiting
        for number, budget in waiting.items():
            self._run_turn(number, budget, function)

    def forget(self) -> None:
        """The connection is gone: a new daemon tells again what still holds."""
        with self._lock:
            self.order = None
            self._turns, self._waiting = {}, {}

    def stop(self) -> None:
        """Let the thread end once it has run what waits."""
        self._worker.stop()

    def _ordered(self, message: OrderGiven) -> None:
        order = order_of(message, self._clock)
        with self._lock:
            self.order, asked = order, list(self._on_order)
        for function in asked:
            self._worker.do(partial(function, order))

    def _take_turn(self, turn: Turn) -> None:
        budget = TurnBudget(turn, self._clock)
        with self._lock:
            running = self._turns.get(turn.turn) or self._waiting.get(turn.turn)
            function = self._on_turn
            if running is None:
                (self._waiting if function is None else self._turns)[turn.turn] = budget
        if running is not None:
            running.shorten(turn)
        elif function is None:
            log.warning("it is this workload's turn to flush, but nothing is set by on_turn")
        else:
            self._run_turn(turn.turn, budget, function)

    def _run_turn(self, number: int, budget: TurnBudget, function: OnTurn) -> None:
        def run() -> None:
            try:
                nbytes = function(budget)
                done = Done(turn=number, ok=True, nbytes=int(nbytes or 0))
            except Exception as error:
                log.exception("on_turn raised; the daemon is told that the flush failed")
                done = failed(number, error)
            with self._lock:
                known = self._turns.get(number) is budget
                if known:
                    del self._turns[number]
            # A daemon that came back since knows nothing of this turn.
            if known:
                self._done(done)

        Thread(target=run, name="evac-turn", daemon=True).start()
