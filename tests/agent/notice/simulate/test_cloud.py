"""The switch beside a simulated cloud: what it lists, does and refuses."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from evacd.notice.simulate.cloud import BANNER, offer
from evacd.notice.simulate.faults import Faults
from evacd.notice.simulate.gcp import PREEMPTED, ROOT, GcpMetadata

KEY = ROOT + PREEMPTED
FLAVOR = {"Metadata-Flavor": "Google"}


@pytest.fixture
def done(gce: GcpMetadata) -> list[str]:
    """The actions done, in order."""
    done: list[str] = []

    def act(action: str) -> None:
        done.append(action)
        gce.actions[action]()

    offer(gce, Faults(echo=gce.echo), act=act, name="gcp")
    return done


@pytest.fixture
async def client(
    gce: GcpMetadata, done: list[str]
) -> AsyncIterator[TestClient[web.Request, web.Application]]:
    async with TestClient(TestServer(gce.app)) as client:
        yield client


Client = TestClient[web.Request, web.Application]


async def value(client: Client) -> tuple[int, str]:
    async with client.get(KEY, headers=FLAVOR) as response:
        return response.status, await response.text()


async def test_actions_are_done_by_post(client: Client, done: list[str]) -> None:
    assert (await client.post("/evac-simulator/preempt")).status == 200
    assert await value(client) == (200, "TRUE")
    assert (await client.post("/evac-simulator/clear")).status == 200
    assert await value(client) == (200, "FALSE")
    assert done == ["preempt", "clear"]


async def test_an_unknown_action_does_nothing_and_says_which_there_are(
    client: Client, done: list[str]
) -> None:
    response = await client.post("/evac-simulator/explode")

    assert response.status == 404
    assert "preempt" in (await response.json())["error"]
    assert done == []


async def test_it_says_what_it_is_and_what_it_can_do(client: Client, gce: GcpMetadata) -> None:
    told = await (await client.get("/evac-simulator")).json()

    assert (told["what"], told["cloud"]) == (BANNER, "gcp")
    assert told["actions"] == sorted(gce.actions)
    assert "status" in told["kinds_of_faults"]


async def test_every_answer_is_marked_faults_and_errors_too(client: Client) -> None:
    await client.post("/evac-simulator/faults", data="html,first=1")
    for path in (KEY, KEY, ROOT + "nowhere", "/evac-simulator"):
        async with client.get(path, headers=FLAVOR) as response:
            assert response.headers["Evac-Simulator"] == "yes"


async def test_faults_are_replaced_as_a_whole(client: Client) -> None:
    await client.post("/evac-simulator/faults", data="status=500\n\nstatus=429@nowhere\n")
    assert (await value(client))[0] == 500
    await client.post("/evac-simulator/faults", data="status=410")
    assert (await value(client))[0] == 410
    await client.post("/evac-simulator/faults", data="")
    assert (await value(client))[0] == 200


async def test_a_wrong_fault_leaves_those_in_force(client: Client) -> None:
    await client.post("/evac-simulator/faults", data="status=500")
    response = await client.post("/evac-simulator/faults", data="status=410\nflood")

    assert response.status == 400
    assert "not 'flood'" in (await response.json())["error"]
    assert (await value(client))[0] == 500


async def test_it_refuses_whoever_is_not_on_loopback(
    gce: GcpMetadata, done: list[str], tmp_path: Path
) -> None:
    # A Unix socket's peer has no address, so it cannot be shown to be on loopback.
    path = str(tmp_path / "simulator.sock")
    runner = web.AppRunner(gce.app)
    await runner.setup()
    await web.UnixSite(runner, path).start()
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(path)) as session:
        for method, tail in (("GET", ""), ("POST", "/preempt"), ("POST", "/faults")):
            url = f"http://far/evac-simulator{tail}"
            async with session.request(method, url) as response:
                assert response.status == 403
    await runner.cleanup()
    assert done == []
