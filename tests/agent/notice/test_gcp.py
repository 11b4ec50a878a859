"""GcpSource against the simulator over real sockets, and against servers that are not GCE."""

import asyncio
import socket
from collections.abc import Callable

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from evacd.facts import Cancelled, Confidence, Notice, Noticed, Quiet, Unknown
from evacd.notice.gcp import GcpSource, gcp_client
from evacd.notice.longpoll import Pace
from evacd.notice.metadata import Limits
from evacd.notice.simulate.gcp import GcpMetadata
from tests.agent.notice.hearing import (
    Asked,
    MovedClock,
    Talk,
    Wrong,
    http,
    raw_server,
    resetting,
    saying,
    silent,
    watching,
)

FAST = Pace(poll=0.02, backoff_first=0.005, backoff_most=0.02)
QUICK = Limits(connect=1.0, read=0.3, hang_slack=0.2)

NOTICE = Notice(
    source="gcp/preempted",
    kind="preempted",
    id="gcp:preempted:boot-1",
    confidence=Confidence.CERTAIN,
    deadline=1030.0,
    seen=1000.0,
    detail="instance/preempted is TRUE",
)

Make = Callable[[str], GcpSource]


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


@pytest.fixture
def make(session: aiohttp.ClientSession, clock: MovedClock) -> Make:
    """A source that asks the server at this URL."""
    return lambda url: GcpSource(
        gcp_client(session, url, limits=QUICK),
        clock,
        window_seconds=30.0,
        hold_seconds=1.0,
        boot="boot-1",
        pace=FAST,
        jitter=lambda: 0.0,
    )


@pytest.fixture
def source(make: Make, gce_url: str) -> GcpSource:
    return make(gce_url)


@pytest.fixture
def asked(gce: GcpMetadata) -> Asked:
    """What the simulator is asked."""
    asked = Asked()
    gce.fault = asked
    return asked


# --- what GCE says ----------------------------------------------------------------------


async def test_a_notice_that_comes_is_told_by_the_hanging_get(
    source: GcpSource, gce: GcpMetadata, asked: Asked
) -> None:
    async with watching(source) as hearing:
        await asked.until(hanging=1)
        gce.preempt()
        await hearing.until(Noticed)
        await asked.until(hanging=2)

    assert hearing.told == [Quiet("gcp/preempted"), Noticed(NOTICE)]
    assert [seen.target for seen in gce.requests] == [
        "/computeMetadata/v1/instance/preempted",
        "/computeMetadata/v1/instance/preempted"
        "?wait_for_change=true&last_etag=0000000000000001&timeout_sec=1",
        "/computeMetadata/v1/instance/preempted"
        "?wait_for_change=true&last_etag=0000000000000002&timeout_sec=1",
    ]


async def test_a_notice_that_stands_at_the_start_is_found_by_the_plain_read(
    source: GcpSource, gce: GcpMetadata
) -> None:
    gce.preempt()

    async with watching(source) as hearing:
        await hearing.until(Noticed)

    assert hearing.told[0] == Noticed(NOTICE)


async def test_a_notice_that_stands_keeps_its_id_and_its_deadline(
    source: GcpSource, gce: GcpMetadata, clock: MovedClock
) -> None:
    gce.preempt()
    first = await source.probe()
    clock.now += 7.0

    assert await source.probe() == first == Noticed(NOTICE)


async def test_no_notice_is_quiet(source: GcpSource) -> None:
    assert await source.probe() == Quiet("gcp/preempted")


async def test_false_after_true_is_a_cancel_once(
    source: GcpSource, gce: GcpMetadata, clock: MovedClock
) -> None:
    gce.preempt()
    await source.probe()
    gce.clear()

    assert isinstance(cancelled := await source.probe(), Cancelled)
    assert cancelled.id == NOTICE.id
    assert await source.probe() == Quiet("gcp/preempted")
    gce.preempt()
    clock.now = 2000.0
    assert isinstance(again := await source.probe(), Noticed)
    assert (again.notice.id, again.notice.deadline) == (NOTICE.id, 2030.0)


async def test_a_rehearsal_is_heard_to_its_end(
    source: GcpSource, gce: GcpMetadata, asked: Asked
) -> None:
    async with watching(source) as hearing:
        await asked.until(hanging=1)
        gce.preempt()
        await hearing.until(Noticed)
        gce.clear()
        await hearing.until(Cancelled)
        gce.preempt()
        await hearing.until(Noticed, after=2)

    assert [type(probe) for probe in hearing.told[:4]] == [Quiet, Noticed, Cancelled, Noticed]


async def test_a_hanging_get_that_ends_unchanged_is_asked_again(
    source: GcpSource, gce: GcpMetadata, asked: Asked
) -> None:
    async with watching(source) as hearing:
        await asked.until(hanging=2)
        gce.preempt()
        await hearing.until(Noticed)

    assert hearing.told == [Quiet("gcp/preempted"), Quiet("gcp/preempted"), Noticed(NOTICE)]
    assert asked.plain == 1


async def test_every_request_carries_the_flavor_and_none_a_forwarder(
    source: GcpSource, gce: GcpMetadata, asked: Asked
) -> None:
    async with watching(source):
        await asked.until(plain=1, hanging=1)

    for seen in gce.requests:
        assert seen.headers["metadata-flavor"] == "Google"
        assert not {"x-forwarded-for", "via", "forwarded", "cookie"} & set(seen.headers)


# --- what goes wrong in between ---------------------------------------------------------


def status(number: int) -> Wrong:
    """Answer with this status, as GCE would."""

    async def wrong(_: web.Request) -> web.StreamResponse:
        return web.Response(status=number, headers={"Metadata-Flavor": "Google"})

    return wrong


async def cut(request: web.Request) -> web.StreamResponse:
    """Drop the connection in the middle of the body."""
    response = web.StreamResponse(headers={"Content-Length": "4", "Metadata-Flavor": "Google"})
    await response.prepare(request)
    await response.write(b"TR")
    assert request.transport is not None
    request.transport.abort()
    return response


async def never(_: web.Request) -> web.StreamResponse:
    """Hold the answer back for ever."""
    await asyncio.Event().wait()
    raise AssertionError


@pytest.mark.parametrize("wrong", [status(503), cut, never], ids=["503", "cut", "never"])
async def test_a_hanging_get_that_fails_is_followed_by_a_plain_read(
    source: GcpSource, gce: GcpMetadata, asked: Asked, wrong: Wrong
) -> None:
    async def once(request: web.Request) -> web.StreamResponse | None:
        asked.wrong_hanging = None
        gce.preempt()
        return await wrong(request)

    asked.wrong_hanging = once
    async with watching(source) as hearing:
        await hearing.until(Noticed)

    assert [type(probe) for probe in hearing.told[:3]] == [Quiet, Unknown, Noticed]
    assert (asked.plain, hearing.told[2]) == (2, Noticed(NOTICE))


async def test_where_hanging_gets_keep_failing_plain_reads_hear_the_notice(
    source: GcpSource, gce: GcpMetadata, asked: Asked
) -> None:
    asked.wrong_hanging = status(503)
    async with watching(source) as hearing:
        await asked.until(plain=10)
        gce.preempt()
        await hearing.until(Noticed)

    assert asked.hanging == FAST.hang_failures


async def test_without_an_etag_plain_reads_hear_the_notice(make: Make) -> None:
    answers = [b"FALSE", b"FALSE", b"TRUE"]

    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = answers.pop(0) if len(answers) > 1 else answers[0]
        writer.write(http(body, headers="Metadata-Flavor: Google\r\nConnection: close\r\n"))
        await writer.drain()

    async with raw_server(talk) as url, watching(make(url)) as hearing:
        await hearing.until(Noticed)

    assert hearing.told[:3] == [Quiet("gcp/preempted"), Quiet("gcp/preempted"), Noticed(NOTICE)]


FOREIGN = [
    pytest.param(saying(http(b"", status="400 No")), "HTTP 400", id="400"),
    pytest.param(saying(http(b"", status="401 No")), "HTTP 401", id="401"),
    pytest.param(saying(http(b"", status="403 No")), "HTTP 403", id="403"),
    pytest.param(saying(http(b"", status="404 No")), "HTTP 404", id="404"),
    pytest.param(saying(http(b"", status="410 No")), "HTTP 410", id="410"),
    pytest.param(saying(http(b"", status="429 No")), "HTTP 429", id="429"),
    pytest.param(saying(http(b"", status="500 No")), "HTTP 500", id="500"),
    pytest.param(saying(http(b"", status="503 No")), "HTTP 503", id="503"),
    pytest.param(saying(http(b"TRUE", status="203 Hm")), "HTTP 203", id="203"),
    pytest.param(
        saying(http(b"", status="301 Go", headers="Location: http://127.0.0.1:9/\r\n")),
        "HTTP 301, a redirect to http://127.0.0.1:9/",
        id="301",
    ),
    pytest.param(saying(http(b"<html>TRUE", kind="text/html")), "HTML", id="html"),
    pytest.param(saying(http(b"")), "is ''", id="empty"),
    pytest.param(saying(http(b"PERHAPS")), "is 'PERHAPS'", id="unknown word"),
    pytest.param(saying(http(b'{"preempted": true}')), "expected TRUE or FALSE", id="json"),
    pytest.param(saying(http(b"\x00\xff\x80")), "not text", id="garbage"),
    pytest.param(saying(http(b"TRU", length=9)), "cut short", id="truncated"),
    pytest.param(saying(http(b"TRUE", headers="ETag: 7\r\n")), "Metadata-Flavor", id="no echo"),
    pytest.param(saying(http(b"TRUE" * 20_000)), "over", id="too large"),
    pytest.param(resetting, "broke", id="reset"),
    pytest.param(silent, "within", id="slow"),
]


@pytest.mark.parametrize(("talk", "reason"), FOREIGN)
async def test_what_is_not_gces_answer_is_unknown(make: Make, talk: Talk, reason: str) -> None:
    async with raw_server(talk) as url:
        probe = await make(url).probe()

    assert isinstance(probe, Unknown)
    assert reason in probe.reason


@pytest.mark.parametrize(("talk", "reason"), FOREIGN)
async def test_what_is_not_gces_answer_clears_no_notice_and_stops_no_watch(
    make: Make, clock: MovedClock, talk: Talk, reason: str
) -> None:
    good, turns = saying(http(b"TRUE")), 0

    async def talk_in_turns(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal turns
        turns += 1
        clock.now += 1.0
        await (talk if turns == 2 else good)(reader, writer)

    async with raw_server(talk_in_turns) as url, watching(make(url)) as hearing:
        await hearing.until(Noticed, after=await hearing.until(Unknown))

    first, unknown, second = hearing.told[:3]
    assert isinstance(unknown, Unknown)
    assert first == second


async def test_404_hints_at_gkes_metadata_server(make: Make) -> None:
    async with raw_server(saying(http(b"", status="404 No"))) as url:
        probe = await make(url).probe()

    assert isinstance(probe, Unknown)
    assert "hostNetwork: true" in probe.cure


async def test_a_service_that_comes_up_late_is_heard(make: Make, gce: GcpMetadata) -> None:
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
    async with watching(make(f"http://127.0.0.1:{port}")) as hearing:
        await hearing.until(Unknown, after=2)
        gce.preempt()
        async with TestServer(gce.app, port=port):
            await hearing.until(Noticed)

    assert isinstance(hearing.told[0], Unknown)
    assert hearing.told[0].reason == "no connection: Connection refused"


async def test_a_service_that_restarts_is_heard_again(
    make: Make, gce: GcpMetadata, asked: Asked
) -> None:
    after = GcpMetadata()
    after.preempt()
    first = TestServer(gce.app)
    await first.start_server()
    port = first.port
    async with watching(make(f"http://127.0.0.1:{port}")) as hearing:
        await asked.until(hanging=1)
        await first.close()
        await hearing.until(Unknown)
        async with TestServer(after.app, port=port):
            await hearing.until(Noticed)


async def test_the_proxy_environment_is_never_used(
    monkeypatch: pytest.MonkeyPatch, source: GcpSource
) -> None:
    touched: list[str] = []

    async def trap(*_: object) -> None:
        touched.append("a request")

    async with raw_server(trap) as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)

        assert await source.probe() == Quiet("gcp/preempted")

    assert touched == []
