"""One cordon, strictly in order: a close and a reopen never run at the same time.

What is asked for while the cordon works waits for it to end, and only the last thing asked
for is then done. A running close is waited for, not ended: what a killed program has already
sent to its scheduler may land after the reopen, and then the node stays closed.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from evacd.clock import Clock
from evacd.cordon import Cordon
from evacd.facts import Order

log = structlog.get_logger()


@dataclass(frozen=True)
class _Wish:
    """What the cordon shall do next: reopen because of `reason`, or close where it is None."""

    order: Order
    reason: str | None = None


class Gate:
    """Carries out what is wished of one cordon, and knows whether it may be closed."""

    def __init__(
        self,
        cordon: Cordon,
        *,
        clock: Clock,
        run: Callable[[Callable[[], Coroutine[Any, Any, None]]], None],
        tell: Callable[[str, str, Mapping[str, Any]], None],
        noted: Callable[[], Awaitable[None]],
    ) -> None:
        """Wire it up.

        Args:
            run: Runs work beside the flush.
            tell: Told the order's id, the event's name and its data.
            noted: Awaited when `closed` became true, before the cordon is asked to close:
                what may have been done must be known after a crash. Called when it became
                false.
        """
        self.name = cordon.name
        self.closed = False
        self._cordon = cordon
        self._clock = clock
        self._run = run
        self._tell = tell
        self._noted = noted
        self._wish: _Wish | None = None
        self._working = False

    def close(self, order: Order) -> None:
        """Let no new work land here, once what runs has ended."""
        self._want(_Wish(order))

    def reopen(self, order: Order, *, reason: str) -> None:
        """Undo the close, once it has ended; nothing where there was none."""
        self._want(_Wish(order, reason))

    def _want(self, wish: _Wish) -> None:
        self._wish = wish
        if not self._working:
            self._working = True
            self._run(self._work)

    async def _work(self) -> None:
        try:
            while (wish := self._wish) is not None:
                self._wish = None
                try:
                    await self._carry_out(wish)
                except Exception:  # a bug here must not keep the next wish from being done
                    log.exception("cordon.broke", by=self.name)
        finally:
            self._working = False

    async def _carry_out(self, wish: _Wish) -> None:
        if wish.reason is None:
            await self._close(wish.order)
        elif self.closed:
            await self._reopen(wish.order, wish.reason)

    async def _close(self, order: Order) -> None:
        began = self._clock.monotonic()
        self.closed = True
        await self._noted()
        wrong = await self._cordon.close(
            order, seconds_left=order.deadline - self._clock.monotonic()
        )
        if wrong is None:
            took = self._clock.monotonic() - began
            self._tell(order.id, "cordon.closed", {"name": self.name, "seconds": took})
        else:
            self._tell(order.id, "cordon.failed", {"name": self.name, "reason": wrong})

    async def _reopen(self, order: Order, reason: str) -> None:
        wrong = await self._cordon.reopen(order, reason=reason)
        if wrong is None:
            self.closed = False
            self._tell(order.id, "cordon.reopened", {"name": self.name})
            await self._noted()
        else:
            # It stays noted as closed, so that the next cancel or start tries again.
            self._tell(order.id, "cordon.failed", {"name": self.name, "reason": wrong})
