"""Scheduled events: what they start, when they are over, and which are not heard again."""

import json
from datetime import UTC, datetime

import aiohttp
import pytest

from evacd.facts import Cancelled, Confidence, Noticed, Quiet, Unknown
from evacd.notice import Source
from evacd.notice.aws import aws_client, sources
from evacd.notice.aws.maintenance import KEY, POLICIES, Policy, read_events
from evacd.notice.aws.reading import Reading, Unreadable
from evacd.order import Given, StoodDown, Waiting
from tests.agent.notice.aws.scene import Scene, noticed, transitions
from tests.agent.notice.hearing import watching

NAME = "aws/maintenance"
EVENT = {
    "NotBefore": "21 Jan 2019 09:00:43 GMT",
    "Code": "system-reboot",
    "Description": "scheduled reboot",
    "EventId": "instance-event-1",
    "NotAfter": "21 Jan 2019 09:17:23 GMT",
    "State": "active",
}


def read(*events: object, **options: object) -> Reading:
    reading = read_events(json.dumps(events), **options)  # type: ignore[arg-type]  # test table
    assert isinstance(reading, Reading), reading
    return reading


def changed(**fields: object) -> dict[str, object]:
    """The event with these fields; those that are None are left out."""
    return {key: value for key, value in {**EVENT, **fields}.items() if value is not None}


# --- what an event starts ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "confidence"),
    [
        ("instance-stop", Confidence.CERTAIN),
        ("instance-retirement", Confidence.CERTAIN),
        ("instance-reboot", Confidence.PLANNED),
        ("system-reboot", Confidence.PLANNED),
        ("system-maintenance", Confidence.PLANNED),
        ("system-teleport", Confidence.ADVISORY),
    ],
)
def test_each_code_starts_what_its_policy_says(code: str, confidence: Confidence) -> None:
    (one,) = read(changed(Code=code)).found

    assert (one.id, one.kind, one.confidence) == (f"{NAME}:instance-event-1", code, confidence)
    assert (one.date, one.most) == (datetime(2019, 1, 21, 9, 0, 43, tzinfo=UTC), None)


@pytest.mark.parametrize(
    ("policy", "confidence"),
    [
        (Policy.EARLY, Confidence.CERTAIN),
        (Policy.PLANNED, Confidence.PLANNED),
        (Policy.ADVISE, Confidence.ADVISORY),
    ],
)
def test_policies_can_be_set(policy: Policy, confidence: Confidence) -> None:
    (one,) = read(EVENT, policies={**POLICIES, "system-reboot": policy}).found

    assert one.confidence == confidence


def test_a_policy_can_ignore_a_code() -> None:
    assert read(EVENT, policies={"system-reboot": Policy.IGNORE}).found == ()


@pytest.mark.parametrize("not_after", [None, "", "whenever", 7, "1 Jan 2019 00:00:00 GMT"])
def test_not_after_may_be_missing_or_anything(not_after: object) -> None:
    assert read(changed(NotAfter=not_after)).found == read(EVENT).found


@pytest.mark.parametrize("field", ["Description", "State", "NotAfter", "NotBeforeDeadline"])
def test_every_other_optional_field_may_be_missing(field: str) -> None:
    (one,) = read(changed(**{field: None})).found

    assert one.confidence is Confidence.PLANNED


def test_planned_without_a_readable_time_keeps_no_date_and_early_is_now() -> None:
    (planned,) = read(changed(NotBefore="")).found
    (early,) = read(changed(NotBefore="soon", Code="instance-stop")).found

    assert (planned.date, planned.most) == (None, None)
    assert (early.date, early.most) == (None, 0.0)


def test_an_unknown_state_only_advises_and_is_told() -> None:
    (one,) = read(changed(State="postponed", Code="instance-stop")).found

    assert one.confidence is Confidence.ADVISORY
    assert "'postponed'" in one.detail


@pytest.mark.parametrize(
    "fields",
    [
        {"State": "completed"},
        {"State": "Completed"},
        {"State": "canceled"},
        {"State": "cancelled"},
        {"Description": "[Completed] scheduled reboot"},
        {"Description": "[Canceled] scheduled reboot"},
        {"State": None, "Description": "[canceled] scheduled reboot"},
    ],
)
def test_what_is_over_says_so_by_its_state_or_its_description(fields: dict[str, object]) -> None:
    reading = read(changed(**fields))

    assert reading.found == ()
    assert list(reading.gone) == [f"{NAME}:instance-event-1"]


def test_a_bracket_of_another_kind_is_no_end() -> None:
    assert read(changed(Description="[Important] scheduled reboot")).found


@pytest.mark.parametrize("ignored", ["instance-event-1", f"{NAME}:instance-event-1"])
def test_an_ignored_event_is_not_heard_by_its_own_id_or_its_notices(ignored: str) -> None:
    reading = read(EVENT, changed(EventId="instance-event-2"), ignored={ignored})

    assert [one.id for one in reading.found] == [f"{NAME}:instance-event-2"]


@pytest.mark.parametrize(
    "bad",
    [
        None,
        "event",
        [],
        {},
        changed(EventId=None),
        changed(EventId=""),
        changed(EventId=7),
        changed(EventId="a b"),
        changed(EventId="x" * 129),
        changed(EventId="\u0000"),
        changed(Code=None),
        changed(Code=["system-reboot"]),
    ],
)
def test_an_event_that_cannot_be_read_hides_no_other(bad: object) -> None:
    reading = read(bad, EVENT)

    assert len(reading.found) == 1
    assert reading.unread == "1 of 2 events cannot be read"


def test_of_twins_the_surer_and_then_the_earlier_counts() -> None:
    later = changed(NotBefore="22 Jan 2019 09:00:43 GMT")
    over = changed(State="completed")

    for events in ([EVENT, later, over], [over, later, EVENT]):
        reading = read(*events)
        assert reading.found == read(EVENT).found
        assert reading.gone == {}


@pytest.mark.parametrize("text", ["", "{}", "null", '"[]"', "[", json.dumps(EVENT)])
def test_what_is_no_list_is_unreadable(text: str) -> None:
    assert isinstance(read_events(text), Unreadable)


# --- over the wire ----------------------------------------------------------------------


@pytest.fixture
def source(scene: Scene) -> Source:
    return scene.sources()[NAME]


async def test_an_event_is_told_at_its_time(scene: Scene, source: Source) -> None:
    assert await source.probe() == Quiet(NAME)
    scene.ec2.schedule("system-reboot", in_seconds=3600.0, id="instance-event-1")
    notice = noticed(await source.probe()).notice

    assert (notice.id, notice.kind) == (f"{NAME}:instance-event-1", "system-reboot")
    assert (notice.confidence, notice.deadline) == (Confidence.PLANNED, 4600.0)


async def test_early_starts_the_order_at_once_and_keeps_its_time_as_the_deadline(
    scene: Scene, source: Source
) -> None:
    scene.ec2.schedule("instance-stop", in_seconds=14 * 86_400.0)
    (given,) = transitions([await source.probe()])

    assert isinstance(given, Given)
    assert given.order.deadline == 1000.0 + 14 * 86_400.0


async def test_planned_waits(scene: Scene, source: Source) -> None:
    scene.ec2.schedule("system-reboot", in_seconds=3600.0)

    assert isinstance(transitions([await source.probe()])[0], Waiting)


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ("complete", "instance-stop is completed"),
        ("cancel", "instance-stop is canceled"),
        ("clear", f"{KEY} no longer says so"),
    ],
)
async def test_what_is_over_is_cancelled_once_and_the_order_stands_down(
    scene: Scene, source: Source, action: str, reason: str
) -> None:
    scene.ec2.schedule("instance-stop", id="instance-event-1")
    probes = [await source.probe()]
    scene.ec2.actions[action]()
    probes += [await source.probe(), await source.probe()]

    assert probes[1:] == [Cancelled(NAME, f"{NAME}:instance-event-1", reason), Quiet(NAME)]
    assert [type(each) for each in transitions(probes)] == [Given, StoodDown]


async def test_an_event_that_was_over_before_we_looked_is_nothing(
    scene: Scene, source: Source
) -> None:
    scene.ec2.schedule("instance-stop")
    scene.ec2.end_events("completed")

    assert await source.probe() == Quiet(NAME)


async def test_an_ignored_event_that_is_still_active_does_not_block_the_end_of_others(
    session: aiohttp.ClientSession, scene: Scene
) -> None:
    scene.ec2.schedule("system-reboot", in_seconds=-600.0, id="instance-event-old")
    scene.ec2.schedule("instance-stop", id="instance-event-new")
    client = aws_client(session, scene.url)
    made = sources(client, scene.clock, ignored={"instance-event-old"})
    source = next(each for each in made if each.name == NAME)
    before = await source.probe()
    old = json.dumps([changed(EventId="instance-event-old", NotBefore="1 Mar 2026 11:00:00 GMT")])
    scene.ec2.set(KEY, old)
    after = [await source.probe(), await source.probe()]

    assert noticed(before).notice.id == f"{NAME}:instance-event-new"
    assert [type(each) for each in after] == [Cancelled, Quiet]
    assert [type(each) for each in transitions([before, *after])] == [Given, StoodDown]


async def test_without_the_ignore_list_an_event_still_active_after_the_reboot_is_due(
    scene: Scene, source: Source
) -> None:
    scene.ec2.schedule("system-reboot", in_seconds=-600.0)
    notice = noticed(await source.probe()).notice

    assert notice.deadline == 1000.0
    assert "600 s past" in notice.detail


async def test_while_a_part_cannot_be_read_nothing_is_over(scene: Scene, source: Source) -> None:
    one, two, bad = (changed(EventId=id) for id in ("instance-event-1", "instance-event-2", None))
    scene.ec2.set(KEY, json.dumps([one]))
    async with watching(source) as hearing:
        at = await hearing.until(Noticed)
        scene.ec2.set(KEY, json.dumps([bad]))
        at = await hearing.until(Unknown, after=at)
        scene.ec2.set(KEY, json.dumps([bad, two]))
        at = await hearing.until(Noticed, after=at)
        scene.ec2.set(KEY, json.dumps([two]))
        at = await hearing.until(Cancelled, after=at)

    assert hearing.told[at] == Cancelled(
        NAME, f"{NAME}:instance-event-1", f"{KEY} no longer says so"
    )
    assert sum(isinstance(probe, Cancelled) for probe in hearing.told) == 1


async def test_what_can_be_read_beside_what_cannot_is_told_and_cancels_nothing(
    scene: Scene, source: Source
) -> None:
    one, two, bad = (changed(EventId=id) for id in ("instance-event-1", "instance-event-2", None))
    scene.ec2.set(KEY, json.dumps([one]))
    async with watching(source) as hearing:
        at = await hearing.until(Noticed)
        scene.ec2.set(KEY, json.dumps([two, bad]))
        while noticed(hearing.told[at]).notice.id != f"{NAME}:instance-event-2":
            at = await hearing.until(Noticed, after=at + 1)
        await hearing.until(Noticed, after=at + 2)

    assert not any(isinstance(probe, Cancelled) for probe in hearing.told)


async def test_an_event_that_is_moved_keeps_its_id_and_never_gains_time(
    scene: Scene, source: Source
) -> None:
    scene.ec2.schedule("system-reboot", in_seconds=3600.0, id="instance-event-1")
    probes = [await source.probe()]
    for seconds in (7200.0, 3599.5, 1800.0, 7200.0):
        scene.ec2.clear()
        scene.ec2.schedule("system-reboot", in_seconds=seconds, id="instance-event-1")
        probes.append(await source.probe())

    notices = [noticed(each).notice for each in probes]
    assert {notice.id for notice in notices} == {f"{NAME}:instance-event-1"}
    assert [notice.deadline for notice in notices] == [4600.0, 4600.0, 4600.0, 2800.0, 2800.0]
