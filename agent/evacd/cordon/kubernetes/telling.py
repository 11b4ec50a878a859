"""What a Kubernetes node says of its leaving: a condition, and events. Nothing waits for it.

A line of its own beside the cordon's: an API server that takes the patch of a status and never
answers delays what is told, and neither the cordon nor an eviction. The condition lets the cordon
go first for a moment: both write the same object, and would each meet the other's version.
"""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from evacd.clock import Clock
from evacd.cordon.kubernetes import KubernetesCordon, marks, words
from evacd.cordon.kubernetes.asking import Asking, Refused
from evacd.cordon.kubernetes.trying import Step, each, seen
from evacd.facts import Confidence, Order
from evacd.kube import Client

# Of a cordon that needs longer nobody knows how long.
_HEAD_START_SECONDS = 1.0


class KubernetesTelling:
    """Tells of one node, and of what its cordon does."""

    name = "kubernetes-telling"
    closes = False

    def __init__(
        self,
        client: Client,
        clock: Clock,
        cordon: KubernetesCordon,
        *,
        node: str,
        boot: str,
        timeout_seconds: float,
        aliases: Iterable[str] = (),
        look_again_seconds: float = 15.0,
    ) -> None:
        """Make it ready; it asks nothing yet.

        Args:
            cordon: Of the same node.
            node: Its name as Kubernetes has it.
            boot: Kernel boot id.
            timeout_seconds: After which a step of it is given up.
            aliases: Other types of conditions that are set as ours is.
            look_again_seconds: Between two tries to find out what an earlier daemon has left.
        """
        self._asks = partial(Asking, client, node)
        self._clock = clock
        self._cordon = cordon
        self._node = node
        self._boot = boot
        self._timeout = timeout_seconds
        self._aliases = tuple(aliases)
        self._look_again = look_again_seconds
        self._uid = ""
        # The order for which it was told that the node is not closed.
        self._not_closed: str | None = None

    async def close(self, order: Order, *, seconds_left: float) -> str | None:
        """See `Cordon`: tell that it leaves."""
        text = self._told(order, seconds_left)
        return await self._each(
            {
                "condition": self._condition(_reason(order), text, going=True, waits=True),
                "event": self._event(order.id, "NoticeReceived", text, warning=True),
            }
        )

    async def reopen(self, order: Order, *, reason: str) -> str | None:
        """See `Cordon`: tell that it stays. That it is open, is told once it is: see `heard`."""
        return await self._each(
            {"condition": self._condition("Stays", reason, going=False, waits=True)}
        )

    async def amended(self, order: Order, *, seconds_left: float) -> str | None:
        """See `Following`."""
        text = self._told(order, seconds_left)
        name = f"NoticeAmended{order.amendments}"
        return await self._each(
            {
                "condition": self._condition(_reason(order), text, going=True, turned=False),
                "event": self._event(order.id, name, text, warning=True),
            }
        )

    async def emptied(
        self, order: Order, *, kept: int, lost: int, seconds_left: float
    ) -> str | None:
        """See `Following`."""
        text = f"{kept} jobs saved, {lost} lost; {seconds_left:.1f} s left; order {order.id}"
        name = "FlushIncomplete" if lost else "FlushCompleted"
        return await self._each({"event": self._event(order.id, name, text, warning=bool(lost))})

    async def heard(self, order: str, event: str, data: Mapping[str, Any]) -> str | None:
        """See `Telling`."""
        if data.get("name") != self._cordon.name:
            return None
        why = data.get("reason", "")
        match event, data.get("what"):
            case "cordon.failed", "close":
                self._not_closed = order
                step = self._event(order, "CordonError", f"not cordoned: {why}", warning=True)
            case "cordon.failed", "reopen":
                step = self._event(order, "UncordonError", f"not uncordoned: {why}", warning=True)
            case "cordon.closed", _ if order == self._not_closed:
                text = "it is cordoned now: no new work lands here"
                step = self._event(order, "Cordon", text, warning=False)
            case "cordon.reopened", _:
                # What others had closed, or what was never closed here, was not opened.
                name = "Uncordon" if self._cordon.opened(order) else "NoticeCancelled"
                step = self._event(order, name, why, warning=False)
            case _:
                return None
        return await self._each({"event": step})

    async def rehearse(self) -> str | None:
        """Whether all of it would be allowed; the server is asked to change nothing."""
        order = Order("check", 0.0, Confidence.ADVISORY, "evacd", "check", given=0.0)
        return await self._each(
            {
                "condition": self._condition("Check", "asked only", going=True),
                "event": self._event(order.id, "Check", "asked only", warning=False),
            },
            dry=True,
        )

    async def left_over(self) -> str | None:
        """See `Following`."""
        node = await seen(
            self._asks, by=self.name, seconds=self._timeout, look_again_seconds=self._look_again
        )
        self._uid = marks.uid_of(node)
        return words.boot_told(node)

    async def _each(self, steps: Mapping[str, Step], *, dry: bool = False) -> str | None:
        return await each(partial(self._asks, dry=dry), steps, seconds=self._timeout)

    def _told(self, order: Order, seconds_left: float) -> str:
        utc = self._clock.utc()
        return words.told(order, utc=utc, seconds_left=seconds_left, boot=self._boot)

    def _condition(
        self, reason: str, text: str, *, going: bool, turned: bool = True, waits: bool = False
    ) -> Step:
        patch = words.leaving(
            self._aliases,
            reason=reason,
            message=text,
            utc=self._clock.utc(),
            going=going,
            turned=turned,
        )

        async def step(asking: Asking) -> None:
            if waits:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_HEAD_START_SECONDS):
                        await self._cordon.rests.wait()
            await asking.status(patch)

        return step

    def _event(self, order: str, reason: str, text: str, *, warning: bool) -> Step:
        body = words.event(
            self._node,
            self._uid,
            order=order,
            reason=reason,
            message=text,
            utc=self._clock.utc(),
            warning=warning,
        )

        async def step(asking: Asking) -> None:
            try:
                await asking.ask("POST", words.EVENTS, body=body)
            except Refused as refused:
                if refused.status != 409:  # it was told before
                    raise

        return step


def _reason(order: Order) -> str:
    return f"{order.source}-{order.kind}"
