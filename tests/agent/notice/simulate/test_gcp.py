"""The simulator against GCE's documented protocol, asked by a plain HTTP client."""

import asyncio
import json
from collections.abc import Mapping

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from evacd.notice.simulate.gcp import (
    KEYS,
    MAINTENANCE_EVENT,
    NOTHING_YET,
    STOP_STATE,
    UPCOMING,
    GcpMetadata,
)
from tests.agent.notice.hearing import Asked

FLAVOR = {"Metadata-Flavor": "Google"}
PATH = "/computeMetadata/v1/instance/preempted"


class Plain:
    """A plain client: status, body and headers of one GET."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def get(
        self, path: str = PATH, headers: dict[str, str] | None = None
    ) -> tuple[int, str, Mapping[str, str]]:
        headers = FLAVOR if headers is None else headers
        async with self.session.get(self.url + path, headers=headers) as response:
            return response.status, await response.text(), response.headers


@pytest.fixture
def plain(session: aiohttp.ClientSession, gce_url: str) -> Plain:
    return Plain(session, gce_url)


@pytest.fixture
def asked(gce: GcpMetadata) -> Asked:
    asked = Asked()
    gce.fault = asked
    return asked


async def test_a_value_comes_as_text_with_an_etag_and_the_echo(plain: Plain) -> None:
    status, body, headers = await plain.get()

    assert (status, body) == (200, "FALSE")
    assert headers["Metadata-Flavor"] == "Google"
    assert headers["Content-Type"].startswith("text/plain")
    assert headers["ETag"]


@pytest.mark.parametrize("key", KEYS)
async def test_every_key_answers(plain: Plain, key: str) -> None:
    status, body, _ = await plain.get(f"/computeMetadata/v1/{key}")

    assert (status, body) == (200, KEYS[key])


async def test_without_the_flavor_it_is_forbidden(plain: Plain) -> None:
    assert (await plain.get(headers={}))[0] == 403
    assert (await plain.get(headers={"Metadata-Flavor": "Vanilla"}))[0] == 403


async def test_a_forwarded_request_is_forbidden(plain: Plain) -> None:
    assert (await plain.get(headers={**FLAVOR, "X-Forwarded-For": "10.0.0.1"}))[0] == 403


@pytest.mark.parametrize("key", ["instance/spot", "instance", "instance/preempted/x", "x"])
async def test_an_unknown_key_is_not_found(plain: Plain, key: str) -> None:
    assert (await plain.get(f"/computeMetadata/v1/{key}"))[0] == 404


async def test_preempt_and_clear_change_value_and_etag(plain: Plain, gce: GcpMetadata) -> None:
    _, before, first = await plain.get()
    gce.preempt()
    _, during, second = await plain.get()
    gce.clear()
    _, after, third = await plain.get()

    assert (before, during, after) == ("FALSE", "TRUE", "FALSE")
    assert len({first["ETag"], second["ETag"], third["ETag"]}) == 3


async def test_an_etag_out_of_date_answers_at_once(plain: Plain, gce: GcpMetadata) -> None:
    _, _, headers = await plain.get()
    gce.preempt()

    status, body, _ = await plain.get(f"{PATH}?wait_for_change=true&last_etag={headers['ETag']}")

    assert (status, body) == (200, "TRUE")


@pytest.mark.parametrize("etag", ["", "&last_etag={etag}"])
async def test_a_hanging_get_waits_for_the_next_change(
    plain: Plain, gce: GcpMetadata, asked: Asked, etag: str
) -> None:
    gce.preempt()
    _, _, headers = await plain.get()
    query = "?wait_for_change=true" + etag.format(etag=headers["ETag"])
    async with asyncio.TaskGroup() as tasks:
        hanging = tasks.create_task(plain.get(PATH + query))
        await asked.until(hanging=1)
        gce.set("instance/maintenance-event", "MIGRATE_ON_HOST_MAINTENANCE")
        assert (await plain.get())[1] == "TRUE"
        assert not hanging.done()
        gce.clear()

    assert hanging.result()[1] == "FALSE"


async def test_timeout_sec_ends_it_unchanged(plain: Plain) -> None:
    _, _, headers = await plain.get()

    status, body, again = await plain.get(
        f"{PATH}?wait_for_change=true&last_etag={headers['ETag']}&timeout_sec=0"
    )

    assert (status, body, again["ETag"]) == (200, "FALSE", headers["ETag"])


async def test_as_headers_the_hanging_parameters_mean_nothing(plain: Plain) -> None:
    status, body, _ = await plain.get(headers={**FLAVOR, "wait_for_change": "true"})

    assert (status, body) == (200, "FALSE")


@pytest.mark.parametrize("text", ["soon", "-1", "1.5", "", "\u0663"])
async def test_a_timeout_that_is_no_number_is_a_bad_request(plain: Plain, text: str) -> None:
    assert (await plain.get(f"{PATH}?wait_for_change=true&timeout_sec={text}"))[0] == 400


async def test_a_service_that_stops_ends_hanging_gets_with_503(
    session: aiohttp.ClientSession,
) -> None:
    gce, asked = GcpMetadata(), Asked()
    gce.fault = asked
    async with asyncio.TaskGroup() as tasks, TestServer(gce.app) as server:
        plain = Plain(session, str(server.make_url("")).rstrip("/"))
        hanging = tasks.create_task(plain.get(f"{PATH}?wait_for_change=true"))
        await asked.until(hanging=1)

    assert hanging.result()[0] == 503


async def test_a_fault_answers_in_place_of_the_service(plain: Plain, gce: GcpMetadata) -> None:
    async def fault(request: web.Request) -> web.StreamResponse | None:
        return web.Response(status=418) if request.query.get("x") else None

    gce.fault = fault

    assert (await plain.get(f"{PATH}?x=1"))[0] == 418
    assert (await plain.get())[0] == 200
    assert [seen.target for seen in gce.requests] == [f"{PATH}?x=1", PATH]


# --- keys beside the preemption ---------------------------------------------------------

V1 = "/computeMetadata/v1/"


async def test_a_maintenance_event_is_skipped_where_nobody_asked_for_it(
    plain: Plain, gce: GcpMetadata
) -> None:
    gce.actions["maintenance"]()
    assert (await plain.get(V1 + MAINTENANCE_EVENT))[1] == "NONE"

    gce.actions["maintenance"]()
    assert (await plain.get(V1 + MAINTENANCE_EVENT))[1] == "TERMINATE_ON_HOST_MAINTENANCE"


async def test_the_stop_state_is_there_only_while_a_stop_is_pending(
    plain: Plain, gce: GcpMetadata
) -> None:
    before = (await plain.get(V1 + STOP_STATE))[0]
    gce.actions["stop"]()
    during = (await plain.get(V1 + STOP_STATE))[:2]
    gce.actions["cancel"]()

    assert (before, during) == (404, (200, "PENDING_STOP"))
    assert (await plain.get(V1 + STOP_STATE))[0] == 404


async def test_an_upcoming_maintenance_is_json_in_either_spelling(
    plain: Plain, gce: GcpMetadata
) -> None:
    assert (await plain.get(f"{V1}{UPCOMING}?alt=json"))[:2] == (503, NOTHING_YET)
    gce.actions["upcoming"]()
    snake = json.loads((await plain.get(f"{V1}{UPCOMING}?alt=json"))[1])
    gce.actions["upcoming-camel"]()
    camel = json.loads((await plain.get(f"{V1}{UPCOMING}?alt=json"))[1])

    assert snake["window_start_time"][:13] == camel["windowStartTime"][:13]
    assert snake["can_reschedule"] == camel["canReschedule"] == "true"


async def test_alt_json_quotes_a_text(plain: Plain) -> None:
    status, body, headers = await plain.get(PATH + "?alt=json")

    assert (status, body) == (200, '"FALSE"')
    assert headers["Content-Type"].startswith("application/json")
