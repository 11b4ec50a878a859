"""The keys beside `instance/preempted`, on the simulator; their judges against any text."""

import json
from datetime import UTC, datetime, timedelta

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from evacd.facts import Cancelled, Confidence, Notice, Noticed, Probe, Quiet, Unknown
from evacd.notice.gcp import (
    CONNECTIONS,
    GcpSource,
    MaintenanceSource,
    StopSource,
    UpcomingSource,
    gcp_client,
    sources,
)
from evacd.notice.gcp.upcoming import Nothing, Unreadable, Window, Windows, parse
from evacd.notice.gcp.words import Meaning, Words
from evacd.notice.longpoll import Pace
from evacd.notice.metadata import Answer, Limits, MetadataClient, open_session
from evacd.notice.simulate.faults import Faults
from evacd.notice.simulate.faults import parse as fault
from evacd.notice.simulate.gcp import (
    ECHO,
    MAINTENANCE_EVENT,
    NOTHING_YET,
    PREEMPTED,
    ROOT,
    STOP_STATE,
    UPCOMING,
    GcpMetadata,
)
from tests.agent.notice.hearing import Asked, MovedClock, watching

FAST = Pace(poll=0.02, backoff_first=0.005, backoff_most=0.02)
QUICK = Limits(connect=1.0, read=1.0, hang_slack=0.2)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock(NOON.timestamp())


@pytest.fixture
def gce(clock: MovedClock) -> GcpMetadata:
    return GcpMetadata(clock=clock)


@pytest.fixture
def client(session: aiohttp.ClientSession, gce_url: str) -> MetadataClient:
    return gcp_client(session, gce_url, limits=QUICK)


@pytest.fixture
def asked(gce: GcpMetadata) -> Asked:
    asked = Asked()
    gce.fault = asked
    return asked


def noticed(probe: Probe) -> Notice:
    assert isinstance(probe, Noticed)
    return probe.notice


# --- preempted, right after boot --------------------------------------------------------


def preempted(client: MetadataClient, clock: MovedClock, *, up: float, trust: bool) -> GcpSource:
    return GcpSource(
        client,
        clock,
        window_seconds=30.0,
        uptime=lambda: up,
        trust_true_at_boot=trust,
        reread_seconds=0.001,
        pace=FAST,
        jitter=lambda: 0.0,
    )


@pytest.mark.parametrize(
    ("up", "trust", "reads"),
    [(59.0, False, 4), (60.0, False, 1), (1.0, True, 1)],
    ids=["suspect", "up for a minute", "trusted"],
)
async def test_a_true_at_boot_is_believed_once_it_persists(
    client: MetadataClient,
    clock: MovedClock,
    gce: GcpMetadata,
    asked: Asked,
    up: float,
    trust: bool,
    reads: int,
) -> None:
    gce.preempt()
    source = preempted(client, clock, up=up, trust=trust)

    notice = noticed(await source.probe())
    assert notice.confidence is Confidence.CERTAIN
    assert ("right after boot" in notice.detail) == (reads > 1)
    assert asked.plain == reads
    await source.probe()
    assert asked.plain == reads + 1


async def test_a_true_at_boot_that_goes_away_is_no_notice_and_a_later_one_is(
    client: MetadataClient, clock: MovedClock, gce: GcpMetadata, asked: Asked
) -> None:
    async def stale(request: web.Request) -> web.StreamResponse | None:
        if asked.plain == 3:
            gce.clear()
        return None

    asked.wrong_plain = stale
    gce.preempt()
    source = preempted(client, clock, up=5.0, trust=False)

    assert await source.probe() == Quiet("gcp/preempted")
    asked.wrong_plain = None
    gce.preempt()
    assert isinstance(await source.probe(), Noticed)
    assert asked.plain == 4


async def test_a_true_at_boot_that_cannot_be_read_again_stays_suspect(
    client: MetadataClient, clock: MovedClock, gce: GcpMetadata, asked: Asked
) -> None:
    async def busy(_: web.Request) -> web.StreamResponse | None:
        return web.Response(status=503, headers=ECHO) if asked.plain == 2 else None

    asked.wrong_plain = busy
    source = preempted(client, clock, up=5.0, trust=False)
    gce.preempt()

    assert isinstance(await source.probe(), Unknown)
    assert isinstance(await source.probe(), Noticed)
    assert asked.plain == 2 + 4


# --- maintenance ------------------------------------------------------------------------


@pytest.fixture
def maintenance(client: MetadataClient, clock: MovedClock) -> MaintenanceSource:
    return MaintenanceSource(
        client, clock, gpu=True, hold_seconds=1.0, pace=FAST, jitter=lambda: 0.0
    )


@pytest.mark.parametrize(("gpu", "seconds"), [(True, 3600.0), (False, 60.0)])
async def test_an_end_for_maintenance_is_planned_an_hour_ahead_with_a_gpu_else_a_minute(
    client: MetadataClient, clock: MovedClock, gce: GcpMetadata, gpu: bool, seconds: float
) -> None:
    gce.set(MAINTENANCE_EVENT, "TERMINATE_ON_HOST_MAINTENANCE")
    source = MaintenanceSource(client, clock, gpu=gpu, boot="b-1")
    first = noticed(await source.probe())
    clock.now += 9.0

    assert first == Notice(
        source="gcp/maintenance",
        kind="terminate-on-host-maintenance",
        id="gcp:maintenance:b-1",
        confidence=Confidence.PLANNED,
        deadline=NOON.timestamp() + seconds,
        seen=NOON.timestamp(),
        detail="instance/maintenance-event is TERMINATE_ON_HOST_MAINTENANCE",
    )
    assert noticed(await source.probe()) == first


async def test_a_migration_is_advice_that_only_pauses(
    maintenance: MaintenanceSource, gce: GcpMetadata
) -> None:
    gce.set(MAINTENANCE_EVENT, "MIGRATE_ON_HOST_MAINTENANCE")
    notice = noticed(await maintenance.probe())

    assert (notice.confidence, notice.kind) == (Confidence.ADVISORY, "migrate-on-host-maintenance")
    assert notice.deadline == NOON.timestamp() + 60.0


@pytest.mark.parametrize("word", ["TERMINATE", "MIGRATE"])
async def test_none_after_either_is_a_cancel_once(
    maintenance: MaintenanceSource, gce: GcpMetadata, word: str
) -> None:
    gce.set(MAINTENANCE_EVENT, f"{word}_ON_HOST_MAINTENANCE")
    notice = noticed(await maintenance.probe())
    gce.actions["cancel"]()

    assert await maintenance.probe() == Cancelled(
        "gcp/maintenance", notice.id, "instance/maintenance-event is NONE"
    )
    assert await maintenance.probe() == Quiet("gcp/maintenance")


async def test_a_migration_that_becomes_an_end_is_the_same_event_and_surer(
    maintenance: MaintenanceSource, gce: GcpMetadata, clock: MovedClock
) -> None:
    gce.set(MAINTENANCE_EVENT, "MIGRATE_ON_HOST_MAINTENANCE")
    before = noticed(await maintenance.probe())
    clock.now += 5.0
    gce.set(MAINTENANCE_EVENT, "TERMINATE_ON_HOST_MAINTENANCE")
    after = noticed(await maintenance.probe())

    assert (after.id, after.confidence) == (before.id, Confidence.PLANNED)
    assert after.deadline == NOON.timestamp() + 3605.0


async def test_an_end_that_becomes_a_migration_is_a_cancel_and_then_advice(
    maintenance: MaintenanceSource, gce: GcpMetadata
) -> None:
    gce.set(MAINTENANCE_EVENT, "TERMINATE_ON_HOST_MAINTENANCE")
    await maintenance.probe()
    gce.set(MAINTENANCE_EVENT, "MIGRATE_ON_HOST_MAINTENANCE")

    assert isinstance(await maintenance.probe(), Cancelled)
    assert noticed(await maintenance.probe()).confidence is Confidence.ADVISORY


async def test_a_word_that_is_not_known_is_advice_that_says_it(
    maintenance: MaintenanceSource, gce: GcpMetadata
) -> None:
    gce.set(MAINTENANCE_EVENT, "REPAINT_ON_HOST_MAINTENANCE")
    notice = noticed(await maintenance.probe())

    assert (notice.confidence, notice.kind) == (Confidence.ADVISORY, "unknown")
    assert "REPAINT_ON_HOST_MAINTENANCE" in notice.detail
    assert notice.deadline is None


async def test_a_word_that_is_not_known_clears_no_end_that_stands(
    maintenance: MaintenanceSource, gce: GcpMetadata
) -> None:
    gce.set(MAINTENANCE_EVENT, "TERMINATE_ON_HOST_MAINTENANCE")
    first = await maintenance.probe()
    gce.set(MAINTENANCE_EVENT, "REPAINT_ON_HOST_MAINTENANCE")
    assert isinstance(await maintenance.probe(), Unknown)
    gce.set(MAINTENANCE_EVENT, "TERMINATE_ON_HOST_MAINTENANCE")

    assert await maintenance.probe() == first


async def test_the_event_is_asked_for_from_the_start_else_its_warning_is_skipped(
    maintenance: MaintenanceSource, gce: GcpMetadata, asked: Asked
) -> None:
    async with watching(maintenance) as hearing:
        await asked.until(hanging=1)
        gce.actions["maintenance"]()
        await hearing.until(Noticed)
        gce.actions["cancel"]()
        at = await hearing.until(Cancelled)
        await asked.until(hanging=3)
        gce.actions["maintenance"]()
        await hearing.until(Noticed, after=at)


async def test_503_in_the_maintenance_is_unknown_and_asked_again(
    maintenance: MaintenanceSource, gce: GcpMetadata
) -> None:
    gce.set(MAINTENANCE_EVENT, "TERMINATE_ON_HOST_MAINTENANCE")
    first = await maintenance.probe()
    gce.fault = Faults([fault("status=503,first=2")], echo=ECHO)
    async with watching(maintenance) as hearing:
        await hearing.until(Noticed)

    assert [type(probe) for probe in hearing.told[:3]] == [Unknown, Unknown, Noticed]
    assert hearing.told[2] == first


# --- upcoming maintenance ---------------------------------------------------------------


@pytest.fixture
def upcoming(client: MetadataClient, clock: MovedClock) -> UpcomingSource:
    return UpcomingSource(
        client, clock, poll_seconds=0.02, hold_seconds=1.0, pace=FAST, jitter=lambda: 0.0
    )


NOTHING = [
    (404, "no such key"),
    (503, "busy"),
    (503, NOTHING_YET),
    (200, NOTHING_YET),
    (200, "NONE"),
    (200, '"NONE"'),
    (200, "{}"),
]


@pytest.mark.parametrize(("status", "body"), NOTHING)
async def test_whatever_says_that_nothing_is_known_is_quiet(
    upcoming: UpcomingSource, gce: GcpMetadata, status: int, body: str
) -> None:
    gce.nothing_upcoming = status, body

    assert await upcoming.probe() == Quiet("gcp/upcoming-maintenance")


async def test_a_503_that_is_not_googles_is_taken_for_a_captive_proxys(
    upcoming: UpcomingSource, gce: GcpMetadata
) -> None:
    gce.fault = Faults([fault("status=503")])

    probe = await upcoming.probe()

    assert isinstance(probe, Unknown)
    assert probe.reason == "HTTP 503 without Metadata-Flavor"
    assert probe.cure.startswith("is this a captive proxy?")


@pytest.mark.parametrize("action", ["upcoming", "upcoming-camel"])
async def test_a_window_is_planned_at_its_start_in_either_spelling(
    upcoming: UpcomingSource, gce: GcpMetadata, clock: MovedClock, action: str
) -> None:
    gce.actions[action]()
    first = noticed(await upcoming.probe())
    clock.now += 50.0

    assert (first.source, first.id) == ("gcp/upcoming-maintenance", "gcp:upcoming-maintenance")
    assert (first.kind, first.confidence) == ("upcoming-maintenance", Confidence.PLANNED)
    assert "SCHEDULED PENDING" in first.detail
    assert noticed(await upcoming.probe()) == first
    assert [seen.target for seen in gce.requests] == [f"{ROOT}{UPCOMING}?alt=json"] * 2


def served(date: datetime, window: str) -> Answer:
    body = json.dumps({"window_start_time": window, "type": "UNSCHEDULED"})
    stamp = date.strftime("%a, %d %b %Y %H:%M:%S GMT")
    return Answer(200, body, headers={"metadata-flavor": "Google", "date": stamp})


@pytest.fixture
def windows(clock: MovedClock) -> Windows:
    return Windows(clock)


@pytest.mark.parametrize("ahead", [-600.0, 0.0, 600.0])
def test_a_wall_clock_that_is_off_does_not_move_the_window(
    windows: Windows, clock: MovedClock, ahead: float
) -> None:
    theirs = NOON + timedelta(seconds=ahead)
    answer = served(theirs, (theirs + timedelta(hours=1)).isoformat())

    assert noticed(windows(answer)).deadline == clock.now + 3600.0


def test_a_window_that_moves_is_taken_only_where_it_comes_nearer(
    windows: Windows, clock: MovedClock
) -> None:
    deadlines = [
        noticed(windows(served(NOON, f"2026-01-01T{start}Z"))).deadline
        for start in ("13:00:00", "14:00:00", "12:59:59.5", "12:30:00", "13:00:00")
    ]

    assert [at and at - clock.now for at in deadlines] == [3600, 3600, 3600, 1800, 1800]


def test_a_window_in_the_past_is_now_and_says_so(windows: Windows, clock: MovedClock) -> None:
    notice = noticed(windows(served(NOON, "2026-01-01T11:00:00Z")))

    assert notice.deadline == clock.now
    assert "3600 s past" in notice.detail


@pytest.mark.parametrize("action", ["upcoming-blank", "upcoming-garbled"])
async def test_a_window_that_is_no_date_is_unknown(
    upcoming: UpcomingSource, gce: GcpMetadata, action: str
) -> None:
    gce.actions[action]()

    assert isinstance(await upcoming.probe(), Unknown)


@pytest.mark.parametrize(("status", "body"), NOTHING)
async def test_only_a_plain_no_takes_a_window_back(
    upcoming: UpcomingSource, gce: GcpMetadata, status: int, body: str
) -> None:
    gce.actions["upcoming"]()
    first = await upcoming.probe()
    gce.nothing_upcoming = status, body
    gce.set(UPCOMING, None)
    then = await upcoming.probe()

    if status == 200 and "error" not in body:
        assert isinstance(then, Cancelled)
        assert then.id == noticed(first).id
        assert await upcoming.probe() == Quiet("gcp/upcoming-maintenance")
    else:
        assert isinstance(then, Unknown)
        gce.actions["upcoming"]()
        assert await upcoming.probe() == first


async def test_a_window_that_moves_on_each_read_is_one_notice_that_never_grows(
    upcoming: UpcomingSource, gce: GcpMetadata
) -> None:
    gce.actions["upcoming-moving"]()
    async with watching(upcoming) as hearing:
        last = 0
        for _ in range(4):
            last = await hearing.until(Noticed, after=last) + 1

    told = {noticed(probe) for probe in hearing.told}
    assert len(told) == 1


async def test_a_window_that_is_announced_while_nobody_knew_is_heard(
    upcoming: UpcomingSource, gce: GcpMetadata, asked: Asked
) -> None:
    async with watching(upcoming) as hearing:
        await asked.until(plain=2)
        gce.actions["upcoming"]()
        at = await hearing.until(Noticed)
        await asked.until(hanging=1)
        gce.actions["cancel"]()
        await hearing.until(Cancelled, after=at)

    assert asked.hanging >= 1


@pytest.mark.parametrize(
    ("body", "reading"),
    [
        ("NONE", Nothing(certain=True)),
        ("null", Nothing(certain=True)),
        (NOTHING_YET, Nothing(certain=False)),
        ('{"maintenanceStatus": "COMPLETE"}', Nothing(certain=True)),
        (
            '{"windowStartTime": "2026-01-01T12:00:00Z", "maintenanceReasons":'
            ' ["FAILURE_GPU_XID", 7]}',
            Window(NOON, "instance/upcoming-maintenance FAILURE_GPU_XID"),
        ),
        (
            '{"window_start_time": "2026-01-01T14:00:00+02:00"}',
            Window(NOON, "instance/upcoming-maintenance"),
        ),
        (
            '{"window_start_time": "2026-01-01T12:00:00"}',
            Window(NOON, "instance/upcoming-maintenance"),
        ),
    ],
)
def test_what_the_body_means(body: str, reading: object) -> None:
    assert parse(body) == reading


@pytest.mark.parametrize(
    "body",
    [
        "",
        "[]",
        "[1]",
        "7",
        '"SOON"',
        '{"type": "x"}',
        '{"window_start_time": 7}',
        '{"window_start_time": "0001-01-01T00:00:00+14:00"}',
        "[" * 9999,
    ],
)
def test_what_cannot_be_read_says_so(body: str) -> None:
    assert isinstance(parse(body), Unreadable)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
fields = st.sampled_from(
    ["window_start_time", "windowStartTime", "maintenanceStatus", "type", "error"]
)


@given(
    st.text()
    | st.binary().map(lambda raw: raw.decode("utf-8", "replace"))
    | json_values.map(json.dumps)
    | st.dictionaries(fields, json_values).map(json.dumps)
)
def test_no_body_raises_and_only_a_date_is_a_window(body: str) -> None:
    reading = parse(body)

    if isinstance(reading, Window):
        assert "window" in body
        assert reading.start.tzinfo is UTC
        assert reading.detail.isprintable()


# --- stop -------------------------------------------------------------------------------


@pytest.fixture
def stop(client: MetadataClient, clock: MovedClock) -> StopSource:
    return StopSource(client, clock, window_seconds=90.0, pace=FAST, jitter=lambda: 0.0)


async def test_a_stop_that_is_pending_is_certain_and_its_absence_is_quiet(
    stop: StopSource, gce: GcpMetadata, clock: MovedClock
) -> None:
    assert await stop.probe() == Quiet("gcp/stop")
    gce.actions["stop"]()
    notice = noticed(await stop.probe())
    assert (notice.id, notice.kind) == ("gcp:stop", "stop")
    assert (notice.confidence, notice.deadline) == (Confidence.CERTAIN, clock.now + 90.0)
    gce.actions["cancel"]()
    assert await stop.probe() == Cancelled(
        "gcp/stop", "gcp:stop", "instance/shutdown-details/stop-state is gone"
    )
    assert await stop.probe() == Quiet("gcp/stop")


async def test_a_stop_is_heard_where_the_key_was_not_there(
    stop: StopSource, gce: GcpMetadata, asked: Asked
) -> None:
    async with watching(stop) as hearing:
        await asked.until(plain=3)
        assert asked.hanging == 0
        gce.actions["stop"]()
        await hearing.until(Noticed)
        await asked.until(hanging=1)

    assert {type(probe) for probe in hearing.told} == {Quiet, Noticed}


@pytest.mark.parametrize("word", ["UNSPECIFIED", "STOP_STATE_UNSPECIFIED"])
async def test_an_unspecified_state_is_quiet(stop: StopSource, gce: GcpMetadata, word: str) -> None:
    gce.set(STOP_STATE, word)

    assert await stop.probe() == Quiet("gcp/stop")


async def test_a_404_that_is_not_googles_neither_is_quiet_nor_takes_back(
    stop: StopSource, gce: GcpMetadata
) -> None:
    gce.actions["stop"]()
    first = await stop.probe()
    gce.fault = Faults([fault("status=404,first=1")])

    assert isinstance(await stop.probe(), Unknown)
    assert await stop.probe() == first


# --- words, whatever they are -----------------------------------------------------------


@given(
    st.lists(
        st.sampled_from(["NONE", "END", "end\n", "PAUSE", "NEW_WORD", "", "<p>", "x" * 99])
        | st.text()
    )
)
def test_no_word_raises_and_only_its_own_orders(words: list[str]) -> None:
    clock = MovedClock()
    judge = Words(
        "gcp/x",
        "instance/x",
        {
            "END": Meaning("end", Confidence.PLANNED, 60.0),
            "PAUSE": Meaning("pause", Confidence.ADVISORY, 60.0),
        },
        clock=clock,
        nothing=frozenset({"NONE"}),
    )
    stands = False
    for word in words:
        probe = judge(Answer(200, word, headers={"metadata-flavor": "Google"}))
        if isinstance(probe, Noticed):
            assert probe.notice.detail.isprintable()
            assert len(probe.notice.detail) < 120
            assert (probe.notice.confidence is Confidence.PLANNED) == (
                word.strip().upper() == "END"
            )
            stands = True
        elif isinstance(probe, Cancelled):
            assert stands
            stands = False


# --- all of them ------------------------------------------------------------------------


async def test_all_keys_hang_at_once_on_one_session_and_a_plain_read_still_answers(
    gce: GcpMetadata, gce_url: str, clock: MovedClock, asked: Asked
) -> None:
    gce.actions["stop"]()
    gce.actions["upcoming"]()
    async with open_session(connections=CONNECTIONS) as session:
        client = gcp_client(session, gce_url, limits=QUICK)
        everything = sources(
            client, clock, gpu=True, uptime=lambda: 999.0, pace=FAST, upcoming_poll_seconds=0.02
        )
        assert [source.name for source in everything] == [
            "gcp/preempted",
            "gcp/maintenance",
            "gcp/upcoming-maintenance",
            "gcp/stop",
        ]
        async with (
            watching(everything[0]),
            watching(everything[1]),
            watching(everything[2]),
            watching(everything[3]) as last,
        ):
            await asked.until(hanging=4)
            assert await everything[0].probe() == Quiet("gcp/preempted")
            await last.until(Noticed)

    assert {seen.target.partition("?")[0].removeprefix(ROOT) for seen in gce.requests} == {
        PREEMPTED,
        MAINTENANCE_EVENT,
        UPCOMING,
        STOP_STATE,
    }


async def test_one_key_that_is_broken_stops_no_other(
    client: MetadataClient, clock: MovedClock, gce: GcpMetadata
) -> None:
    gce.fault = Faults([fault("status=500@instance/maintenance-event")], echo=ECHO)
    everything = sources(
        client, clock, gpu=True, uptime=lambda: 999.0, pace=FAST, upcoming_poll_seconds=0.02
    )
    async with watching(everything[1]) as broken, watching(everything[0]) as good:
        await broken.until(Unknown, after=2)
        gce.preempt()
        await good.until(Noticed)
