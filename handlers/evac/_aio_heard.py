"""What the asyncio client hears unasked: orders, advice and turns. For the loop's thread."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any, TypeAlias

from evac._callbacks import RunningOrder, order_of
from evac._clock import monotonic
from evac._turns import TurnBudget, Turns, failed
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
        own: Runs a flush, and owns it.
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
        # A turn may come before the workload has got as far as `on_turn`.
        self._turns = Turns(monotonic)

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
        if (budget := self._turns.begin()) is not None:
            self._own(self._flush(budget, function))

    def forget(self) -> None:
        """A new registration: its daemon tells again what still holds."""
        self.order = None
        self._turns.forget()

    def close(self) -> None:
        """Nothing more will come."""
        self._closed = True
        for queue in self._listeners:
            _put(queue, None)

    def _tell(self, event: Event) -> None:
        for queue in self._listeners:
            _put(queue, event)

    def _take_turn(self, turn: Turn) -> None:
        fresh, function = self._turns.take(turn), self._function
        if function is None and fresh:
            log.warning("it is this workload's turn to flush, but nothing is set by on_turn")
        elif function is not None and (budget := self._turns.begin()) is not None:
            self._own(self._flush(budget, function))

    async def _flush(self, budget: TurnBudget, function: OnTurn) -> None:
        left: TurnBudget | None = budget
        while left is not None:
            nbytes = 0
            error: BaseException | None = None
            try:
                nbytes = int(await function(left) or 0)
            except GeneratorExit:
                raise  # its loop is gone, and with it the connection
            except BaseException as raised:
                if _ends_more(raised):
                    # Nobody is left to try another one.
                    for turn in self._turns.ended(well=False, last=True)[0]:
                        self._done(failed(turn, raised))
                    raise
                log.exception("on_turn raised; the daemon is told that the flush failed")
                error = raised
            turns, left = self._turns.ended(well=error is None)
            # None where the daemon that gave it is gone.
            for turn in turns:
                done = Done(turn=turn, ok=True, nbytes=nbytes)
                self._done(done if error is None else failed(turn, error))


def _ends_more(error: BaseException) -> bool:
    """Whether it ends more than the function: the loop, or its task, by whoever cancelled that."""
    if isinstance(error, asyncio.CancelledError):
        # Else of something that the function waited for.
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    return isinstance(error, (KeyboardInterrupt, SystemExit))


def _put(queue: "asyncio.Queue[Event | None]", event: Event | None) -> None:
    if queue.full():
        queue.get_nowait()
    queue.put_nowait(event)
