"""The `kubernetes` cordon: unschedulable and a NoSchedule taint, a condition, events.

In this order: `unschedulable` alone, which touches nothing else; the taint; a look whether both
are there; the condition; the events, which also say so where it could not be closed. What one of them meets keeps none of the others from
being tried. ``NoExecute`` is never set: it would end the very pods that are being saved.
"""

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from functools import partial
from typing import Any

import structlog

from evacd.clock import Clock
from evacd.cordon import Unanswered
from evacd.cordon.kubernetes import marks, words
from evacd.cordon.kubernetes.asking import Asking, Refused
from evacd.cordon.kubernetes.evict import Evicted, evict
from evacd.facts import Confidence, Order
from evacd.kube import Client

log = structlog.get_logger()

OTHERS_CURE = 'where another handler owns the node: cordon.kubernetes = "report-only"'
# The taint may be lost to whoever writes the whole list without looking.
_LOOKS = 3


class KubernetesCordon:
    """Tells this node's API server."""

    name = "kubernetes"

    def __init__(
        self,
        client: Client,
        clock: Clock,
        *,
        node: str,
        boot: str,
        timeout_seconds: float,
        report_only: bool = False,
        aliases: Iterable[str] = (),
        evict_pods: bool = False,
        look_again_seconds: float = 15.0,
    ) -> None:
        """Make it ready; it asks nothing yet.

        Args:
            node: Its name as Kubernetes has it.
            boot: Kernel boot id.
            timeout_seconds: After which a close or a reopen is given up, whatever is missing.
            report_only: Another handler closes the node: only condition and events are ours.
            aliases: Other types of conditions that are set as ours is.
            evict_pods: Evict the pods once everything is saved.
            look_again_seconds: Between two tries to find out what an earlier daemon has left.

        Raises:
            ValueError: The time limit is not positive.
        """
        if not timeout_seconds > 0:
            raise ValueError(f"timeout_seconds is {timeout_seconds}, expected more than 0")
        self._client = client
        self._clock = clock
        self._node = node
        self._boot = boot
        self._timeout = timeout_seconds
        self._report_only = report_only
        self._aliases = tuple(aliases)
        self._evict_pods = evict_pods
        self._look_again = look_again_seconds
        self._uid = ""
        # Other handlers that have left their marks on the node, as it was last seen.
        self.others: tuple[str, ...] = ()
        # The order for whose reopening it was found closed, by whichever try.
        self._found_closed: str | None = None

    async def close(self, order: Order, *, seconds_left: float) -> str | None:
        """See `Cordon`."""
        asking = Asking(self._client, self._node)
        self._found_closed = None
        text = self._told(order, seconds_left)
        reason = f"{order.source}-{order.kind}"
        wrong: dict[str, str] = {}
        steps: dict[str, Coroutine[Any, Any, None]] = {}
        if not self._report_only:
            steps["cordon"] = self._shut(asking, order)
        steps["condition"] = self._condition(asking, reason, text, going=True)
        steps["event"] = self._tell_closed(asking, order, text, wrong)
        return await self._each(asking, steps, wrong)

    async def reopen(self, order: Order, *, reason: str) -> str | None:
        """See `Cordon`."""
        asking, wrong = Asking(self._client, self._node), dict[str, str]()
        # Where it only tells, there may be a mark of before: nothing is patched where there is none.
        steps: dict[str, Coroutine[Any, Any, None]] = {"uncordon": self._open(asking, order)}
        steps["condition"] = self._condition(asking, "Stays", reason, going=False)
        steps["event"] = self._tell_reopened(asking, order, reason, wrong)
        return await self._each(asking, steps, wrong)

    async def emptied(
        self, order: Order, *, kept: int, lost: int, seconds_left: float
    ) -> str | None:
        """See `Following`."""
        asking = Asking(self._client, self._node)
        text = f"{kept} jobs saved, {lost} lost; {seconds_left:.1f} s left; order {order.id}"
        name = "FlushIncomplete" if lost else "FlushCompleted"
        wrong = await self._each(
            asking, {"event": self._event(asking, order, name, text, warning=bool(lost))}
        )
        if not self._evict_pods:
            return wrong
        if lost and seconds_left > 0:
            # What was given up may yet be written by its own job, in what is left of the time.
            spared = f"no pod evicted before the deadline: {lost} jobs are not saved"
            return "; ".join(each for each in (wrong, spared) if each)
        result = Evicted()
        try:
            async with asyncio.timeout(max(seconds_left, self._timeout)):
                await evict(asking, self._node, result)
        except TimeoutError:
            pass
        except Refused as refused:
            return f"no pod evicted: {refused}"
        log.info("pods.evicted", pods=result.gone, left=len(result.left))
        return "; ".join(each for each in (wrong, result.wrong) if each) or None

    async def amended(self, order: Order, *, seconds_left: float) -> str | None:
        """See `Following`."""
        asking = Asking(self._client, self._node)
        text = self._told(order, seconds_left)
        reason = f"{order.source}-{order.kind}"
        name = f"NoticeAmended{order.amendments}"
        return await self._each(
            asking,
            {
                "condition": self._condition(asking, reason, text, going=True, turned=False),
                "event": self._event(asking, order, name, text, warning=True),
            },
        )

    async def rehearse(self) -> str | None:
        """Whether all of it would be allowed; the server is asked to change nothing."""
        asking = Asking(self._client, self._node, dry=True)
        order = Order("check", 0.0, Confidence.ADVISORY, "evacd", "check", given=0.0)
        steps: dict[str, Coroutine[Any, Any, None]] = {}
        if not self._report_only:
            steps["cordon"] = self._try_to_shut(asking)
        steps["condition"] = self._condition(asking, "Check", "asked only", going=True)
        steps["event"] = self._event(asking, order, "Check", "asked only", warning=False)
        if self._evict_pods:
            steps["pods"] = self._may_list(asking)
        return await self._each(asking, steps)

    async def left_over(self) -> str | None:
        """See `Following`."""
        told = False
        while True:
            asking = Asking(self._client, self._node)
            try:
                async with asyncio.timeout(self._timeout):
                    node = await asking.node()
            except TimeoutError:
                reason = asking.last.reason if asking.last else "no answer in time"
            except Refused as refused:
                reason = str(refused)
            else:
                mark = marks.mark_of(node)
                self._see_others(node)
                # Report-only leaves no mark, and a cordon may have been refused where the
                # condition was not: each of them is undone.
                return words.boot_told(node) if mark is None else mark.boot
            if not told:
                log.warning("cordon.unknown", by=self.name, reason=reason)
                told = True
            await asyncio.sleep(self._look_again)

    async def _shut(self, asking: Asking, order: Order) -> None:
        node = await asking.node()
        self._uid = marks.uid_of(node)
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
        raise _Undone(f"somebody undoes it: {wrong}")

    def _see_others(self, node: marks.Node) -> None:
        others = marks.others(node)
        if others != self.others and others and not self._report_only:
            log.warning("cordon.others", handlers=list(others), cure=OTHERS_CURE)
        self.others = others

    async def _try_to_shut(self, asking: Asking) -> None:
        node = await asking.node()
        self._uid, self.others = marks.uid_of(node), marks.others(node)
        await asking.change(partial(marks.closing, order="check", boot=self._boot), node)
        await asking.change(partial(marks.tainting, value="check"), node)

    async def _may_list(self, asking: Asking) -> None:
        params = {"fieldSelector": f"spec.nodeName={self._node}", "limit": "1"}
        await asking.ask("GET", "/api/v1/pods", params=params)

    async def _open(self, asking: Asking, order: Order) -> None:
        before = await asking.node()
        self._uid = marks.uid_of(before)
        if marks.is_cordoned(before):
            self._found_closed = order.id
        node = await asking.change(marks.reopening, before)
        if marks.is_cordoned(node):  # it is another's cordon, and stays
            self._found_closed = None

    async def _tell_closed(
        self, asking: Asking, order: Order, text: str, wrong: Mapping[str, str]
    ) -> None:
        await self._event(asking, order, "NoticeReceived", text, warning=True)
        if (why := wrong.get("cordon")) is not None:
            await self._event(asking, order, "CordonError", f"not cordoned: {why}", warning=True)

    async def _tell_reopened(
        self, asking: Asking, order: Order, reason: str, wrong: Mapping[str, str]
    ) -> None:
        if (why := wrong.get("uncordon")) is not None:
            text = f"{reason}, and it is not uncordoned: {why}"
            await self._event(asking, order, "UncordonError", text, warning=True)
            return
        name = "Uncordon" if self._found_closed == order.id else "NoticeCancelled"
        await self._event(asking, order, name, reason, warning=False)

    def _told(self, order: Order, seconds_left: float) -> str:
        utc = self._clock.utc()
        return words.told(order, utc=utc, seconds_left=seconds_left, boot=self._boot)

    async def _condition(
        self, asking: Asking, reason: str, text: str, *, going: bool, turned: bool = True
    ) -> None:
        await asking.status(
            words.leaving(
                self._aliases,
                reason=reason,
                message=text,
                utc=self._clock.utc(),
                going=going,
                turned=turned,
            )
        )

    async def _event(
        self, asking: Asking, order: Order, reason: str, text: str, *, warning: bool
    ) -> None:
        body = words.event(
            self._node,
            self._uid,
            order=order.id,
            reason=reason,
            message=text,
            utc=self._clock.utc(),
            warning=warning,
        )
        try:
            await asking.ask("POST", words.EVENTS, body=body)
        except Refused as refused:
            if refused.status != 409:  # it was told before
                raise

    async def _each(
        self,
        asking: Asking,
        steps: Mapping[str, Coroutine[Any, Any, None]],
        wrong: dict[str, str] | None = None,
    ) -> str | None:
        """One after the other, all within the time limit; what went wrong, or None.

        Args:
            wrong: Gets what went wrong with each step, for those behind it.
        """
        wrong = {} if wrong is None else wrong
        left = list(steps)
        try:
            async with asyncio.timeout(self._timeout):
                for name, step in steps.items():
                    try:
                        await step
                    except (Refused, _Undone) as error:
                        wrong[name] = str(error)
                    left.remove(name)
        except TimeoutError:
            last = asking.last
            why = f"{last.reason}: {last.cure}" if last else "no answer in time"
            wrong |= dict.fromkeys(left, "not reached")
            wrong |= dict.fromkeys(left[:1], f"not done within {self._timeout:g} s ({why})")
        finally:
            for step in steps.values():
                step.close()
        text = "; ".join(f"{name}: {text}" for name, text in wrong.items())
        return Unanswered(text) if left else text or None


class _Undone(Exception):
    """It was done, and is not there."""
