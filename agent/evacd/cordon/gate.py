"""One cordon, strictly in order: a close and a reopen never run at the same time.

What is asked for while the cordon works waits for it to end, and only the last thing asked
for is then done. A running close is waited for, not ended: what a killed program has already
sent to its scheduler may land after the reopen, and then the node stays closed. What ended for
want of an answer is tried again, ever less often and at once where there is news, until it is
done or something else is wished: a node that is never opened again costs money, one that stays
open has new work lost. What follows a close waits for it: a pod that is evicted from a node that
is still open may land there again.
"""

from asyncio import Task, TaskGroup, TimerHandle, get_running_loop
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any

import structlog

from evacd.clock import Clock
from evacd.cordon import Cordon, Following, Unanswered
from evacd.facts import Order

log = structlog.get_logger()

_MOST_AGAIN_SECONDS = 300.0


@dataclass(frozen=True)
class _Wish:
    """What the cordon shall do next: reopen because of `reason`, or close where it is None."""

    order: Order
    reason: str | None = None


@dataclass(frozen=True)
class _Emptied:
    """What it is to be told of the flush."""

    order: Order
    kept: int
    lost: int


class Gate:
    """Carries out what is wished of one cordon, and knows whether it may be closed."""

    def __init__(
        self,
        cordon: Cordon,
        *,
        clock: Clock,
        run: Callable[[Callable[[], Coroutine[Any, Any, None]]], None],
        tell: Callable[[str, str, Mapping[str, Any]], None],
        noted: Callable[[], Coroutine[Any, Any, None]],
        again_seconds: float = 2.0,
    ) -> None:
        """Wire it up.

        Args:
            run: Runs work beside the flush.
            tell: Told the order's id, the event's name and its data.
            noted: Awaited when `closed` became true, before the cordon is asked to close:
                what may have been done must be known after a crash; beside that where the
                cordon remembers it elsewhere. Called when it became false.
            again_seconds: Until what had no answer is tried again for the first time.
        """
        self.name = cordon.name
        self.closed = False
        self._cordon = cordon
        self._clock = clock
        self._run = run
        self._tell = tell
        self._noted = noted
        self._wish: _Wish | None = None
        self._amended: Order | None = None
        self._emptied: _Emptied | None = None
        self._told: _Emptied | None = None
        self._telling: _Emptied | None = None
        self._aside: Task[str | None] | None = None
        self._looking = self._ending = False
        self._again_seconds = self._pause = again_seconds
        self._again: TimerHandle | None = None
        # What had no answer: an order is an amendment's.
        self._waiting: _Wish | Order | None = None
        self._told_wrong = False
        # As it was amended last.
        self._newest: Order | None = None
        self._inherit: Callable[[str], None] | None = None
        self._working = False

    def close(self, order: Order) -> None:
        """Let no new work land here, once what runs has ended."""
        self._want(_Wish(order))

    def reopen(self, order: Order, *, reason: str) -> None:
        """Undo the close, once it has ended; nothing where there was none."""
        self._want(_Wish(order, reason))

    def amend(self, order: Order) -> None:
        """The order has less time, or is surer: after a close has ended."""
        if isinstance(self._cordon, Following):
            self._try_now()
            self._amended = self._newest = order
            self._break_off()
            if self._emptied is not None:
                self._emptied = self._told = replace(self._emptied, order=order)
            self._begin()

    def emptied(self, order: Order, *, kept: int, lost: int) -> None:
        """The flush is over, for now: once for each outcome, after a close has ended."""
        emptied = _Emptied(order, kept, lost)
        if isinstance(self._cordon, Following) and emptied != self._told:
            self._try_now()
            self._break_off()
            self._emptied = self._told = emptied
            self._begin()

    def inherit(self, found: Callable[[str], None]) -> None:
        """Ask the cordon what an earlier daemon left closed.

        Args:
            found: Told the kernel boot id of then, where there is any.
        """
        if isinstance(self._cordon, Following):
            self._inherit = found
            self._begin()

    def end_soon(self) -> None:
        """Whatever an earlier daemon left stays unknown, if it still is; nothing is tried again."""
        self._inherit, self._ending = None, True
        self._stop_again()
        if self._looking and self._aside is not None:
            self._aside.cancel()

    def _want(self, wish: _Wish) -> None:
        self._wish, self._amended, self._emptied = wish, None, None
        self._stop_again()
        self._waiting = self._newest = None
        self._pause, self._told_wrong = self._again_seconds, False
        if self._aside is not None:
            self._aside.cancel()
        self._begin()

    def _break_off(self) -> None:
        """What is told of the flush's end may take until a deadline that is none any more."""
        if self._telling is not None and self._aside is not None:
            self._emptied = self._emptied or self._telling
            self._aside.cancel()

    def _later(self, what: _Wish | Order) -> None:
        """Have another try, if there is nothing newer until then."""
        newer = self._wish if isinstance(what, _Wish) else self._wish or self._amended
        if newer is not None:
            return
        self._waiting = what
        if not self._ending:
            self._again = get_running_loop().call_later(self._pause, self._due)
            self._pause = min(2 * self._pause, _MOST_AGAIN_SECONDS)

    def _due(self) -> None:
        self._next_try()
        self._break_off()
        self._begin()

    def _try_now(self) -> None:
        """There is news: what waits for another try goes before it, and waits for it no longer."""
        self._next_try()
        self._pause = self._again_seconds

    def _next_try(self) -> None:
        self._stop_again()
        waiting, self._waiting = self._waiting, None
        if isinstance(waiting, _Wish):
            self._wish = waiting
        elif waiting is not None:
            self._amended = waiting

    def _stop_again(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None

    def _begin(self) -> None:
        if not self._working:
            self._working = True
            self._run(self._work)

    async def _work(self) -> None:
        try:
            while (next_ := self._next()) is not None:
                try:
                    await next_
                except Exception:  # a bug here must not keep the next wish from being done
                    log.exception("cordon.broke", by=self.name)
        finally:
            self._working = False

    def _next(self) -> Coroutine[Any, Any, None] | None:
        """What is most urgent."""
        if (wish := self._wish) is not None:
            # Who closes or opens it now has no need to know how it was.
            self._wish = self._inherit = None
            return self._carry_out(wish)
        if isinstance(self._waiting, _Wish):
            return None
        if (amended := self._amended) is not None:
            self._amended = None
            return self._amend(amended)
        if (emptied := self._emptied) is not None:
            self._emptied = None
            return self._tell_emptied(emptied)
        if (found := self._inherit) is not None:
            self._inherit = None
            return self._look(found)
        return None

    async def _amend(self, order: Order) -> None:
        assert isinstance(self._cordon, Following)
        left = order.deadline - self._clock.monotonic()
        if (wrong := await self._cordon.amended(order, seconds_left=left)) is not None:
            self._failed(order, order, wrong)
        else:
            self._told_wrong = False

    async def _look(self, found: Callable[[str], None]) -> None:
        assert isinstance(self._cordon, Following)
        self._looking = True
        try:
            boot = await self._unless_wished(self._cordon.left_over())
        finally:
            self._looking = False
        # A wish that came meanwhile goes before: it writes anew what was read here.
        if boot is not None and self._wish is None:
            found(boot)

    async def _tell_emptied(self, emptied: _Emptied) -> None:
        assert isinstance(self._cordon, Following)
        left = emptied.order.deadline - self._clock.monotonic()
        self._telling = emptied
        try:
            wrong = await self._unless_wished(
                self._cordon.emptied(
                    emptied.order, kept=emptied.kept, lost=emptied.lost, seconds_left=left
                )
            )
        finally:
            self._telling = None
        if wrong is not None:
            self._tell(emptied.order.id, "cordon.failed", {"name": self.name, "reason": wrong})

    async def _unless_wished(self, work: Coroutine[Any, Any, str | None]) -> str | None:
        """What *work* returns; None where a wish has ended it."""
        # A group of its own, so that it alone is ended.
        async with TaskGroup() as tasks:
            self._aside = tasks.create_task(work)
        task, self._aside = self._aside, None
        return None if task.cancelled() else task.result()

    async def _carry_out(self, wish: _Wish) -> None:
        if wish.reason is None:
            await self._close(wish)
        elif self.closed:
            await self._reopen(wish, wish.reason)

    async def _close(self, wish: _Wish) -> None:
        began = self._clock.monotonic()
        self.closed = True
        if isinstance(self._cordon, Following):
            # A disk that is busy with the flush may take longer than the node should stay open.
            async with TaskGroup() as tasks:
                tasks.create_task(self._noted())
                await self._shut(wish, began)
        else:
            await self._noted()
            await self._shut(wish, began)

    async def _shut(self, wish: _Wish, began: float) -> None:
        order = wish.order
        if self._newest is not None and self._newest.id == order.id:
            order = self._newest
        left = order.deadline - self._clock.monotonic()
        if (wrong := await self._cordon.close(order, seconds_left=left)) is None:
            took = self._clock.monotonic() - began
            self._told_wrong = False
            self._tell(order.id, "cordon.closed", {"name": self.name, "seconds": took})
        else:
            self._failed(wish, order, wrong)

    async def _reopen(self, wish: _Wish, reason: str) -> None:
        wrong = await self._cordon.reopen(wish.order, reason=reason)
        if wrong is None:
            self.closed = self._told_wrong = False
            self._tell(wish.order.id, "cordon.reopened", {"name": self.name})
            await self._noted()
        else:
            # It stays noted as closed, so that the next cancel or start tries again.
            self._failed(wish, wish.order, wrong)

    def _failed(self, what: _Wish | Order, order: Order, wrong: str) -> None:
        passes = isinstance(wrong, Unanswered)
        # Told once, however often it is tried.
        if not (passes and self._told_wrong):
            self._tell(order.id, "cordon.failed", {"name": self.name, "reason": wrong})
        if passes:
            self._told_wrong = True
            self._later(what)
