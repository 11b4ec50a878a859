"""The simulator against EC2's documented protocol, asked by a plain HTTP client."""

import json
from collections.abc import AsyncIterator, Mapping

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from multidict import CIMultiDict

from evacd.notice.simulate.aws import KEYS, AwsMetadata
from evacd.notice.simulate.cloud import CONTROL, offer
from evacd.notice.simulate.faults import Faults
from tests.agent.notice.aws.scene import Clocks

TTL = "X-aws-ec2-metadata-token-ttl-seconds"
TOKEN = "X-aws-ec2-metadata-token"
DATA = "/latest/meta-data/"
SCHEDULED = "events/maintenance/scheduled"


class Plain:
    """A plain client: status, body and headers of one request."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url
        self.token = ""

    async def ask(
        self, method: str, path: str, headers: Mapping[str, str] | None = None
    ) -> tuple[int, str, Mapping[str, str]]:
        async with self.session.request(method, self.url + path, headers=headers) as response:
            return response.status, await response.text(), response.headers

    async def put(
        self, headers: Mapping[str, str], path: str = "/latest/api/token"
    ) -> tuple[int, str]:
        status, body, _ = await self.ask("PUT", path, headers)
        return status, body

    async def get(self, key: str) -> tuple[int, str]:
        """By a good token, or the one that is set."""
        if not self.token:
            _, self.token = await self.put({TTL: "60"})
        status, body, _ = await self.ask("GET", DATA + key, {TOKEN: self.token})
        return status, body


@pytest.fixture
def clock() -> Clocks:
    return Clocks()


@pytest.fixture
def ec2(clock: Clocks) -> AwsMetadata:
    return AwsMetadata(clock=clock)


@pytest.fixture
async def plain(session: aiohttp.ClientSession, ec2: AwsMetadata) -> AsyncIterator[Plain]:
    async with TestServer(ec2.app) as server:
        yield Plain(session, str(server.make_url("")).rstrip("/"))


# --- tokens -----------------------------------------------------------------------------


async def test_a_put_gives_a_token_as_text_and_says_how_long_it_lives(plain: Plain) -> None:
    status, token, headers = await plain.ask("PUT", "/latest/api/token", {TTL: "60"})

    assert status == 200
    assert len(token) == 57
    assert headers["Content-Type"].startswith("text/plain")
    assert headers[TTL] == "60"
    assert (await plain.ask("GET", DATA + "ami-id", {TOKEN: token}))[:2] == (200, KEYS["ami-id"])


@pytest.mark.parametrize("ttl", ["0", "21601", "-1", "1.5", "", "long", "9" * 50])
async def test_a_put_with_a_wrong_time_to_live_is_malformed(plain: Plain, ttl: str) -> None:
    assert (await plain.put({TTL: ttl}))[0] == 400


async def test_a_put_without_a_time_to_live_is_malformed(plain: Plain) -> None:
    assert (await plain.put({}))[0] == 400


async def test_a_forwarded_put_is_forbidden(plain: Plain, ec2: AwsMetadata) -> None:
    assert (await plain.put({TTL: "60", "X-Forwarded-For": "10.0.0.1"}))[0] == 403
    assert ec2.wrongs == ["PUT /latest/api/token with x-forwarded-for"]


async def test_a_put_to_a_version_is_forbidden(plain: Plain) -> None:
    assert (await plain.put({TTL: "60"}, "/2021-07-15/api/token"))[0] == 403


async def test_without_a_token_or_with_a_foreign_one_it_is_unauthorized(plain: Plain) -> None:
    assert (await plain.ask("GET", DATA + "ami-id"))[0] == 401
    assert (await plain.ask("GET", DATA + "ami-id", {TOKEN: "AQAEA=="}))[0] == 401


async def test_a_token_lives_as_long_as_was_asked_for(plain: Plain, clock: Clocks) -> None:
    assert (await plain.get("ami-id"))[0] == 200
    clock.now += 59.9
    assert (await plain.get("ami-id"))[0] == 200
    clock.now += 0.1

    assert (await plain.get("ami-id"))[0] == 401


async def test_where_tokens_are_optional_a_bad_one_is_still_unauthorized(
    plain: Plain, ec2: AwsMetadata
) -> None:
    ec2.tokens_required = False

    assert (await plain.ask("GET", DATA + "ami-id"))[0] == 200
    assert (await plain.ask("GET", DATA + "ami-id", {TOKEN: "AQAEA=="}))[0] == 401


async def test_two_tokens_are_noted_and_the_first_one_counts(
    plain: Plain, ec2: AwsMetadata
) -> None:
    _, good = await plain.put({TTL: "60"})
    headers = CIMultiDict([(TOKEN, "stale"), (TOKEN, good)])
    async with plain.session.get(plain.url + DATA + "ami-id", headers=headers) as response:
        assert response.status == 401

    assert ec2.wrongs == ["GET /latest/meta-data/ami-id with two tokens"]
    assert ec2.requests[-1].all(TOKEN) == ["stale", good]


# --- keys -------------------------------------------------------------------------------


@pytest.mark.parametrize("key", KEYS)
async def test_every_key_answers_as_text(plain: Plain, key: str) -> None:
    assert await plain.get(key) == (200, KEYS[key])
    _, _, headers = await plain.ask("GET", DATA + key, {TOKEN: plain.token})
    assert headers["Content-Type"].startswith("text/plain")
    assert headers["Date"] == "Sun, 01 Mar 2026 12:00:00 GMT"


@pytest.mark.parametrize(
    "key",
    [
        "spot/instance-action",
        "spot/termination-time",
        "events/recommendations/rebalance",
        "spot",
        "ami-id/x",
        "nothing",
    ],
)
async def test_what_is_absent_is_not_found(plain: Plain, key: str) -> None:
    assert (await plain.get(key))[0] == 404


async def test_paths_are_listed(plain: Plain) -> None:
    assert await plain.get("placement/") == (200, "availability-zone\nregion")
    assert (await plain.get(""))[1].split("\n")[:3] == ["ami-id", "autoscaling/", "events/"]
    assert (await plain.ask("GET", "/latest/", {TOKEN: plain.token}))[1] == "dynamic\nmeta-data"
    assert (await plain.ask("GET", "/", {TOKEN: plain.token}))[1] == "2021-07-15\nlatest"


async def test_a_dated_version_answers_as_the_latest(plain: Plain) -> None:
    await plain.get("ami-id")
    answer = await plain.ask("GET", "/2021-07-15/meta-data/ami-id", {TOKEN: plain.token})
    assert answer[:2] == (200, KEYS["ami-id"])

    assert (await plain.ask("GET", "/newest/meta-data/ami-id", {TOKEN: plain.token}))[0] == 404


async def test_the_identity_document_agrees_with_the_keys(plain: Plain) -> None:
    await plain.get("ami-id")
    path = "/latest/dynamic/instance-identity/document"
    status, body, _ = await plain.ask("GET", path, {TOKEN: plain.token})

    assert status == 200
    assert json.loads(body)["instanceId"] == KEYS["instance-id"]


# --- what it announces ------------------------------------------------------------------


async def test_a_termination_is_announced_two_minutes_ahead_by_both_keys(
    plain: Plain, ec2: AwsMetadata
) -> None:
    ec2.preempt()

    assert json.loads((await plain.get("spot/instance-action"))[1]) == {
        "action": "terminate",
        "time": "2026-03-01T12:02:00Z",
    }
    assert await plain.get("spot/termination-time") == (200, "2026-03-01T12:02:00Z")


@pytest.mark.parametrize(
    ("action", "time"), [("stop", "2026-03-01T12:02:00Z"), ("hibernate", "2026-03-01T12:00:00Z")]
)
async def test_stop_and_hibernate_are_not_in_the_legacy_key(
    plain: Plain, ec2: AwsMetadata, action: str, time: str
) -> None:
    ec2.preempt()
    ec2.actions[action]()

    assert json.loads((await plain.get("spot/instance-action"))[1]) == {
        "action": action,
        "time": time,
    }
    assert (await plain.get("spot/termination-time"))[0] == 404


async def test_events_stay_listed_when_they_are_over(plain: Plain, ec2: AwsMetadata) -> None:
    ec2.actions["maintenance"]()
    ec2.actions["retire"]()
    first, second = json.loads((await plain.get(SCHEDULED))[1])
    assert first["NotBefore"] == "1 Mar 2026 13:00:00 GMT"
    assert "NotAfter" not in second
    assert first["EventId"] != second["EventId"]
    ec2.actions["cancel"]()
    first, second = json.loads((await plain.get(SCHEDULED))[1])

    assert (first["State"], second["State"]) == ("canceled", "canceled")
    assert first["Description"] == "[Canceled] evac simulator: system-reboot"
    assert await plain.get("events/maintenance/history") == await plain.get(SCHEDULED)


@pytest.mark.parametrize("action", AwsMetadata().actions)
async def test_every_action_can_be_done_and_cleared(
    plain: Plain, ec2: AwsMetadata, action: str
) -> None:
    calm = {key: await plain.get(key) for key in (*KEYS, "spot/instance-action")}
    ec2.actions[action]()
    ec2.actions["clear"]()
    plain.token = ""

    assert {key: await plain.get(key) for key in calm} == calm


async def test_a_moving_time_is_two_minutes_from_whenever_it_is_read(
    plain: Plain, ec2: AwsMetadata, clock: Clocks
) -> None:
    ec2.actions["preempt-moving"]()
    clock.now += 7.0

    assert "2026-03-01T12:02:07Z" in (await plain.get("spot/instance-action"))[1]
    ec2.clear()
    assert (await plain.get("spot/instance-action"))[0] == 404


async def test_the_switch_is_beside_the_service(
    session: aiohttp.ClientSession, ec2: AwsMetadata
) -> None:
    offer(ec2, Faults(), act=lambda action: ec2.actions[action](), name="aws")
    async with TestServer(ec2.app) as server:
        plain = Plain(session, str(server.make_url("")).rstrip("/"))
        status, body, _ = await plain.ask("GET", CONTROL)
        assert (status, json.loads(body)["cloud"]) == (200, "aws")
        assert (await plain.ask("POST", f"{CONTROL}/stop"))[0] == 200

        assert '"stop"' in (await plain.get("spot/instance-action"))[1]
        assert all(CONTROL not in asked.target for asked in ec2.requests)


async def test_a_fault_answers_in_place_of_the_service(plain: Plain, ec2: AwsMetadata) -> None:
    async def fault(request: web.Request) -> web.StreamResponse | None:
        return web.Response(status=418) if request.path.endswith("ami-id") else None

    ec2.fault = fault

    assert (await plain.get("ami-id"))[0] == 418
    assert (await plain.get("instance-id"))[0] == 200
    assert [each.target for each in ec2.requests][1:] == [DATA + "ami-id", DATA + "instance-id"]
