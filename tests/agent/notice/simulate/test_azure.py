"""The simulator against Azure's documented protocol, asked by a plain HTTP client."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from evacd.notice.simulate.azure import AzureMetadata
from tests.agent.notice.hearing import MovedClock

METADATA = {"Metadata": "true"}
EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"


class Plain:
    """A plain client: status, body and headers of one request."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def get(
        self, path: str = EVENTS, headers: Mapping[str, str] = METADATA
    ) -> tuple[int, Any]:
        async with self.session.get(self.url + path, headers=headers) as response:
            is_json = response.content_type == "application/json"
            return response.status, await (response.json() if is_json else response.text())

    async def post(self, body: object, headers: Mapping[str, str] = METADATA) -> int:
        async with self.session.post(self.url + EVENTS, json=body, headers=headers) as response:
            return response.status

    async def events(self) -> list[dict[str, Any]]:
        status, document = await self.get()
        assert status == 200
        events: list[dict[str, Any]] = document["Events"]
        return events

    async def incarnation(self) -> int:
        incarnation: int = (await self.get())[1]["DocumentIncarnation"]
        return incarnation


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


@pytest.fixture
def azure(clock: MovedClock) -> AzureMetadata:
    return AzureMetadata(clock=clock, rate=None)


@pytest.fixture
async def plain(session: aiohttp.ClientSession, azure: AzureMetadata) -> AsyncIterator[Plain]:
    async with TestServer(azure.app) as server:
        yield Plain(session, str(server.make_url("")).rstrip("/"))


async def test_with_no_event_the_document_has_an_empty_list(plain: Plain) -> None:
    assert await plain.get() == (200, {"DocumentIncarnation": 1, "Events": []})


@pytest.mark.parametrize("path", [EVENTS, NAME, "/metadata/x?api-version=2020-07-01"])
async def test_a_request_that_is_not_meant_for_it_is_refused(plain: Plain, path: str) -> None:
    assert (await plain.get(path, headers={}))[0] == 400
    assert (await plain.get(path, headers={"Metadata": "false"}))[0] == 400
    assert (await plain.get(path, headers={**METADATA, "X-Forwarded-For": "10.0.0.1"}))[0] == 400
    assert (await plain.get(path.partition("?")[0]))[0] == 400


async def test_an_unknown_version_is_refused_and_an_unknown_path_is_not_found(
    plain: Plain,
) -> None:
    assert (await plain.get("/metadata/scheduledevents?api-version=1999-01-01"))[0] == 400
    assert (await plain.get("/metadata/other?api-version=2020-07-01"))[0] == 404


async def test_an_event_is_scheduled_started_and_gone(
    plain: Plain, azure: AzureMetadata, clock: MovedClock
) -> None:
    before = await plain.incarnation()
    azure.actions["preempt"]()
    (event,) = await plain.events()
    scheduled = await plain.incarnation()

    assert {**event, "EventId": ""} == {
        "EventId": "",
        "EventStatus": "Scheduled",
        "EventType": "Preempt",
        "ResourceType": "VirtualMachine",
        "Resources": ["evac-simulated_0"],
        "NotBefore": "Thu, 01 Jan 1970 00:17:10 GMT",
        "Description": "An event of the evac simulator.",
        "EventSource": "Platform",
        "DurationInSeconds": -1,
    }

    clock.now += 30.0
    (event,) = await plain.events()
    started = await plain.incarnation()
    assert (event["EventStatus"], event["NotBefore"]) == ("Started", "")

    azure.actions["finish"]()
    assert await plain.events() == []
    assert before < scheduled < started < await plain.incarnation()


@pytest.mark.parametrize(
    ("action", "type", "status", "resources"),
    [
        ("preempt", "Preempt", "Scheduled", ["evac-simulated_0"]),
        ("terminate", "Terminate", "Scheduled", ["evac-simulated_0"]),
        ("redeploy", "Redeploy", "Scheduled", ["evac-simulated_0"]),
        ("reboot", "Reboot", "Scheduled", ["evac-simulated_0"]),
        ("freeze", "Freeze", "Scheduled", ["evac-simulated_0"]),
        ("rebalance", "SpotRebalanceRecommendation", "Advisory", ["evac-simulated_0"]),
        ("unknown", "Defenestrate", "Scheduled", ["evac-simulated_0"]),
        ("other-vm", "Preempt", "Scheduled", ["evac-simulated_1"]),
        ("together", "Reboot", "Scheduled", ["evac-simulated_1", "evac-simulated_0"]),
    ],
)
async def test_each_action_announces_its_event_once(
    plain: Plain, azure: AzureMetadata, action: str, type: str, status: str, resources: list[str]
) -> None:
    azure.actions[action]()
    azure.actions[action]()

    (event,) = await plain.events()
    assert (event["EventType"], event["EventStatus"], event["Resources"]) == (
        type,
        status,
        resources,
    )


async def test_start_cancel_finish_and_clear(plain: Plain, azure: AzureMetadata) -> None:
    azure.actions["preempt"]()
    azure.actions["start"]()
    azure.actions["freeze"]()
    azure.actions["rebalance"]()

    azure.actions["cancel"]()
    assert [event["EventType"] for event in await plain.events()] == ["Preempt"]
    azure.actions["finish"]()
    assert await plain.events() == []
    azure.actions["preempt"]()
    azure.actions["clear"]()
    assert await plain.events() == []


async def test_an_approval_starts_the_event_and_may_be_repeated(
    plain: Plain, azure: AzureMetadata
) -> None:
    body = {"StartRequests": [{"EventId": azure.schedule("Preempt")}]}

    assert await plain.post(body, headers={}) == 400
    assert [event["EventStatus"] for event in await plain.events()] == ["Scheduled"]
    assert [await plain.post(body), await plain.post(body)] == [200, 200]
    assert [event["EventStatus"] for event in await plain.events()] == ["Started"]


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {},
        {"StartRequests": []},
        {"StartRequests": [{}]},
        {"StartRequests": [{"EventId": 7}]},
        {"StartRequests": [{"EventId": "gone"}]},
        {"StartRequests": "all"},
    ],
)
async def test_a_malformed_approval_is_a_bad_request(plain: Plain, body: object) -> None:
    assert await plain.post(body) == 400


async def test_more_than_five_requests_in_a_second_are_refused(
    plain: Plain, azure: AzureMetadata
) -> None:
    azure.rate = 5

    statuses = [(await plain.get())[0] for _ in range(6)]

    assert statuses == [200] * 5 + [429]


async def test_the_first_call_takes_its_time_even_if_its_caller_leaves(
    plain: Plain, azure: AzureMetadata
) -> None:
    azure.first_call_seconds = 0.3
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await plain.get()
    begun = azure.enabled_at

    assert (await plain.get())[0] == 200
    assert azure.enabled_at == begun
    assert begun is not None
    assert asyncio.get_running_loop().time() >= begun


async def test_the_instance_tells_its_name(plain: Plain) -> None:
    assert await plain.get(NAME) == (200, "evac-simulated_0")
    assert (await plain.get(NAME.partition("&")[0]))[0] == 400
    assert (await plain.get("/metadata/instance/compute/shoe?api-version=2021-02-01"))[0] == 404
    status, document = await plain.get("/metadata/instance?api-version=2021-02-01")
    assert (status, document["compute"]["name"]) == (200, "evac-simulated_0")


async def test_changes_are_told(azure: AzureMetadata) -> None:
    told: list[tuple[str, str]] = []
    azure.changed = lambda key, value: told.append((key, value))

    id = azure.schedule("Preempt")
    azure.start(id)
    azure.start(id)
    azure.end(id)

    assert told == [(f"Preempt {id}", word) for word in ("Scheduled", "Started", "gone")]


async def test_a_fault_answers_in_place_of_the_service(plain: Plain, azure: AzureMetadata) -> None:
    async def fault(request: web.Request) -> web.StreamResponse | None:
        return web.Response(status=418) if "/instance" in request.path else None

    azure.fault = fault

    assert (await plain.get(NAME))[0] == 418
    assert (await plain.get())[0] == 200
    assert [seen.target for seen in azure.requests] == [NAME, EVENTS]
