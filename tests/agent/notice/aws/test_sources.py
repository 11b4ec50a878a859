"""EC2's sources against the simulated service: what each event becomes, on which clock."""

from datetime import timedelta
from itertools import pairwise

import pytest

from evacd.facts import Cancelled, Confidence, Notice, Noticed, Probe, Quiet
from evacd.notice import Source
from evacd.order import Advised, Amended, Given, StoodDown, Waiting
from tests.agent.notice.aws.scene import ANNOUNCE, NAMES, NOON, Scene, noticed, transitions
from tests.agent.notice.hearing import watching

SPOT = "aws/spot"


@pytest.fixture
def spot(scene: Scene) -> Source:
    return scene.sources()[SPOT]


def test_each_key_is_a_source_with_a_name_of_its_own(scene: Scene) -> None:
    assert tuple(scene.sources()) == NAMES


@pytest.mark.parametrize("name", NAMES)
async def test_it_is_quiet_while_nothing_is_announced(scene: Scene, name: str) -> None:
    assert await scene.sources()[name].probe() == Quiet(name)


@pytest.mark.parametrize("name", NAMES)
async def test_a_key_that_is_absent_is_quiet(scene: Scene, name: str) -> None:
    # Outside of an Auto Scaling group, and early after a launch, its key is absent, too.
    scene.ec2.set("autoscaling/target-lifecycle-state", None)
    scene.ec2.set("events/maintenance/scheduled", None)

    assert await scene.sources()[name].probe() == Quiet(name)


WINDOWS = [
    ("preempt", SPOT, "terminate", Confidence.CERTAIN, 120.0),
    ("stop", SPOT, "stop", Confidence.CERTAIN, 120.0),
    ("hibernate", SPOT, "hibernate", Confidence.CERTAIN, 0.0),
    ("preempt-past", SPOT, "terminate", Confidence.CERTAIN, 0.0),
    ("preempt-day", SPOT, "terminate", Confidence.CERTAIN, 120.0),
    ("preempt-moving", SPOT, "terminate", Confidence.CERTAIN, 120.0),
    ("preempt-blank", SPOT, "terminate", Confidence.CERTAIN, 0.0),
    ("preempt-garbled", SPOT, "terminate", Confidence.CERTAIN, 0.0),
    ("preempt-unknown", SPOT, "unknown", Confidence.CERTAIN, 120.0),
    ("rebalance", "aws/rebalance", "rebalance", Confidence.ADVISORY, None),
    ("maintenance", "aws/maintenance", "system-reboot", Confidence.PLANNED, 3600.0),
    ("reboot", "aws/maintenance", "instance-reboot", Confidence.PLANNED, 3600.0),
    ("retire", "aws/maintenance", "instance-retirement", Confidence.CERTAIN, 3600.0),
    ("instance-stop", "aws/maintenance", "instance-stop", Confidence.CERTAIN, 3600.0),
    ("maintenance-past", "aws/maintenance", "system-reboot", Confidence.PLANNED, 0.0),
    ("maintenance-unknown", "aws/maintenance", "system-repainting", Confidence.ADVISORY, 3600.0),
    ("asg-terminate", "aws/asg", "terminated", Confidence.CERTAIN, 30.0),
    ("asg-unknown", "aws/asg", "unknown", Confidence.ADVISORY, None),
]


@pytest.mark.parametrize(
    ("action", "name", "kind", "confidence", "window"), WINDOWS, ids=[w[0] for w in WINDOWS]
)
async def test_each_event_is_heard_by_its_own_source_with_its_window(
    scene: Scene, action: str, name: str, kind: str, confidence: Confidence, window: float | None
) -> None:
    scene.ec2.actions[action]()
    heard = {each: await source.probe() for each, source in scene.sources().items()}
    notice = noticed(heard.pop(name)).notice

    assert (notice.source, notice.kind, notice.confidence) == (name, kind, confidence)
    assert notice.deadline == (None if window is None else 1000.0 + window)
    assert notice.seen == 1000.0
    assert notice.detail
    assert all(isinstance(probe, Quiet) for probe in heard.values())


@pytest.mark.parametrize("name", NAMES)
async def test_sixty_repeats_are_one_notice_and_one_transition(scene: Scene, name: str) -> None:
    source = scene.sources()[name]
    scene.ec2.actions[ANNOUNCE[name]]()
    probes: list[Probe] = []
    for _ in range(60):
        probes.append(await source.probe())
        scene.pass_time(1.0)

    assert len(set(probes)) == 1
    assert len(transitions(probes)) == 1


@pytest.mark.parametrize("name", NAMES)
async def test_an_id_has_no_time_in_it_and_is_the_same_for_a_daemon_that_restarts(
    scene: Scene, name: str
) -> None:
    scene.ec2.actions[ANNOUNCE[name]]()
    first = noticed(await scene.sources()[name].probe()).notice
    scene.pass_time(17.0)
    again = noticed(await scene.sources()[name].probe()).notice

    assert again.id == first.id
    assert first.id.startswith(f"{name}:")


@pytest.mark.parametrize("name", NAMES)
async def test_what_is_taken_back_is_cancelled_once(scene: Scene, name: str) -> None:
    source = scene.sources()[name]
    scene.ec2.actions[ANNOUNCE[name]]()
    notice = noticed(await source.probe()).notice
    scene.ec2.clear()
    cancelled = await source.probe()

    assert isinstance(cancelled, Cancelled)
    assert (cancelled.source, cancelled.id) == (name, notice.id)
    assert cancelled.reason
    assert await source.probe() == Quiet(name)
    scene.pass_time(500.0)
    scene.ec2.actions[ANNOUNCE[name]]()
    assert noticed(await source.probe()).notice.seen == 1500.0


async def test_advisory_and_then_the_real_one(scene: Scene) -> None:
    sources = scene.sources()
    scene.ec2.rebalance()
    probes = [await sources["aws/rebalance"].probe(), await sources[SPOT].probe()]
    scene.ec2.preempt()
    probes += [await sources["aws/rebalance"].probe(), await sources[SPOT].probe()]

    advised, given = transitions(probes)
    assert isinstance(advised, Advised)
    assert isinstance(given, Given)
    assert given.order.source == SPOT


# --- time -------------------------------------------------------------------------------


async def test_a_time_sooner_than_two_minutes_is_the_deadline(scene: Scene, spot: Source) -> None:
    scene.ec2.interrupt("terminate", time=NOON + timedelta(seconds=41))

    assert noticed(await spot.probe()).notice.deadline == 1041.0


@pytest.mark.parametrize(
    ("seconds", "deadline", "suspect"),
    [(-30.0, 1000.0, "30 s past"), (86_400.0, 1120.0, "86400 s ahead")],
    ids=["past", "+24 h"],
)
async def test_a_time_that_cannot_be_is_held_to_what_is_given(
    scene: Scene, spot: Source, seconds: float, deadline: float, suspect: str
) -> None:
    scene.ec2.interrupt("terminate", time=NOON + timedelta(seconds=seconds))
    notice = noticed(await spot.probe()).notice

    assert notice.deadline == deadline
    assert suspect in notice.detail


@pytest.mark.parametrize("time", ["", "soon", "18 Sep 2026 08:22:00"])
async def test_a_time_that_cannot_be_read_is_now(scene: Scene, spot: Source, time: str) -> None:
    scene.ec2.interrupt("terminate", time=time)

    assert noticed(await spot.probe()).notice.deadline == 1000.0


@pytest.mark.parametrize("step", [1.0, 0.4, -0.4], ids=["later", "a little later", "sooner"])
async def test_a_time_that_moves_on_each_poll_never_gives_more(
    scene: Scene, spot: Source, step: float
) -> None:
    probes: list[Probe] = []
    for turn in range(60):
        scene.ec2.interrupt("terminate", time=NOON + timedelta(seconds=60 + round(turn * step)))
        probes.append(await spot.probe())
        scene.pass_time(0.1)
    notices = [noticed(probe).notice for probe in probes]
    deadlines = [notice.deadline or 0.0 for notice in notices]

    assert deadlines[0] == 1060.0
    assert deadlines == sorted(deadlines, reverse=True)
    assert len({notice.id for notice in notices}) == 1
    made = [type(each) for each in transitions(probes)]
    assert made == [Given] + [Amended] * (len(set(deadlines)) - 1)
    assert (len(made) > 1) == (step < 0)
    # Dates have whole seconds, and it takes more than one of them to amend an order.
    assert all(a - b > 1.0 for a, b in pairwise(deadlines) if a != b)


async def test_an_interruption_that_becomes_a_hibernation_is_now(
    scene: Scene, spot: Source
) -> None:
    scene.ec2.interrupt("stop")
    first = noticed(await spot.probe()).notice
    scene.pass_time(5.0)
    scene.ec2.interrupt("hibernate")
    second = noticed(await spot.probe()).notice

    assert (first.deadline, second.deadline) == (1120.0, 1005.0)
    assert first.id == second.id


@pytest.mark.parametrize("step", [-600.0, 600.0])
async def test_a_step_of_the_wall_clock_moves_no_deadline(
    scene: Scene, spot: Source, step: float
) -> None:
    scene.ec2.preempt()
    first = await spot.probe()
    scene.clock.ahead = step
    scene.pass_time(1.0)

    assert await spot.probe() == first


@pytest.mark.parametrize("wrong", [-600.0, 600.0])
async def test_a_wall_clock_that_is_wrong_is_put_right_by_the_services_date(
    scene: Scene, spot: Source, wrong: float
) -> None:
    scene.clock.ahead = wrong
    scene.ec2.interrupt("terminate", time=NOON + timedelta(seconds=50))

    assert noticed(await spot.probe()).notice.deadline == 1050.0


# --- the Auto Scaling group -------------------------------------------------------------


async def test_one_state_is_one_event_for_as_long_as_it_lasts(scene: Scene) -> None:
    source = scene.sources()["aws/asg"]
    scene.ec2.set("autoscaling/target-lifecycle-state", "Terminated")
    probes: list[Probe] = []
    for _ in range(151):
        probes.append(await source.probe())
        scene.pass_time(1.0)

    assert set(probes) == {
        Noticed(
            Notice(
                source="aws/asg",
                kind="terminated",
                id="aws/asg:Terminated:boot-1",
                confidence=Confidence.CERTAIN,
                deadline=1030.0,
                seen=1000.0,
                detail="its Auto Scaling group takes it to Terminated",
            )
        )
    }


async def test_one_ending_state_after_another_is_no_moment_without_an_order(scene: Scene) -> None:
    source = scene.sources()["aws/asg"]
    async with watching(source) as hearing:
        scene.ec2.set("autoscaling/target-lifecycle-state", "Warmed:Stopped")
        await hearing.until(Noticed)
        scene.ec2.set("autoscaling/target-lifecycle-state", "Terminated")
        await hearing.until(Cancelled)
    made = transitions(hearing.told)

    assert isinstance(made[0], Given)
    assert not any(isinstance(each, StoodDown) for each in made)


# --- the watch --------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
async def test_a_watch_tells_quiet_then_the_notice_then_its_end(scene: Scene, name: str) -> None:
    source = scene.sources()[name]
    async with watching(source) as hearing:
        await hearing.until(Quiet)
        scene.ec2.actions[ANNOUNCE[name]]()
        at = await hearing.until(Noticed)
        scene.ec2.clear()
        await hearing.until(Quiet, after=await hearing.until(Cancelled, after=at))

    story = list(dict.fromkeys(type(each) for each in hearing.told))
    assert story == [Quiet, Noticed, Cancelled]


async def test_several_events_are_told_one_by_one(scene: Scene) -> None:
    scene.ec2.schedule("system-reboot")
    scene.ec2.schedule("instance-stop")
    async with watching(scene.sources()["aws/maintenance"]) as hearing:
        await hearing.until(Noticed, after=3)

    kinds = [noticed(probe).notice.kind for probe in hearing.told[:4]]
    assert kinds == ["system-reboot", "instance-stop"] * 2
    made = [type(each) for each in transitions(hearing.told)]
    assert made[0] is Waiting
    assert Given in made
