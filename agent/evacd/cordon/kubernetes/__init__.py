"""The `kubernetes` cordon: unschedulable and a NoSchedule taint; in the end, where asked for, evictions.

In this order: `unschedulable` alone, which touches nothing else; the taint; a look whether both
are there. ``NoExecute`` is never set: it would end the very pods that are being saved. What is
only told of it, a condition and events, is `evacd.cordon.kubernetes.telling`'s: a line of its own,
so that an API server that takes a condition's patch and never answers holds neither the cordon
nor an eviction back.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import structlog

from evacd.cordon.kubernetes import marks
from evacd.cordon.kubernetes.asking import Asking, Refused
from evacd.cordon.kubernetes.evict import Evicted, evict
from evacd.cordon.kubernetes.trying import Step, Undone, each, last_word, seen
from evacd.facts import Order
from evacd.kube import Client

log = structlog.get_logger()

OTHERS_CURE = 'where another handler owns the node: cordon.kubernetes = "report-only"'
# The taint may be lost to whoever writes the whole list without looking.
_LOOKS = 3


class KubernetesCordon:
    """Closes this node at its API server."""

    name = "kubernetes"

    def __init__(
        self,
        client: Client,
        *,
        node: str,
        boot: str,
        timeout_seconds: float,
        report_only: bool = False,
        evict_pods: bool = False,
        look_again_seconds: float = 15.0,
        second_after_seconds: float = 1.5,
    ) -> None:
        """Make it ready; it asks nothing yet.

        Args:
            node: Its name as Kubernetes has it.
            boot: Kernel boot id.
            timeout_seconds: After which a close or a reopen is given up, whatever is missing.
            report_only: Another handler closes the node: only what was closed before is undone.
            evict_pods: Evict the pods once everything is saved.
            look_again_seconds: Between two tries to find out what an earlier daemon has left.
            second_after_seconds: See `Asking`.

        Raises:
            ValueError: The time limit is not positive.
        """
        if not timeout_seconds > 0:
            raise ValueError(f"timeout_seconds is {timeout_seconds}, expected more than 0")
        self._asks = partial(Asking, client, node, second_after_seconds=second_after_seconds)
        self._node = node
        self._boot = boot
        self._timeout = timeout_seconds
        self.closes = not report_only
        self._evict_pods = evict_pods
        self._look_again = look_again_seconds
        # Other handlers that have left their marks on the node, as it was last seen.
        self.others: tuple[str, ...] = ()
        # Not set while the node is being closed or opened.
        self.rests = asyncio.Event()
        self.rests.set()
        # The order for whose reopening it was found closed, by whichever try.
        self._found_closed: str | None = None

    def opened(self, order: str) -> bool:
        """Whether it was closed before the reopening under the order of this id, and by us alone."""
        return self._found_closed == order

    async def close(self, order: Order, *, seconds_left: float) -> str | None:
        """See `Cordon`."""
        self._found_closed = None
        if not self.closes:
            return None
        with self._busy():
            steps: dict[str, Step] = {"cordon": partial(self._shut, order)}
            return await each(self._asks, steps, seconds=self._timeout)

    async def reopen(self, order: Order, *, reason: str) -> str | None:
        """See `Cordon`."""
        with self._busy():
            # Where another handler closes it, there may be a mark of before.
            steps: dict[str, Step] = {"uncordon": partial(self._open, order.id)}
            return await each(self._asks, steps, seconds=self._timeout)

    async def amended(self, order: Order, *, seconds_left: float) -> str | None:
        """See `Following`: closed is closed."""
        return None

    async def emptied(
        self, order: Order, *, kept: int, lost: int, seconds_left: float
    ) -> str | None:
        """See `Following`."""
        if not self._evict_pods:
            return None
        if lost and seconds_left > 0:
            # What was given up may yet be written by its own job, in what is left of the time.
            return f"no pod evicted before the deadline: {lost} jobs are not saved"
        asking, result, seconds = self._asks(), Evicted(), max(seconds_left, self._timeout)
        try:
            async with asyncio.timeout(seconds):
                await evict(asking, self._node, result)
        except TimeoutError:
            if not result.listed:
                return f"no pod evicted: not listed within {seconds:g} s ({last_word(asking)})"
        except Refused as refused:
            return f"no pod evicted: {refused}"
        log.info("pods.evicted", pods=result.gone, left=len(result.left))
        return result.wrong

    async def rehearse(self) -> str | None:
        """Whether all of it would be allowed; the server is asked to change nothing."""
        steps: dict[str, Step] = {"cordon": self._try_to_shut} if self.closes else {}
        if self._evict_pods:
            steps["pods"] = self._may_list
        return await each(partial(self._asks, dry=True), steps, seconds=self._timeout)

    async def left_over(self) -> str | None:
        """See `Following`."""
        node = await seen(
            self._asks, by=self.name, seconds=self._timeout, look_again_seconds=self._look_again
        )
        self._see_others(node)
        mark = marks.mark_of(node)
        return None if mark is None else mark.boot

    async def _open(self, order: str, asking: Asking) -> None:
        before = await asking.node()
        if marks.is_cordoned(before):
            self._found_closed = order
        node = await asking.change(marks.reopening, before)
        if marks.is_cordoned(node):  # it is another's cordon, and stays
            self._found_closed = None

    async def _shut(self, order: Order, asking: Asking) -> None:
        node = await asking.node()
        self._see_others(node)
        close = partial(marks.closing, order=order.id, boot=self._boot)
        taint = partial(marks.tainting, value=f"{order.source}-{order.kind}")
        for _ in range(_LOOKS):
            if not marks.is_ours(node, self._boot):
                node = await asking.change(close, node, lists=False)
            await asking.change(taint, node)
            # What the answer to a patch says is what was stored, not what is there a moment later.
            node = await asking.node()
            if not (wrong := marks.still_open(node)):
                return
        raise Undone(f"somebody undoes it: {wrong}")

    def _see_others(self, node: marks.Node) -> None:
        others = marks.others(node)
        if others != self.others and others and self.closes:
            log.warning("cordon.others", handlers=list(others), cure=OTHERS_CURE)
        self.others = others

    async def _try_to_shut(self, asking: Asking) -> None:
        node = await asking.node()
        self.others = marks.others(node)
        await asking.change(partial(marks.closing, order="check", boot=self._boot), node)
        await asking.change(partial(marks.tainting, value="check"), node)

    async def _may_list(self, asking: Asking) -> None:
        params = {"fieldSelector": f"spec.nodeName={self._node}", "limit": "1"}
        await asking.ask("GET", "/api/v1/pods", params=params)

    @contextmanager
    def _busy(self) -> Iterator[None]:
        self.rests.clear()
        try:
            yield
        finally:
            self.rests.set()
