"""The user's functions: orders, advice and turns, each called away from the socket thread."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from threading import RLock, Thread
from typing import TypeAlias

from evac._clock import Monotonic, monotonic
from evac._turns import TurnBudget, Turns, failed
from evac._worker import Worker
from evac.wire import Advice, Done, Message, OrderGiven, StandDown, Turn

log = logging.getLogger("evac")


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


OnOrder: TypeAlias = Callable[[RunningOrder], object]
OnStandDown: TypeAlias = Callable[[str], object]
OnAdvice: TypeAlias = Callable[[Advice], object]
OnTurn: TypeAlias = Callable[[TurnBudget], int | None]


class Callbacks:
    """Keeps the running order and calls who asked for it.

    Orders, advice and stand-downs run in one thread, in the order they came; a flush has
    a thread of its own, so that a long one keeps no stand-down waiting.
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
        # A turn may come before the workload has got as far as `on_turn`.
        self._turns = Turns(clock)

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
            budget = self._turns.begin()
        if budget is not None:
            self._flush(budget, function)

    def forget(self) -> None:
        """The connection is gone: a new daemon tells again what still holds."""
        with self._lock:
            self.order = None
            self._turns.forget()

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
        with self._lock:
            fresh, function = self._turns.take(turn), self._on_turn
            budget = self._turns.begin() if function is not None else None
        if function is None and fresh:
            log.warning("it is this workload's turn to flush, but nothing is set by on_turn")
        elif function is not None and budget is not None:
            self._flush(budget, function)

    def _flush(self, budget: TurnBudget, function: OnTurn) -> None:
        def run() -> None:
            left: TurnBudget | None = budget
            while left is not None:
                nbytes = 0
                error: BaseException | None = None
                try:
                    nbytes = int(function(left) or 0)
                except BaseException as raised:  # sys.exit would end this thread, and nobody else
                    log.exception("on_turn raised; the daemon is told that the flush failed")
                    error = raised
                with self._lock:
                    turns, left = self._turns.ended(well=error is None)
                # None where the daemon that gave it is gone.
                for turn in turns:
                    done = Done(turn=turn, ok=True, nbytes=nbytes)
                    self._done(done if error is None else failed(turn, error))

        Thread(target=run, name="evac-turn", daemon=True).start()
