"""All nodes of a job that leave save parts of the same generation, as far as they hold it.

The flush never waits for that: it begins with this node's own choice, which the departure tells. What
the job's rendezvous answers is the job's, and the planner prefers it from then on. A later leaver
may hold less (`evac.rendezvous.choices`), so the rendezvous is looked at again while the order runs.
"""

import asyncio
from asyncio import TaskGroup
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import asdict
from typing import Any, Protocol

import structlog

from evac.generation import Generation
from evacd.clock import Clock
from evacd.facts import Kept, Order, Outcome, Unit
from evacd.plan.agreement import missed, objection, supersedes
from evacd.rendezvous import Agreed

log = structlog.get_logger()

_LOOK_SECONDS = 1.0
# Past the deadline the flush works on, and so do the others'.
_OVERTIME_SECONDS = 120.0


class Pinned(Protocol):
    """Who keeps what was agreed on; `evacd.workloads.Board` does."""

    def units(self) -> tuple[Unit, ...]:
        """Who is on board."""
        ...

    def agree(self, unit: str, generation: Generation) -> str | None:
        """Keep it, and save it first; or why that is no use."""
        ...

    def disagree(self, unit: str, generation: Generation) -> None:
        """The counterpart of `agree`."""
        ...


class Agreement:
    """What the jobs on board have agreed on under the running order.

    Args:
        node: Of this daemon, as its departures name it; *boot* likewise.
        looks: Each reads one job's choice once more, where there is one.
        news: Told that the planner may see it otherwise now.
        record: Told each event, by its name in the report.
    """

    def __init__(
        self,
        board: Pinned,
        *,
        node: str,
        boot: str,
        looks: Iterable[Callable[[str], Coroutine[Any, Any, None]]],
        clock: Clock,
        news: Callable[[], None],
        record: Callable[[str, Mapping[str, Any]], None],
    ) -> None:
        self._board = board
        self._me = node, boot
        self._looks = tuple(looks)
        self._clock = clock
        self._news = news
        self._record = record
        self._heard: dict[str, Agreed] = {}
        # Why it is not followed, as was told last; "" where it is.
        self._told: dict[str, str] = {}
        self._kept: set[str] = set()

    def begin(self) -> None:
        """A new order: nothing was heard of its departure."""
        self._heard.clear()
        self._told.clear()
        self._kept.clear()

    def heard(self, agreed: Agreed) -> None:
        """The job's rendezvous has been read."""
        job, before = agreed.job, self._heard.get(agreed.job)
        unit = next((unit for unit in self._board.units() if unit.name == job), None)
        mine = (agreed.node, agreed.boot) == self._me
        if unit is None or (mine and unit.alone):
            # Where nobody else has to follow, the newest that fits is best.
            return
        if before is None or supersedes(agreed.generation, before.generation):
            self._heard[job] = agreed
            self._told.pop(job, None)
            self._kept.discard(job)
            self._say("choice.made", agreed)
        self._follow(unit, self._heard[job])

    def ended(self, outcome: Outcome) -> None:
        """Something became of a unit."""
        agreed = self._heard.get(outcome.unit)
        if agreed and isinstance(outcome, Kept) and outcome.generation == agreed.generation:
            self._kept.add(outcome.unit)

    def over(self, outcomes: Mapping[str, Outcome], failures: Mapping[str, str]) -> None:
        """Nothing is left to move, for now: tell whose part is of another generation.

        Args:
            failures: Why what was tried of each unit failed.
        """
        for job, agreed in self._heard.items():
            outcome = outcomes.get(job)
            if outcome is None or self._told.get(job) != "" or job in self._kept:
                continue
            if why := missed(agreed.generation, outcome, failed=failures.get(job, "")):
                self._tell(agreed, why)

    def stay(self) -> None:
        """This node does not leave after all: nobody goes with what it has chosen alone."""
        for job, agreed in self._heard.items():
            if (agreed.node, agreed.boot) == self._me:
                self._board.disagree(job, agreed.generation)
        self.begin()

    async def watch(self, order: Order) -> None:
        """Look for news while the machine may live; the caller ends it where that is over sooner."""
        until = order.deadline + _OVERTIME_SECONDS
        while self._looks and self._clock.monotonic() < until:
            await asyncio.sleep(_LOOK_SECONDS)
            async with TaskGroup() as tasks:
                for unit in self._board.units():
                    for look in self._looks:
                        tasks.create_task(look(unit.name))

    # --- the inside ----------------------------------------------------------------------

    def _follow(self, unit: Unit, agreed: Agreed) -> None:
        reason = objection(unit, agreed.generation)
        # Also what is not complete here: other ranks' step may be so in a moment.
        if unit.agreed != agreed.generation and not self._board.agree(unit.name, agreed.generation):
            self._news()
        # Who follows goes on doing so; whether it came to its end, `over` tells.
        if self._told.get(unit.name) not in ("", reason):
            self._tell(agreed, reason)

    def _tell(self, agreed: Agreed, reason: str) -> None:
        self._told[agreed.job] = reason
        if reason:
            self._say("choice.refused", agreed, reason=reason)
        else:
            self._say("choice.followed", agreed)

    def _say(self, name: str, agreed: Agreed, **more: str) -> None:
        facts = {"unit": agreed.job, "generation": asdict(agreed.generation), "by": agreed.node}
        log.info(name, unit=agreed.job, step=agreed.generation.step, by=agreed.node, **more)
        self._record(name, facts | more)
