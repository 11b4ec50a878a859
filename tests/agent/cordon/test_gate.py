"""One cordon is worked strictly in order, whatever is asked of it and when."""

import asyncio
from asyncio import TaskGroup
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from evacd.clock import SystemClock
from evacd.cordon import Following
from evacd.cordon.gate import Gate
from evacd.facts import Confidence, Order

ONE = Order("one", 1030.0, Confidence.CERTAIN, "gcp", "preempted", given=1000.0)
TWO = Order("two", 1030.0, Confidence.CERTAIN, "gcp", "preempted", given=1000.0)


class Scheduler:
    """A cordon whose far end takes its time, and minds being asked twice at once."""

    name = "scheduler"

    def __init__(self, *, turns: int = 3, wrong: str | None = None) -> None:
        self.turns = turns
        self.wrong = wrong
        self.closed = False
        self.busy = False
        self.began = asyncio.Event()
        self.done: list[tuple[str, str]] = []

    async def close(self, order: Order, *, seconds_left: float) -> str | None:
        return await self._set(True, order)

    async def reopen(self, order: Order, *, reason: str) -> str | None:
        return await self._set(False, order)

    async def _set(self, closed: bool, order: Order) -> str | None:
        assert not self.busy, "two calls at the same time"
        self.busy = True
        self.began.set()
        for _ in range(self.turns):
            await asyncio.sleep(0)
        self.busy = False
        self.done.append(("close" if closed else "reopen", order.id))
        if self.wrong is None:
            self.closed = closed
        return self.wrong


class Scene:
    """A gate, and what it told and noted."""

    def __init__(self, scheduler: Scheduler, tasks: TaskGroup, **settings: Any) -> None:
        self.scheduler = scheduler
        self.tasks = tasks
        self.told: list[tuple[str, str]] = []
        self.noted: list[bool] = []
        self.gate = Gate(
            scheduler,
            clock=SystemClock(),
            run=self._run,
            tell=self._tell,
            **{"noted": self._note, **settings},
        )

    def _run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.tasks.create_task(work())

    def _tell(self, order: str, name: str, data: Mapping[str, Any]) -> None:
        assert data["name"] == "scheduler"
        self.told.append((order, name))

    async def _note(self) -> None:
        # Only what remembers it elsewhere may be closed before that.
        assert not self.scheduler.busy or isinstance(self.scheduler, Following)
        self.noted.append(self.gate.closed)


@asynccontextmanager
async def at_rest(scheduler: Scheduler, **settings: Any) -> AsyncIterator[Scene]:
    """A scene that is at rest when the block has ended."""
    async with TaskGroup() as tasks:
        yield Scene(scheduler, tasks, **settings)


async def test_a_reopen_waits_for_the_close_that_runs() -> None:
    scheduler = Scheduler(turns=20)
    async with at_rest(scheduler) as scene:
        scene.gate.close(ONE)
        await scheduler.began.wait()
        scene.gate.reopen(ONE, reason="cancelled")

    assert scheduler.done == [("close", "one"), ("reopen", "one")]
    assert not scheduler.closed
    assert scene.told == [("one", "cordon.closed"), ("one", "cordon.reopened")]


async def test_a_new_order_waits_for_the_reopen_that_runs() -> None:
    scheduler = Scheduler(turns=20)
    async with at_rest(scheduler) as scene:
        scene.gate.closed = True
        scene.gate.reopen(ONE, reason="cancelled")
        await scheduler.began.wait()
        scene.gate.close(TWO)

    assert scheduler.done == [("reopen", "one"), ("close", "two")]
    assert scheduler.closed


async def test_a_close_that_was_taken_back_before_it_began_is_not_done() -> None:
    scheduler = Scheduler()
    async with at_rest(scheduler) as scene:
        scene.gate.close(ONE)
        scene.gate.reopen(ONE, reason="cancelled")

    assert scheduler.done == []
    assert scene.noted == []


async def test_what_was_never_closed_is_never_reopened() -> None:
    scheduler = Scheduler()
    async with at_rest(scheduler) as scene:
        scene.gate.reopen(ONE, reason="cancelled")

    assert scheduler.done == []


async def test_a_close_that_failed_may_have_closed_and_is_undone() -> None:
    scheduler = Scheduler(wrong="no answer")
    async with at_rest(scheduler) as scene:
        scene.gate.close(ONE)
        await scheduler.began.wait()
        scene.gate.reopen(ONE, reason="cancelled")

    assert [what for what, _ in scheduler.done] == ["close", "reopen"]


async def test_it_is_noted_as_closed_before_it_is_closed() -> None:
    scheduler = Scheduler()
    async with at_rest(scheduler) as scene:
        scene.gate.close(ONE)
        await scheduler.began.wait()
        assert scene.noted == [True]


async def test_a_reopen_that_failed_stays_noted_as_closed() -> None:
    scheduler = Scheduler(wrong="no answer")
    async with at_rest(scheduler) as scene:
        scene.gate.closed = True
        scene.gate.reopen(ONE, reason="cancelled")

    assert scene.gate.closed
    assert scene.told == [("one", "cordon.failed")]


class Broken(Scheduler):
    """Its code fails on closing."""

    async def close(self, order: Order, *, seconds_left: float) -> str | None:
        self.began.set()
        raise RuntimeError("a bug")


async def test_a_bug_in_the_close_does_not_keep_it_from_being_undone() -> None:
    scheduler = Broken()
    async with at_rest(scheduler) as scene:
        scene.gate.close(ONE)
        await scheduler.began.wait()
        scene.gate.reopen(ONE, reason="cancelled")

    assert scheduler.done == [("reopen", "one")]


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 8)), min_size=1, max_size=12),
    st.integers(0, 5),
)
def test_at_rest_it_is_what_was_wished_last(wishes: list[tuple[bool, int]], turns: int) -> None:
    async def live() -> Scheduler:
        scheduler = Scheduler(turns=turns)
        async with at_rest(scheduler) as scene:
            for close, pause in wishes:
                if close:
                    scene.gate.close(ONE)
                else:
                    scene.gate.reopen(ONE, reason="cancelled")
                for _ in range(pause):
                    await asyncio.sleep(0)
        assert scene.gate.closed == scheduler.closed
        return scheduler

    assert asyncio.run(live()).closed == wishes[-1][0]
