"""What the asyncio client hears unasked: orders, advice and turns. For the loop's thread."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any, TypeAlias

from evac._callbacks import RunningOrder, TurnBudget, failed, order_of
from evac._clock import monotonic
from evac.wire import Advice, Done, Message, OrderGiven, Refuse, StandDown, Turn

log = logging.getLogger("evac")

# Who listens to events and takes none: the oldest of so many is forgotten.
_MAX_EVENTS = 256

# What `Client.events` gives: an order or its amendment, its end, or advice.
Event: TypeAlias = RunningOrder | StandDown | Advice
OnTurn: TypeAlias = Callable[[TurnBudget], Awaitable[int | None]]


class Unasked:
    """Keeps the running order, and passes on what comes.

    Args:
        own: Runs a turn, and owns it.
        done: Sends what became of a turn.

    Attributes:
        order: The order to evacuate this node, while one runs.
    """

    def __init__(
        self,
        own: Callable[[Coroutine[Any, Any, None]], None],
        done: Callable[[Done], object],
    ) -> None:
        self.order: RunningOrder | None = None
        self._own = own
        self._done = done
        self._closed = False
        self._listeners: list[asyncio.Queue[Event | None]] = []
        self._function: OnTurn | None = None
        self._turns: dict[int, TurnBudget] = {}
        # A turn may come before the workload has got as far as `on_turn`.
        self._waiting: dict[int, TurnBudget] = {}

    def hear(self, message: Message) -> None:
        """Take what the daemon sends by itself."""
        match message:
            case OrderGiven():
                self.order = order_of(message, monotonic)
                self._tell(self.order)
            case StandDown():
                self.order = None
                self._tell(message)
            case Advice():
                self._tell(message)
            case Turn():
                self._take_turn(message)
            case Refuse():
                log.warning("evacd: %s", message.reason)
            case _:
                log.warning("evacd sent %r unasked; ignored", message.type)

    async def events(self) -> AsyncGenerator[Event]:
        """See `Client.events`."""
        queue: asyncio.Queue[Event | None] = asyncio.Queue(_MAX_EVENTS)
        if self.order is not None:
            queue.put_nowait(self.order)
        self._listeners.append(queue)
        try:
            while not self._closed and (event := await queue.get()) is not None:
                yield event
        finally:
            self._listeners.remove(queue)

    def on_turn(self, function: OnTurn) -> None:
        """Call *function* at each turn, and now for one that waits already."""
        self._function = function
        waiting, self._waiting = self._waiting, {}
        for number, budget in waiting.items():
            self._run_turn(number, budget, function)

    def forget(self) -> None:
        """A new registration: its daemon tells again what still holds."""
        self.order = None
        self._turns, self._waiting = {}, {}

    def close(self) -> None:
        """Nothing more will come."""
        self._closed = True
        for queue in self._listeners:
            _put(queue, None)

    def _tell(self, event: Event) -> None:
        for queue in self._listeners:
            _put(queue, event)

    def _take_turn(self, turn: Turn) -> None:
        running = self._turns.get(turn.turn) or self._waiting.get(turn.turn)
        if running is not None:
            running.shorten(turn)
            return
        budget = TurnBudget(turn, monotonic)
        if self._function is None:
            self._waiting[turn.turn] = budget
            log.warning("it is this workload's turn to flush, but nothing is set by on_turn")
        else:
            self._run_turn(turn.turn, budget, self._function)

    def _run_turn(self, number: int, budget: TurnBudget, function: OnTurn) -> None:
        self._turns[number] = budget

        async def run() -> None:
            try:
                done = Done(turn=number, ok=True, nbytes=int(await function(budget) or 0))
            except Exception as error:
                log.exception("on_turn raised; the daemon is told that the flush failed")
                done = failed(number, error)
            except asyncio.CancelledError as error:
                # By whoever has its task, or by the end of the client: it waits for nothing.
                if self._turns.pop(number, None) is budget:
                    self._done(failed(number, error))
                raise
            # A daemon that came back since knows nothing of this turn.
            if self._turns.get(number) is budget:
                del self._turns[number]
                self._done(done)

        self._own(run())


def _put(queue: "asyncio.Queue[Event | None]", event: Event | None) -> None:
    if queue.full():
        queue.get_nowait()
    queue.put_nowait(event)
