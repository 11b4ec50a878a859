"""A fixed end: planned from the start, on a wall clock that may be put right."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from evacd.facts import Confidence, Notice, Noticed, Unknown
from evacd.notice.calendar import CalendarSource
from evacd.order import Given, Machine, Waiting
from tests.agent.notice.aws.scene import NOON, Clocks, noticed
from tests.agent.notice.hearing import watching


def ends(clock: Clocks, *, hours: float, early: float = 1800.0) -> CalendarSource:
    return CalendarSource(
        clock, end=NOON + timedelta(hours=hours), early_seconds=early, boot="boot-1", period=0.01
    )


async def test_the_end_is_planned_from_the_start_thirty_minutes_early() -> None:
    probe = await ends(Clocks(), hours=2).probe()

    assert probe == Noticed(
        Notice(
            source="calendar",
            kind="end",
            id="calendar:boot-1",
            confidence=Confidence.PLANNED,
            deadline=1000.0 + 5400.0,
            seen=1000.0,
            detail="ends 1800 s before 2026-03-01T14:00:00+00:00",
        )
    )


async def test_it_waits_and_then_becomes_the_order_in_time() -> None:
    clock, machine = Clocks(), Machine(lambda: "order-1")
    source = ends(clock, hours=2)
    (waiting,) = machine.feed(await source.probe(), now=clock.now)
    assert isinstance(waiting, Waiting)
    clock.now += 5300.0
    assert machine.feed(await source.probe(), now=clock.now) == ()
    assert machine.tick(now=clock.now, need=99.0) == ()
    (given,) = machine.tick(now=clock.now, need=101.0)

    assert isinstance(given, Given)
    assert given.order.deadline == 6400.0


async def test_repeats_are_one_notice() -> None:
    clock = Clocks()
    source = ends(clock, hours=2)
    probes = set()
    for _ in range(60):
        probes.add(await source.probe())
        clock.now += 60.0

    assert len(probes) == 1


@pytest.mark.parametrize("step", [600.0, -600.0, 0.9, 86_400.0])
async def test_a_step_of_the_wall_clock_moves_nothing_however_long_it_lasts(step: float) -> None:
    clock, machine = Clocks(), Machine(lambda: "order-1")
    source = ends(clock, hours=2)
    first = noticed(await source.probe())
    machine.feed(first, now=clock.now)
    clock.ahead = step
    for _ in range(100):
        clock.now += 5.0
        assert await source.probe() == first
        assert machine.feed(first, now=clock.now) == ()
        assert machine.tick(now=clock.now, need=100.0) == ()

    assert first.notice.deadline == 6400.0
    (given,) = machine.tick(now=6300.0, need=100.0)
    assert isinstance(given, Given)
    assert given.order.deadline == 6400.0


async def test_a_step_back_and_forth_leaves_the_deadline_where_it_was() -> None:
    clock = Clocks()
    source = ends(clock, hours=2)
    first = await source.probe()
    for step in (600.0, 0.0, -600.0, 0.0):
        clock.ahead = step
        assert await source.probe() == first


async def test_within_the_early_time_the_deadline_is_now() -> None:
    assert noticed(await ends(Clocks(), hours=0.25).probe()).notice.deadline == 1000.0


async def test_an_end_that_has_passed_before_the_daemon_began_is_a_mistake() -> None:
    probe = await ends(Clocks(), hours=-1).probe()

    assert isinstance(probe, Unknown)
    assert "has passed" in probe.reason
    assert probe.cure


async def test_a_notice_stands_beyond_its_end() -> None:
    clock = Clocks()
    source = ends(clock, hours=2)
    first = await source.probe()
    clock.now += 3 * 3600.0

    assert await source.probe() == first


async def test_any_zone_will_do() -> None:
    end = datetime(2026, 3, 1, 16, tzinfo=timezone(timedelta(hours=2)))
    probe = await CalendarSource(Clocks(), end=end).probe()

    assert noticed(probe).notice.deadline == 6400.0


async def test_it_is_told_again_and_again() -> None:
    async with watching(ends(Clocks(), hours=2)) as hearing:
        await hearing.until(Noticed, after=2)


def test_an_end_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        CalendarSource(Clocks(), end=datetime(2026, 3, 1))


@pytest.mark.parametrize("early", [-1.0, float("inf"), float("nan")])
def test_an_early_time_that_is_none_is_refused(early: float) -> None:
    with pytest.raises(ValueError, match="before the end"):
        CalendarSource(Clocks(), end=datetime(2026, 3, 1, tzinfo=UTC), early_seconds=early)
