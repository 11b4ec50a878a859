"""AzureSource against the simulator over real sockets: whole lives of events."""

from dataclasses import replace

import pytest
from aiohttp import web

from evacd.facts import Cancelled, Confidence, Notice, Noticed, Quiet, Unknown
from evacd.notice.azure import AzureSource
from evacd.notice.azure.meaning import LINGER_SECONDS
from evacd.notice.metadata import Limits
from evacd.notice.simulate.azure import AzureMetadata
from evacd.order import Given, Machine, StoodDown
from tests.agent.notice.azure.conftest import QUICK, Make
from tests.agent.notice.hearing import MovedClock, watching

POSTED = "POST"


async def noticed(source: AzureSource) -> Notice:
    probe = await source.probe()
    assert isinstance(probe, Noticed)
    return probe.notice


async def test_no_event_is_quiet(source: AzureSource) -> None:
    assert await source.probe() == Quiet("azure")


async def test_a_preemption_is_certain_and_planned_to_come_early(
    source: AzureSource, azure: AzureMetadata
) -> None:
    id = azure.schedule("Preempt")

    notice = await noticed(source)

    assert replace(notice, detail="") == Notice(
        source="azure",
        kind="preempt",
        id=id,
        confidence=Confidence.CERTAIN,
        deadline=1010.0,
        seen=1000.0,
    )
    assert notice.detail.startswith("Preempt Scheduled; not before Thu, 01 Jan 1970 00:17:10 GMT")


async def test_a_preemption_lives_from_scheduled_over_started_to_gone(
    source: AzureSource, azure: AzureMetadata, clock: MovedClock
) -> None:
    assert await source.probe() == Quiet("azure")
    id = azure.schedule("Preempt")
    scheduled = await noticed(source)
    clock.now += 4.0
    assert await noticed(source) == scheduled
    azure.start(id)
    started = await noticed(source)
    clock.now += 4.0
    assert await noticed(source) == started
    azure.end(id)

    assert (started.id, started.confidence) == (scheduled.id, Confidence.STARTED)
    assert (started.deadline, started.seen) == (1004.0, 1000.0)
    assert await noticed(source) == started
    clock.now += LINGER_SECONDS
    assert await source.probe() == Cancelled("azure", id, "the event is over")
    assert await source.probe() == Quiet("azure")


@pytest.mark.parametrize("type", ["Preempt", "Terminate", "Redeploy", "Reboot"])
async def test_a_started_event_that_vanishes_goes_on_being_the_order_for_a_minute(
    source: AzureSource, azure: AzureMetadata, clock: MovedClock, type: str
) -> None:
    machine = Machine(lambda: "order-1")
    id = azure.schedule(type, status="Started")
    (given,) = machine.feed(await source.probe(), now=clock.now)
    assert isinstance(given, Given)
    azure.end(id)
    for _ in range(60):
        assert machine.feed(await source.probe(), now=clock.now) == ()
        clock.now += 1.0
    assert machine.order == given.order
    (over,) = machine.feed(await source.probe(), now=clock.now)

    assert over == StoodDown(given.order, "the event is over")


async def test_a_scheduled_event_that_vanishes_stands_the_order_down_at_once(
    source: AzureSource, azure: AzureMetadata, clock: MovedClock
) -> None:
    machine = Machine(lambda: "order-1")
    id = azure.schedule("Preempt")
    (given,) = machine.feed(await source.probe(), now=clock.now)
    assert isinstance(given, Given)
    azure.end(id)

    assert machine.feed(await source.probe(), now=clock.now) == (
        StoodDown(given.order, "the event is no longer announced"),
    )


async def test_a_started_event_that_is_said_to_be_over_is_cancelled_at_once(
    source: AzureSource, azure: AzureMetadata
) -> None:
    id = azure.schedule("Preempt", status="Started")
    await noticed(source)
    azure.end(id)
    listed = {"EventId": id, "EventType": "Preempt", "Resources": [azure.machine]}
    canceled = {"DocumentIncarnation": 9, "Events": [{**listed, "EventStatus": "Canceled"}]}

    async def say(_: web.Request) -> web.StreamResponse:
        return web.json_response(canceled)

    azure.fault = say

    assert await source.probe() == Cancelled("azure", id, "the event is over")


async def test_started_without_a_schedule_is_now(source: AzureSource, azure: AzureMetadata) -> None:
    azure.schedule("Redeploy", status="Started")

    notice = await noticed(source)

    assert (notice.confidence, notice.deadline) == (Confidence.STARTED, 1000.0)


async def test_a_start_within_the_same_incarnation_is_heard(
    source: AzureSource, azure: AzureMetadata
) -> None:
    id = azure.schedule("Reboot")
    before = await noticed(source)
    azure.start(id)
    azure.incarnation -= 1

    after = await noticed(source)

    assert (before.confidence, after.confidence) == (Confidence.PLANNED, Confidence.STARTED)


async def test_a_scheduled_event_that_vanishes_is_cancelled_once(
    source: AzureSource, azure: AzureMetadata
) -> None:
    id = azure.schedule("Reboot")
    await source.probe()
    azure.end(id)

    assert await source.probe() == Cancelled("azure", id, "the event is no longer announced")
    assert await source.probe() == Quiet("azure")


async def test_one_notice_sixty_times_is_the_same_sixty_times(
    source: AzureSource, azure: AzureMetadata, clock: MovedClock
) -> None:
    azure.schedule("Terminate")
    first = await noticed(source)
    for _ in range(60):
        clock.now += 1.0
        assert await noticed(source) == first


async def test_a_date_that_moves_at_each_poll_only_ever_comes_nearer(
    source: AzureSource, azure: AzureMetadata, clock: MovedClock
) -> None:
    id = azure.schedule("Reboot", seconds=900.0)
    first = await noticed(source)
    for _ in range(5):
        clock.now += 10.0
        azure.move(id, seconds=900.0)
        assert await noticed(source) == first
    azure.move(id, seconds=100.0)

    assert (await noticed(source)).deadline == clock.now + 100.0


async def test_a_wall_clock_that_is_off_moves_no_deadline(
    make: Make, azure: AzureMetadata, azure_url: str, clock: MovedClock
) -> None:
    azure.clock = MovedClock(clock.now + 600.0)
    azure.schedule("Reboot", seconds=900.0)

    assert (await noticed(make(azure_url))).deadline == 1900.0


@pytest.mark.parametrize("name", ["evac-simulated_0", "EVAC-Simulated_0"])
async def test_the_own_name_is_asked_for_and_its_case_does_not_matter(
    source: AzureSource, azure: AzureMetadata, name: str
) -> None:
    id = azure.schedule("Preempt", resources=["evac-simulated_1", name])

    assert (await noticed(source)).id == id


async def test_the_name_that_is_set_counts_and_nothing_is_asked(
    make: Make, azure: AzureMetadata, azure_url: str
) -> None:
    source = make(azure_url, machine="GPU-7")
    azure.schedule("Preempt")
    assert await source.probe() == Quiet("azure")
    id = azure.schedule("Preempt", resources=["gpu-7"])

    assert (await noticed(source)).id == id
    assert not any("/instance" in seen.target for seen in azure.requests)


async def test_other_machines_events_are_quiet(source: AzureSource, azure: AzureMetadata) -> None:
    azure.actions["other-vm"]()
    azure.schedule("Preempt", resources=["evac-simulated_00"])
    azure.schedule("Preempt", resources=[])

    assert await source.probe() == Quiet("azure")


async def test_a_mass_preemption_is_heard_however_long_the_list(
    source: AzureSource, azure: AzureMetadata
) -> None:
    for number in range(1, 1000):
        azure.schedule("Preempt", resources=[f"evac-simulated_{number}"])
    id = azure.schedule("Preempt")

    assert (await noticed(source)).id == id


async def test_several_events_are_told_at_once_and_the_surest_first_by_probe(
    source: AzureSource, azure: AzureMetadata
) -> None:
    freeze, reboot = azure.schedule("Freeze"), azure.schedule("Reboot")
    preempt = azure.schedule("Preempt")
    async with watching(source) as hearing:
        await hearing.until(Noticed, after=5)

    ids = [probe.notice.id for probe in hearing.told if isinstance(probe, Noticed)]
    assert ids[:6] == [freeze, reboot, preempt] * 2
    assert (await noticed(source)).id == preempt


async def test_advisory_then_real_are_two_notices(
    source: AzureSource, azure: AzureMetadata
) -> None:
    azure.actions["rebalance"]()
    advised = await noticed(source)
    azure.actions["preempt"]()
    real = await noticed(source)

    assert (advised.kind, advised.confidence) == ("rebalance", Confidence.ADVISORY)
    assert (real.kind, real.confidence) == ("preempt", Confidence.CERTAIN)
    assert advised.id != real.id


async def test_an_unknown_type_is_an_advisory_with_its_word(
    source: AzureSource, azure: AzureMetadata
) -> None:
    azure.schedule("Defenestrate")

    notice = await noticed(source)

    assert (notice.kind, notice.confidence) == ("unknown", Confidence.ADVISORY)
    assert notice.detail.startswith("Defenestrate Scheduled")


async def test_a_freeze_is_told_and_watching_goes_on(
    source: AzureSource, azure: AzureMetadata
) -> None:
    id = azure.schedule("Freeze")
    async with watching(source) as hearing:
        position = await hearing.until(Noticed)
        azure.start(id)
        azure.end(id)
        position = await hearing.until(Cancelled, after=position)
        azure.schedule("Preempt")
        position = await hearing.until(Noticed, after=position)

    last = hearing.told[position]
    assert isinstance(last, Noticed)
    assert last.notice.kind == "preempt"


async def test_an_event_of_an_earlier_boot_is_over_and_blocks_no_other(
    make: Make, azure: AzureMetadata, azure_url: str
) -> None:
    done = azure.schedule("Reboot", status="Started")
    source = make(azure_url, over=[done])
    assert await source.probe() == Quiet("azure")
    azure.schedule("Preempt")

    assert (await noticed(source)).kind == "preempt"


async def test_a_broken_event_beside_a_good_one_hides_and_cancels_nothing(
    source: AzureSource, azure: AzureMetadata
) -> None:
    reboot = azure.schedule("Reboot")
    await source.probe()
    azure.end(reboot)

    broken = {"DocumentIncarnation": 9, "Events": [{"EventId": "x"}]}

    async def fault(_: web.Request) -> web.StreamResponse:
        return web.json_response(broken)

    azure.fault = fault
    probe = await source.probe()
    assert isinstance(probe, Unknown)
    assert probe.reason.startswith("Events[0].Resources: expected ")
    azure.fault = None

    assert await source.probe() == Cancelled("azure", reboot, "the event is no longer announced")


async def test_every_request_carries_the_header_and_none_a_forwarder(
    source: AzureSource, azure: AzureMetadata
) -> None:
    async with watching(source) as hearing:
        await hearing.until(Quiet, after=2)

    assert [seen.target for seen in azure.requests][:3] == [
        "/metadata/scheduledevents?api-version=2020-07-01",
        "/metadata/instance/compute/name?api-version=2021-02-01&format=text",
        "/metadata/scheduledevents?api-version=2020-07-01",
    ]
    for seen in azure.requests:
        assert seen.headers["metadata"] == "true"
        assert not {"x-forwarded-for", "via", "forwarded", "cookie"} & set(seen.headers)


async def test_one_connection_is_kept(source: AzureSource, azure: AzureMetadata) -> None:
    ports: set[object] = set()

    async def look(request: web.Request) -> None:
        assert request.transport is not None
        ports.add(request.transport.get_extra_info("peername"))

    azure.fault = look
    async with watching(source) as hearing:
        await hearing.until(Quiet, after=5)

    assert len(ports) == 1


# --- warm-up ----------------------------------------------------------------------------


async def test_the_slow_first_call_is_called_warming_up_and_then_heard(
    make: Make, azure: AzureMetadata, azure_url: str
) -> None:
    azure.first_call_seconds = 0.5
    azure.schedule("Preempt")
    source = make(azure_url, patient=Limits(connect=1.0, read=0.1), prompt=QUICK)

    async with watching(source) as hearing:
        await hearing.until(Noticed)

    first = hearing.told[0]
    assert isinstance(first, Unknown)
    assert first.reason == ("warming up (first call enables the service): no answer within 0.1 s")
    assert first.cure.startswith("wait up to 2 min")


async def test_what_is_slow_after_two_minutes_is_not_called_warming_up(
    make: Make, azure: AzureMetadata, azure_url: str, clock: MovedClock
) -> None:
    azure.first_call_seconds = 3600.0
    source = make(azure_url, patient=Limits(connect=1.0, read=0.05))
    await source.probe()
    clock.now += 200.0

    probe = await source.probe()

    assert isinstance(probe, Unknown)
    assert probe.reason == "no answer within 0.05 s"
    assert "hostNetwork" in probe.cure


async def test_a_service_that_has_answered_is_given_less_time(
    make: Make, azure: AzureMetadata, azure_url: str
) -> None:
    source = make(
        azure_url, patient=Limits(connect=1.0, read=0.6), prompt=Limits(connect=1.0, read=0.4)
    )
    assert await source.probe() == Quiet("azure")
    azure.first_call_seconds = 3600.0
    azure.disable()

    reasons = [(await source.probe()) for _ in range(2)]

    assert [r.reason for r in reasons if isinstance(r, Unknown)] == [
        "no answer within 0.4 s",
        "no answer within 0.6 s",
    ]


async def test_without_its_own_name_it_hears_nothing_and_says_so(
    source: AzureSource, azure: AzureMetadata
) -> None:
    azure.schedule("Preempt")

    async def hide(request: web.Request) -> web.StreamResponse | None:
        return web.Response(status=404) if "/instance" in request.path else None

    azure.fault = hide
    probe = await source.probe()
    assert isinstance(probe, Unknown)
    assert probe.reason == "this machine's own name is not known: HTTP 404"
    assert probe.cure.startswith("set azure.machine ")
    azure.fault = None

    assert isinstance(await source.probe(), Noticed)


# --- acknowledging ----------------------------------------------------------------------


def posted(azure: AzureMetadata) -> int:
    return sum(seen.method == POSTED for seen in azure.requests)


async def test_it_is_off_by_default(source: AzureSource, azure: AzureMetadata) -> None:
    id = azure.schedule("Preempt")
    await source.probe()

    assert await source.acknowledge(id) == "acknowledging is not switched on"
    assert posted(azure) == 0


async def test_an_own_preemption_is_started_by_it(
    make: Make, azure: AzureMetadata, azure_url: str
) -> None:
    source, id = make(azure_url, acknowledge=True), azure.schedule("Preempt")
    await source.probe()

    assert await source.acknowledge(id) is None
    assert azure.events[0].status == "Started"
    # Not seen yet that it has started: 200 also for what is approved already.
    assert await source.acknowledge(id) is None
    assert (await noticed(source)).confidence is Confidence.STARTED
    assert await source.acknowledge(id) is None
    assert posted(azure) == 2


@pytest.mark.parametrize("type", ["Reboot", "Redeploy", "Freeze", "Terminate"])
async def test_nothing_but_a_preemption_is_acknowledged(
    make: Make, azure: AzureMetadata, azure_url: str, type: str
) -> None:
    source, id = make(azure_url, acknowledge=True), azure.schedule(type)
    await source.probe()

    assert await source.acknowledge(id) == (
        f"{type} is left to run its time; only Preempt is acknowledged"
    )
    assert posted(azure) == 0


async def test_an_event_of_several_machines_is_never_acknowledged(
    make: Make, azure: AzureMetadata, azure_url: str
) -> None:
    source = make(azure_url, acknowledge=True)
    id = azure.schedule("Preempt", resources=["evac-simulated_0", "evac-simulated_1"])
    await source.probe()

    assert await source.acknowledge(id) == ("the event is of 2 machines, not of this one alone")
    assert posted(azure) == 0


async def test_neither_an_unknown_nor_another_machines_event_is_acknowledged(
    make: Make, azure: AzureMetadata, azure_url: str
) -> None:
    source = make(azure_url, acknowledge=True)
    id = azure.schedule("Preempt", resources=["evac-simulated_1"])
    await source.probe()

    for each in (id, "gone"):
        assert await source.acknowledge(each) == "no such event is announced for this machine"
    assert posted(azure) == 0


async def test_an_acknowledgement_that_fails_says_why(
    make: Make, azure: AzureMetadata, azure_url: str
) -> None:
    source, id = make(azure_url, acknowledge=True), azure.schedule("Preempt")
    await source.probe()
    azure.end(id)

    assert await source.acknowledge(id) == "HTTP 400"
