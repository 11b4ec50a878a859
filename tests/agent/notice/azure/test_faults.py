"""Azure against every fault: nothing is heard that was not said, nothing that was is unheard.

For each fault: alone it is `Unknown` with its reason; in the middle of a notice it neither
clears nor repeats it as another; once it is over, the notice is heard.
"""

import socket

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from evacd.facts import Cancelled, Noticed, Quiet, Unknown
from evacd.notice.azure import AzureSource
from evacd.notice.simulate.azure import AzureMetadata
from evacd.notice.simulate.cloud import Hook
from evacd.notice.simulate.faults import Faults, parse
from tests.agent.notice.azure.conftest import Make
from tests.agent.notice.hearing import MovedClock, raw_server, watching

BUSY = "asked again"
BETWEEN = "a proxy or captive portal answers"
FAULTS = [
    ("status=301", "HTTP 301, a redirect to nowhere", BETWEEN),
    ("redirect", "HTTP 302, a redirect to http://192.0.2.1/login", BETWEEN),
    ("status=203", "HTTP 203", ""),
    ("status=400", "HTTP 400", "api-version"),
    ("status=401", "HTTP 401", "wants credentials"),
    ("status=403", "HTTP 403", "a firewall"),
    ("status=404", "HTTP 404", "set azure.api_version"),
    ("status=410", "HTTP 410", "up to 70 s"),
    ("status=429", "HTTP 429", "more than 5 times a second"),
    ("status=500", "HTTP 500", BUSY),
    ("status=503", "HTTP 503", BUSY),
    ("html", "the answer is an HTML page", BETWEEN),
    ("empty", "the body is '', expected a JSON document", "is this Azure's"),
    ("malformed", "expected a JSON document", "is this Azure's"),
    ("garbage", "the body is not text", BETWEEN),
    ("too-large", "expected a JSON document", "is this Azure's"),
    ("truncated", "the body is cut short", BUSY),
    ("reset", "the connection broke", ""),
    ("drip", "no answer within 0.5 s", "hostNetwork"),
    ("slow=10", "no answer within 0.5 s", "hostNetwork"),
    ("never", "no answer within 0.5 s", "hostNetwork"),
]
BODIES = [
    ("null", "expected a JSON object"),
    ("[]", "expected a JSON object"),
    ("TRUE", "expected a JSON document"),
    ('{"action": "terminate"}', "DocumentIncarnation is missing"),
    ('{"error": "Too many requests"}', "DocumentIncarnation is missing"),
    ('{"DocumentIncarnation": 1, "Events": null}', "Events is missing"),
    ('{"DocumentIncarnation": 1, "Events": [7]}', "Events[0]: expected an object"),
    (
        '{"DocumentIncarnation": 1, "Events": [{"EventType": "Preempt"}]}',
        "Events[0].EventId: expected",
    ),
    (
        '{"DocumentIncarnation": 1, "Events": [{"EventType": "Preempt", "EventId": "1",'
        ' "EventStatus": "Started", "Resources": "evac-simulated_0"}]}',
        "Events[0].Resources: expected",
    ),
]


def saying(text: str) -> Hook:
    async def hook(_: web.Request) -> web.StreamResponse:
        return web.Response(text=text, content_type="application/json")

    return hook


CASES = [
    *(pytest.param(Faults([parse(line)]), reason, cure, id=line) for line, reason, cure in FAULTS),
    *(pytest.param(saying(body), reason, "", id=body[:60]) for body, reason in BODIES),
]


@pytest.mark.parametrize(("fault", "reason", "cure"), CASES)
async def test_a_fault_is_unknown_and_says_what_it_is(
    source: AzureSource, azure: AzureMetadata, fault: Hook, reason: str, cure: str
) -> None:
    assert await source.probe() == Quiet("azure")
    azure.schedule("Preempt")
    azure.fault = fault

    probe = await source.probe()

    assert isinstance(probe, Unknown)
    assert reason in probe.reason
    assert cure in probe.cure


@pytest.mark.parametrize(("fault", "reason", "cure"), CASES)
async def test_a_fault_clears_no_notice_and_stops_no_watch(
    source: AzureSource,
    azure: AzureMetadata,
    clock: MovedClock,
    fault: Hook,
    reason: str,
    cure: str,
) -> None:
    id = azure.schedule("Terminate")
    async with watching(source) as hearing:
        first = await hearing.until(Noticed)
        azure.fault = fault
        unknown = await hearing.until(Unknown)
        clock.now += 1.0
        azure.fault = None
        again = await hearing.until(Noticed, after=unknown)
        azure.end(id)
        await hearing.until(Cancelled, after=again)

    assert hearing.told[first] == hearing.told[again]
    assert sum(isinstance(probe, Cancelled) for probe in hearing.told) == 1


async def test_more_than_five_requests_a_second_are_unknown_and_heard_later(
    make: Make, azure: AzureMetadata, azure_url: str
) -> None:
    azure.rate = 5
    async with watching(make(azure_url)) as hearing:
        unknown = await hearing.until(Unknown)
        azure.schedule("Preempt")
        azure.rate = None
        await hearing.until(Noticed, after=unknown)

    refused = hearing.told[unknown]
    assert isinstance(refused, Unknown)
    assert refused.reason == "HTTP 429"


async def test_a_service_that_comes_up_late_is_heard(make: Make, azure: AzureMetadata) -> None:
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
    azure.schedule("Preempt")
    async with watching(make(f"http://127.0.0.1:{port}")) as hearing:
        await hearing.until(Unknown, after=2)
        async with TestServer(azure.app, port=port):
            await hearing.until(Noticed)

    assert isinstance(hearing.told[0], Unknown)
    assert hearing.told[0].reason == "no connection: Connection refused"


async def test_the_proxy_environment_is_never_used(
    monkeypatch: pytest.MonkeyPatch, source: AzureSource
) -> None:
    touched: list[str] = []

    async def trap(*_: object) -> None:
        touched.append("a request")

    async with raw_server(trap) as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)

        assert await source.probe() == Quiet("azure")

    assert touched == []


@pytest.mark.parametrize("body", ["", "{}", '"evac-simulated_0"', "<html>x", "a\tb", "x" * 200])
async def test_what_is_no_machines_name_is_not_taken_for_one(
    source: AzureSource, azure: AzureMetadata, body: str
) -> None:
    async def hook(request: web.Request) -> web.StreamResponse | None:
        return web.Response(text=body) if "/instance" in request.path else None

    azure.fault = hook

    probe = await source.probe()

    assert isinstance(probe, Unknown)
    assert probe.reason.startswith("this machine's own name is not known: ")
