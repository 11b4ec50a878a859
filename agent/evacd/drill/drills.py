"""One drill at a time: begins it, carries it out, gives way, and keeps the last one's report."""

from asyncio import Task, TaskGroup
from collections.abc import Callable, Mapping
from dataclasses import asdict
from itertools import count
from typing import Any

import structlog

from evac.wire import Drill
from evacd.clock import Clock
from evacd.drill.aboard import Rehearsal
from evacd.drill.report import Ended, Report, compare
from evacd.facts import Confidence, Kept, Notice, Order, Outcome
from evacd.flush import Flush
from evacd.plan.risk import Risk
from evacd.quiet import GiveWay
from evacd.report.journal import Journal

log = structlog.get_logger()

_GAVE_WAY = "it gave way to a real flush"


class Drills:
    """The drills of one node.

    Args:
        way: The workloads and the stores, and where the drill gives way.
        flush: The real one; its order and its rates count, and it learns from the drill.
        risk: What would be lost now, in a window of so many seconds.
        window: Seconds that a drill rehearses by default.
        reserve: Seconds before the deadline that no step is planned into.
        prefix: Of the drills' ids; unique to this run of the daemon.
        beside: Owns the drill's task.
        over: Told when a drill has ended.
    """

    def __init__(
        self,
        way: GiveWay,
        flush: Flush,
        journal: Journal,
        clock: Clock,
        *,
        risk: Callable[[float], Risk],
        window: Callable[[], float],
        reserve: float,
        node: str,
        boot: str,
        prefix: str,
        beside: TaskGroup,
        over: Callable[[], None],
    ) -> None:
        self._way = way
        self._flush = flush
        self._journal = journal
        self._clock = clock
        self._risk = risk
        self._window = window
        self._reserve = reserve
        self._node = node
        self._boot = boot
        self._ids = (f"drill-{prefix}-{number}" for number in count(1))
        self._beside = beside
        self._over = over
        self._task: Task[None] | None = None
        self._shown: dict[str, Any] | None = None

    @property
    def running(self) -> bool:
        """One runs now."""
        return self._task is not None

    def shown(self) -> Mapping[str, Any] | None:
        """The running drill, or the last one, as JSON takes it; None before the first."""
        return self._shown

    def begin(self, message: Drill) -> str:
        """Start a drill; why not, or ""."""
        if self._flush.order is not None:
            return "an evacuation is running"
        if self._task is not None:
            return "a drill is running"
        window = message.seconds or self._window()
        now = self._clock.monotonic()
        predicted = self._risk(window)
        id = next(self._ids)
        self._show(id, compare(predicted, reserve=self._reserve, began=now, ended=None), message)
        if message.flush:
            self._task = self._beside.create_task(self._run(id, predicted, now, message))
        else:
            log.info("drill.planned", drill=id, window_seconds=window, lost=self._lost())
        return ""

    def give_way(self) -> None:
        """End it now: a real flush begins, or the daemon stops."""
        if self._task is not None:
            self._task.cancel()

    # --- one drill -----------------------------------------------------------------------

    async def _run(self, id: str, predicted: Risk, began: float, message: Drill) -> None:
        window = predicted.window_seconds
        order = Order(
            id, began + window, Confidence.ADVISORY, "operator", "drill", given=began
        )  # fmt: skip
        notice = Notice("operator", "drill", id, Confidence.ADVISORY, order.deadline, seen=began)
        self._journal.open(order, notice, node=self._node, boot=self._boot)
        self._journal.record(
            id, "drill.started",
            {"window_seconds": window, "predicted_margin_seconds": predicted.margin_seconds},
        )  # fmt: skip
        log.info("drill.started", drill=id, window_seconds=window)
        ended: dict[str, Ended] = {}
        self._way.beside(self.give_way)
        reason = _GAVE_WAY
        try:
            await self._carry_out(order, predicted, ended)
            reason = ""
        except Exception as error:  # a bug in a drill must not end the daemon
            log.exception("drill.failed", drill=id)
            reason = f"it failed: {type(error).__name__}"
        finally:
            self._way.no_more(self.give_way)
            self._task = None
            report = compare(predicted, reserve=self._reserve, began=began, ended=ended)
            self._show(id, report, message, ended=True, reason=reason)
            verdict = f"{len(report.units) - len(report.lost)} safe, {len(report.lost)} lost"
            if reason:
                verdict = f"{reason}; {verdict}"
            self._journal.record(id, "report.written", {"verdict": verdict})
            self._journal.close(id)
            log.info(
                "drill.finished",
                drill=id,
                verdict=verdict,
                predicted_margin_seconds=round(report.predicted_margin_seconds, 3),
                drilled_margin_seconds=round(report.drilled_margin_seconds or 0.0, 3),
            )
            self._over()

    async def _carry_out(self, order: Order, predicted: Risk, ended: dict[str, Ended]) -> None:
        rehearsal = Rehearsal(self._way, [unit.unit for unit in predicted.units])

        def take(outcome: Outcome) -> None:
            ended[outcome.unit] = Ended(outcome, self._clock.monotonic())
            if isinstance(outcome, Kept):
                rehearsal.done(outcome.unit)

        flush = Flush(
            rehearsal,
            rehearsal,
            lanes=self._flush.rates,
            assumed=1.0,
            reserve=self._reserve,
            commit_seconds=0.0,
            clock=self._clock,
            record=lambda name, data: self._journal.record(order.id, name, data),
            ended=take,
            idle=lambda: None,
        )
        flush.rates.update(self._flush.rates)
        flush.commits.update(self._flush.commits)
        async with TaskGroup() as tasks:
            drivers = [tasks.create_task(flush.drive(lane)) for lane in flush.rates]
            flush.evacuate(order)
            await flush.settled.wait()
            for driver in drivers:
                driver.cancel()
        self._flush.rates.update(flush.rates)
        self._flush.commits.update(flush.commits)

    def _show(
        self,
        id: str,
        report: Report,
        message: Drill,
        *,
        ended: bool = False,
        reason: str = "",
    ) -> None:
        self._shown = {
            "id": id,
            "flush": message.flush,
            "running": message.flush and not ended,
            "reason": reason,
            **asdict(report),
            "lost": list(report.lost),
        }

    def _lost(self) -> list[str]:
        return list(self._shown["lost"]) if self._shown else []
