"""One cordon, strictly in order: a close and a reopen never run at the same time.

What is asked for while the cordon works waits for it to end, and only the last thing asked
for is then done. A running close is waited for, not ended: what a killed program has already
sent to its scheduler may land after the reopen, and then the node stays closed. What ended for
want of an answer is tried again, ever less often and at once where there is news, until it is
done or something else is wished: a node that is never opened again costs money, one that stays
open has new work lost. What follows a close waits for it: a pod that is evicted from a node that
is still open may land there again. Nothing waits for one that only tells.
"""

from asyncio import Task, TaskGroup, TimerHandle, get_running_loop
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any

import structlog

from evacd.clock import Clock
from evacd.cordon import Cordon, Following, Telling, Unanswered, closes
from evacd.cordon.account import Account
from evacd.facts import Order

log = structlog.get_logger()

_MOST_AGAIN_SECONDS = 300.0
# While a server gives no answer: the newest count.
_MOST_NEWS = 16


@dataclass(frozen=True)
class _Wish:
    """What the cordon shall do next: reopen because of `reason`, or close where it is None."""

    order: Order
    reason: str | None = None


@dataclass(frozen=True)
class _News:
    """What another cordon did."""

    order: str
    event: str
    data: Mapping[str, Any]


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
        end_seconds: float = 10.0,
    ) -> None:
        """Wire it up.

        Args:
            run: Runs work beside the flush.
            tell: Told the order's id, the event's name and its data.
            noted: Awaited when `closed` became true, before the cordon is asked to close:
                what may have been done must be known after a crash; beside that where the
                cordon remembers it elsewhere. Called when it became false.
            again_seconds: Until what had no answer is tried again for the first time.
            end_seconds: What follows the flush has so long after `end_soon`.
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
        self._looking = self._ending = self._cut_off = False
        self._end_seconds = end_seconds
        self._again_seconds = self._pause = again_seconds
        self._again: TimerHandle | None = None
        # What had no answer: an order is an amendment's.
        self._waiting: _Wish | Order | None = None
        self._told_wrong = False
        # As it was amended last.
        self._newest: Order | None = None
        self._inherit: Callable[[str], None] | None = None
        self._news = deque[_News](maxlen=_MOST_NEWS)
        self._working = False
        self._account = Account()

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

    def heard(self, order: str, event: str, data: Mapping[str, Any]) -> None:
        """Another cordon did something, under the order of this id."""
        if isinstance(self._cordon, Telling):
            self._news.append(_News(order, event, data))
            self._begin()

    def shown(self) -> dict[str, Any]:
        """How it stands, for `evac status`: what is wished, and what keeps it from being so."""
        return {
            "name": self.name,
            "closes": closes(self._cordon),
            "tells": isinstance(self._cordon, Telling),
            "again": self._waiting is not None or (not self._account.done and self._working),
            **self._account.shown(closed=self.closed),
        }

    def end_soon(self) -> None:
        """Whatever an earlier daemon left stays unknown, if it still is; nothing is tried again."""
        self._inherit, self._ending = None, True
        self._stop_again()
        if self._looking and self._aside is not None:
            self._aside.cancel()
        self._limit_the_end()

    def _limit_the_end(self) -> None:
        """Pods that a budget holds are asked for until the deadline, which may be hours away."""
        get_running_loop().call_later(self._end_seconds, self._cut)

    def _cut(self) -> None:
        if self._telling is not None and self._aside is not None:
            self._cut_off = True
            self._aside.cancel()

    def _want(self, wish: _Wish) -> None:
        self._wish, self._amended, self._emptied = wish, None, None
        self._stop_again()
        self._waiting = self._newest = None
        self._pause, self._told_wrong = self._again_seconds, False
        self._account.wish(closed=wish.reason is None)
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
        # Another try of the close tells the newest deadline as well.
        if newer is not None or (isinstance(what, Order) and isinstance(self._waiting, _Wish)):
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
                    self._account.ended("broke", "evacd failed at it: see its log")
        finally:
            self._working = False

    def _next(self) -> Coroutine[Any, Any, None] | None:
        """What is most urgent."""
        if (wish := self._wish) is not None:
            self._wish = None
            if wish.reason is None or self.closed:
                # Who closes or opens it now has no need to know how it was.
                self._inherit = None
            return self._carry_out(wish)
        # At the end a server that gives no answer is not waited for again and again.
        held = self._ending or not isinstance(self._cordon, Telling)
        if held and isinstance(self._waiting, _Wish):
            return None
        if self._news:
            return self._hear(self._news.popleft())
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
            self._failed(order, order, wrong, what="amend")
        else:
            self._told_wrong = False
            self._account.ended("amend", None)

    async def _hear(self, news: _News) -> None:
        assert isinstance(self._cordon, Telling)
        wrong = await self._cordon.heard(news.order, news.event, news.data)
        self._ended_with(news.order, wrong, what="hear")

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
        if self._ending:
            self._limit_the_end()
        try:
            wrong = await self._unless_wished(
                self._cordon.emptied(
                    emptied.order, kept=emptied.kept, lost=emptied.lost, seconds_left=left
                )
            )
        finally:
            self._telling = None
        if self._cut_off:
            wrong = "not ended: evacd stops before the deadline"
        self._ended_with(emptied.order.id, wrong, what="empty")

    def _ended_with(self, order: str, wrong: str | None, *, what: str) -> None:
        """It is not tried again."""
        self._account.ended(what, wrong)
        if wrong is not None:
            self._tell(order, "cordon.failed", {"name": self.name, "reason": wrong, "what": what})

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
        else:
            self._account.fulfilled()

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
            told = isinstance(self._cordon, Telling)
            name = "cordon.told" if told else "cordon.closed" if closes(self._cordon) else ""
            self._succeeded(wish, name, {"seconds": took})
        else:
            self._failed(wish, order, wrong, what="close")

    async def _reopen(self, wish: _Wish, reason: str) -> None:
        wrong = await self._cordon.reopen(wish.order, reason=reason)
        if wrong is None:
            self.closed = False
            told = isinstance(self._cordon, Telling)
            name = "cordon.told" if told else "cordon.reopened"
            self._succeeded(wish, name, {"reason": reason})
            await self._noted()
        else:
            # It stays noted as closed, so that the next cancel or start tries again.
            self._failed(wish, wish.order, wrong, what="reopen")

    def _succeeded(self, wish: _Wish, name: str, data: Mapping[str, Any]) -> None:
        self._told_wrong = False
        self._account.ended("close" if wish.reason is None else "reopen", None)
        if self._wish is None:  # a newer one may have come meanwhile
            self._account.fulfilled()
        if name:
            self._tell(wish.order.id, name, {"name": self.name, **data})

    def _failed(self, wished: _Wish | Order, order: Order, wrong: str, *, what: str) -> None:
        passes = isinstance(wrong, Unanswered)
        self._account.ended(what, wrong)
        # Told once, however often it is tried.
        if not (passes and self._told_wrong):
            data = {"name": self.name, "reason": wrong, "what": what}
            self._tell(order.id, "cordon.failed", data)
        if passes:
            self._told_wrong = True
            self._later(wished)
