"""HttpSource on real servers."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from evac.errors import ConfigError
from evacd.facts import Cancelled, Noticed, Quiet, Unknown
from evacd.notice.metadata import Limits
from evacd.notice.simulate.faults import Faults, parse
from evacd.notice.user import HttpSource
from tests.agent.notice.hearing import MovedClock, raw_server, watching
from tests.agent.notice.user.conftest import document, entry

QUICK = Limits(connect=1.0, read=0.3)


@dataclass
class Relay:
    """A user's server.

    Attributes:
        says: Its document.
        fault: Answers in place of it.
    """

    says: bytes = field(default_factory=document)
    fault: Callable[[web.Request], Awaitable[web.StreamResponse | None]] | None = None
    requests: list[web.Request] = field(default_factory=list)

    @property
    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/events/node-7", self.answer)
        return app

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        if self.fault is not None and (wrong := await self.fault(request)) is not None:
            return wrong
        headers = {"Date": "Thu, 01 Jan 1970 00:16:40 GMT"}
        return web.Response(body=self.says, content_type="application/json", headers=headers)


Make = Callable[[str], HttpSource]


@pytest.fixture
def relay() -> Relay:
    return Relay()


@pytest.fixture
def make(session: aiohttp.ClientSession, clock: MovedClock) -> Make:
    return lambda url: HttpSource(
        session, url, clock, period=0.02, limits=QUICK, jitter=lambda: 0.0
    )


@pytest.fixture
async def source(make: Make, relay: Relay) -> AsyncIterator[HttpSource]:
    async with TestServer(relay.app) as server:
        yield make(str(server.make_url("/events/node-7?token=1")))


async def test_an_empty_list_is_quiet(source: HttpSource) -> None:
    assert await source.probe() == Quiet("http")


async def test_a_notice_is_heard_and_cancelled(source: HttpSource, relay: Relay) -> None:
    async with watching(source) as hearing:
        await hearing.until(Quiet)
        relay.says = document(entry())
        noticed = await hearing.until(Noticed)
        relay.says = document()
        await hearing.until(Cancelled, after=noticed)

    probe = hearing.told[noticed]
    assert isinstance(probe, Noticed)
    assert (probe.notice.source, probe.notice.deadline) == ("http", 3600.0)
    assert relay.requests[0].path_qs == "/events/node-7?token=1"


FAULTS = [
    ("status=204", "HTTP 204", "200 with an empty list"),
    ("redirect", "HTTP 302, a redirect to http://192.0.2.1/login", "the address it leads to"),
    ("status=401", "HTTP 401", ""),
    ("status=404", "HTTP 404", "200 with an empty list"),
    ("status=500", "HTTP 500", ""),
    ("html", "the answer is an HTML page", "without a proxy"),
    ("empty", "line 1, column 1: expected JSON", "SCHEMA.md"),
    ("malformed", "expected JSON", "SCHEMA.md"),
    ("garbage", "the body is not text", ""),
    ("too-large", "the body is over 65536 bytes", ""),
    ("truncated", "the body is cut short", ""),
    ("reset", "the connection broke", "is the server up"),
    ("drip", "no answer within 0.3 s", "is the server up"),
    ("slow=10", "no answer within 0.3 s", "is the server up"),
    ("never", "no answer within 0.3 s", "is the server up"),
]


@pytest.mark.parametrize(("line", "reason", "cure"), FAULTS, ids=[line for line, *_ in FAULTS])
async def test_a_fault_is_unknown_says_what_it_is_and_clears_no_notice(
    source: HttpSource, relay: Relay, line: str, reason: str, cure: str
) -> None:
    relay.says = document(entry())
    first = await source.probe()
    relay.fault = Faults([parse(line)])

    probe = await source.probe()
    assert isinstance(probe, Unknown)
    assert reason in probe.reason
    assert cure in probe.cure

    relay.fault = None
    assert await source.probe() == first


async def test_a_server_that_is_away_is_unknown(make: Make) -> None:
    async with TestServer(web.Application()) as server:
        url = str(server.make_url("/"))

    probe = await make(url).probe()

    assert isinstance(probe, Unknown)
    assert "no connection" in probe.reason
    assert probe.cure == "is the server up, and does this machine reach it without a proxy?"


async def test_the_proxy_environment_is_never_used(
    monkeypatch: pytest.MonkeyPatch, source: HttpSource
) -> None:
    touched: list[str] = []

    async def trap(*_: object) -> None:
        touched.append("a request")

    async with raw_server(trap) as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)

        assert await source.probe() == Quiet("http")

    assert touched == []


@pytest.mark.parametrize(
    "url",
    [
        "",
        "events.example",
        "ftp://events.example/",
        "http://",
        "http://user:secret@events.example/",
        "http://events.example/#top",
        "http://events.example:99999/",
        "http://[::1/",
        "http://events.example/\r\nHost: x",
    ],
)
async def test_what_is_no_url_is_refused(make: Make, url: str) -> None:
    with pytest.raises(ConfigError, match=r"notice\.http: url: expected http"):
        make(url)


@pytest.mark.parametrize(
    "url", ["http://events.example:8080/a?b=c", "https://events.example", "http://[::1]:80/x"]
)
async def test_names_paths_and_tls_are_allowed(make: Make, url: str) -> None:
    assert make(url).name == "http"


async def test_a_server_without_tls_behind_https_is_unknown(make: Make) -> None:
    async with TestServer(web.Application()) as server:
        probe = await make(str(server.make_url("/")).replace("http:", "https:")).probe()

    assert isinstance(probe, Unknown)
    assert "no TLS connection" in probe.reason
