"""A job's own order, beside a journal that is real."""

import asyncio
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from evac import incident
from evac.incident import Ending
from evacd import own_before
from evacd.facts import Confidence, Notice, Order, Outcome, Unit
from evacd.own_before import Before, Over, Unclosed
from evacd.own_orders import COME_BACK_SECONDS, OwnOrders
from evacd.report.journal import Journal
from evacd.workloads import Left, TurnResult

UNIT = "alice/index"
HOUR = 3600.0


class Hand:
    """Moves when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def utc(self) -> datetime:
        return datetime(2026, 11, 30, tzinfo=UTC)


class Flush:
    """Nothing moves."""

    def __init__(self) -> None:
        self.order: Order | None = None
        self.outcomes: dict[str, Outcome] = {}
        self.settled = asyncio.Event()
        self.running: Collection[object] = ()
        self.rescued: list[str] = []

    def rescue(self, unit: str, *, deadline: float | None = None) -> None:
        self.rescued.append(unit)


class Aboard:
    """One job, of so many callback workloads that all do well."""

    def __init__(self) -> None:
        self.back = 0
        self.hurried: list[tuple[str, str | None]] = []
        self.turns: list[str] = []

    def units(self) -> tuple[Unit, ...]:
        return (Unit(UNIT, 0, 0.0, (), turn_seconds=5.0),)

    def returning(self, unit: str) -> bool:
        return False

    def callers(self, unit: str) -> int:
        return self.back

    def hurry(self, order: Order, unit: str | None = None) -> None:
        self.hurried.append((order.id, unit))

    async def turn(
        self, unit: str, *, seconds: float, order: str, patience: float | None = None
    ) -> TurnResult:
        self.turns.append(order)
        return TurnResult(True, 7 * self.back, "")


class Scene:
    """All of it."""

    def __init__(self, folder: Path) -> None:
        self.clock, self.flush, self.aboard = Hand(), Flush(), Aboard()
        self.path = folder / "incidents.sqlite"
        self.journal = Journal(self.path, self.clock)
        self.counted: list[tuple[str, Any]] = []
        self._tasks: list[asyncio.Task[None]] = []
        ids = count(1)
        self.own = OwnOrders(
            self.flush,
            self.aboard,
            aboard=self.aboard,
            journal=self.journal,
            clock=self.clock,
            new_id=lambda: f"w{next(ids)}",
            node="n",
            boot="b",
            count=self._count,
            beside=self._beside,
        )

    def _count(self, name: str, data: Mapping[str, Any]) -> None:
        self.counted.append((name, data.get("result")))

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.ensure_future(work))

    async def done(self) -> None:
        for task in self._tasks:
            await task
        await self.journal.settled()

    def shown(self) -> dict[str, Any]:
        (one,) = self.own.shown(now=self.clock.now)
        return one

    def before(self, callers: int, *gone: int) -> Before:
        """An order that an earlier daemon has opened the incident of."""
        order = own_before.ordered("before", given=990.0, deadline=990.0 + HOUR)
        self.opened("before")
        return Before(order, UNIT, callers, None, frozenset(gone))

    def opened(self, id: str) -> None:
        """An incident that nobody has closed."""
        order = own_before.ordered(id, given=990.0, deadline=990.0 + HOUR)
        notice = Notice(order.source, order.kind, id, order.confidence, order.deadline, 990.0)
        self.journal.open(order, notice, node="n", boot="b")

    def units_of(self, id: str) -> list[tuple[Ending, str]]:
        """What `evac report` tells of a closed one."""
        (found,) = incident.load(self.path, id=id)
        assert found.ended is not None
        return [(unit.ending, unit.reason) for unit in incident.summary(found).units]


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.journal.stop()


async def test_a_job_of_which_only_some_came_back_has_its_turn_and_is_no_success(
    scene: Scene,
) -> None:
    scene.own.resume([scene.before(4)])
    scene.aboard.back = 1
    scene.own.tick()
    assert scene.aboard.turns == []

    scene.clock.now += COME_BACK_SECONDS
    scene.own.tick()
    await scene.done()

    assert scene.aboard.turns == ["before"]
    assert (scene.shown()["state"], scene.shown()["reason"]) == ("lost", "only 1 of 4 came back")
    assert scene.units_of("before") == [(Ending.LOST, "only 1 of 4 came back")]


async def test_a_job_of_which_nobody_is_back_yet_is_asked_whenever_one_comes_in_its_time(
    scene: Scene,
) -> None:
    scene.own.resume([scene.before(1)])
    scene.clock.now += 10 * COME_BACK_SECONDS
    scene.own.tick()
    assert scene.aboard.turns == []

    scene.aboard.back = 1
    scene.own.tick()
    await scene.done()

    assert scene.aboard.turns == ["before"]
    assert (scene.shown()["state"], scene.shown()["nbytes"]) == ("kept", 7)


async def test_a_job_of_which_nobody_comes_back_is_lost_when_its_time_is_over(scene: Scene) -> None:
    scene.own.resume([scene.before(1)])
    scene.clock.now += HOUR
    scene.own.tick()
    await scene.done()

    # As the board answers for a job that is not there.
    assert scene.aboard.turns == ["before"]


async def test_who_has_left_as_finished_is_waited_for_by_nobody_and_is_not_missing(
    scene: Scene,
) -> None:
    # One before the daemon was started again, and two since; and one whom nobody gives a turn.
    scene.own.resume([scene.before(4, 0)])
    scene.own.left(Left(UNIT, 1, calls=True))
    scene.aboard.back = 1
    scene.own.left(Left(UNIT, 3))
    scene.own.tick()
    assert scene.aboard.turns == []

    scene.own.left(Left(UNIT, 2, calls=True))
    scene.own.tick()
    await scene.done()

    assert scene.aboard.turns == ["before"]
    assert (scene.shown()["state"], scene.shown()["nbytes"]) == ("kept", 7)
    (one,) = incident.load(scene.path, id="before")
    left = [event.data["rank"] for event in one.events if event.name == "workload.left"]
    assert left == [1, 2]


async def test_less_time_for_one_job_under_the_nodes_order_is_none_of_anothers_business(
    scene: Scene,
) -> None:
    scene.flush.order = Order(
        "node", scene.clock.now + HOUR, Confidence.CERTAIN, "gcp", "preempted", given=scene.clock.now
    )  # fmt: skip
    scene.aboard.back = 1
    for seconds in (900.0, 0.0):
        assert isinstance(scene.own.ask(UNIT, seconds, uid=1), Order)

    assert scene.aboard.hurried == [("node", UNIT)]


async def test_what_is_given_up_is_counted_and_what_has_an_end_is_closed_with_it(
    scene: Scene,
) -> None:
    scene.opened("lost")
    scene.opened("kept")
    told = {"verdict": "1 saved, 0 lost", "unit": UNIT, "kept": True}
    scene.journal.record("kept", "report.written", told)

    scene.own.resume([Over("lost", UNIT, "rebooted"), Unclosed("kept")])
    await scene.done()

    assert scene.counted == [("own_order.ended", "lost")]
    assert scene.units_of("lost") == [(Ending.LOST, "rebooted")]
    assert scene.units_of("kept") == []
    (kept,) = incident.load(scene.path, id="kept")
    assert [(event.name, event.data) for event in kept.events] == [("report.written", told)]


async def test_what_was_asked_for_under_the_nodes_order_outlives_its_end(scene: Scene) -> None:
    scene.flush.order = Order(
        "node", scene.clock.now + HOUR, Confidence.CERTAIN, "operator", "drain", given=scene.clock.now
    )  # fmt: skip
    scene.aboard.back = 2
    assert isinstance(scene.own.ask(UNIT, 900.0, uid=1), Order)
    assert scene.flush.rescued == [UNIT]
    assert not scene.aboard.turns

    # The drain is cancelled before this job had its turn; it goes all the same.
    scene.flush.order = None
    scene.own.idle()
    scene.own.idle()
    await scene.done()

    assert scene.aboard.turns == ["node"]
    assert (scene.shown()["state"], scene.shown()["nbytes"]) == ("kept", 14)


@pytest.mark.parametrize("how", ["less time", "comes and leaves"])
async def test_nobody_fills_the_journal_with_one_order(scene: Scene, how: str) -> None:
    scene.aboard.back = 3
    first = scene.own.ask(UNIT, 1e9, uid=1)
    assert isinstance(first, Order)
    answers: list[Order | str] = []
    for number in range(1, 500):
        if how == "less time":
            answers.append(scene.own.ask(UNIT, 1e9 - number, uid=1))
        else:
            scene.own.left(Left(UNIT, number % 100, calls=True))
    if how == "less time":
        assert "has asked too often" in str(answers[-1])
        # Whoever else asks for less is none of them.
        assert isinstance(scene.own.ask(UNIT, 9.0, uid=2), Order)
        assert scene.shown()["seconds_left"] == 9.0
    await scene.done()

    (one,) = incident.load(scene.path, id=first.id)
    assert len(one.events) < 50
