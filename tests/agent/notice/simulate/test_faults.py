"""Each fault as a plain client meets it; the one-line language; when a fault applies."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Mapping

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given
from hypothesis import strategies as st

from evacd.notice.metadata import BODY_LIMIT
from evacd.notice.simulate.faults import KINDS, Fault, Faults, parse
from tests.agent.notice.hearing import MovedClock

Client = TestClient[web.Request, web.Application]
ECHO = {"Metadata-Flavor": "Google"}


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


@pytest.fixture
def faults(clock: MovedClock) -> Faults:
    return Faults(echo=ECHO, clock=clock)


@pytest.fixture
async def client(faults: Faults) -> AsyncIterator[Client]:
    """A service that truly says "true", behind the faults."""

    async def answer(request: web.Request) -> web.StreamResponse:
        wrong = await faults(request)
        return wrong or web.Response(text="true", headers={**ECHO, "ETag": "7"})

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    faults.attach(app)
    async with TestClient(TestServer(app)) as client:
        yield client


async def get(client: Client, path: str = "/a/key") -> tuple[int, bytes, Mapping[str, str]]:
    async with client.get(path, allow_redirects=False) as response:
        return response.status, await response.read(), response.headers


# --- what each does ---------------------------------------------------------------------


@pytest.mark.parametrize("status", [403, 404, 410, 429, 500, 503])
async def test_a_status_comes_with_the_services_own_headers(
    client: Client, faults: Faults, status: int
) -> None:
    faults.add(Fault("status", status))
    answered, _, headers = await get(client)

    assert answered == status
    assert headers["Metadata-Flavor"] == "Google"


async def test_a_page_is_not_the_services(client: Client, faults: Faults) -> None:
    faults.add(Fault("html"))
    status, body, headers = await get(client)

    assert (status, body[:9]) == (200, b"<!DOCTYPE")
    assert "Metadata-Flavor" not in headers


async def test_a_redirect_leads_away(client: Client, faults: Faults) -> None:
    faults.add(Fault("redirect"))
    status, _, headers = await get(client)

    assert (status, headers["Location"]) == (302, "http://192.0.2.1/login")


@pytest.mark.parametrize("kind", ["empty", "malformed", "garbage", "too-large"])
async def test_a_body_that_is_wrong_comes_as_a_good_answer(
    client: Client, faults: Faults, kind: str
) -> None:
    faults.add(Fault(kind))
    status, body, headers = await get(client)

    assert (status, headers["Metadata-Flavor"]) == (200, "Google")
    assert (body == b"", len(body) > BODY_LIMIT) == (kind == "empty", kind == "too-large")


async def test_truncated_ends_before_its_length(client: Client, faults: Faults) -> None:
    faults.add(Fault("truncated"))

    with pytest.raises(aiohttp.ClientPayloadError):
        await get(client)


async def test_reset_ends_before_the_answer(client: Client, faults: Faults) -> None:
    faults.add(Fault("reset"))

    with pytest.raises((aiohttp.ClientOSError, aiohttp.ServerDisconnectedError)):
        await get(client)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("never", "/a/key"),
        ("drip", "/a/key"),
        ("slow=600", "/a/key"),
        ("hang-never", "/a/key?wait_for_change=true"),
        ("hang-503=600", "/a/key?wait_for_change=true"),
    ],
)
async def test_an_answer_that_is_held_back_does_not_come(
    client: Client, faults: Faults, text: str, path: str
) -> None:
    faults.add(parse(text))

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await get(client, path)


async def test_slow_is_the_true_answer(client: Client, faults: Faults) -> None:
    faults.add(Fault("slow", 0.001))

    assert (await get(client))[:2] == (200, b"true")


@pytest.mark.parametrize(("kind", "name"), [("no-flavor", "Metadata-Flavor"), ("no-etag", "ETag")])
async def test_a_header_that_is_missing_is_all_that_is_wrong(
    client: Client, faults: Faults, kind: str, name: str
) -> None:
    faults.add(Fault(kind, first=1))
    status, body, headers = await get(client)

    assert (status, body, name in headers) == (200, b"true", False)
    assert name in (await get(client))[2]


async def test_hang_503_leaves_plain_reads_alone(client: Client, faults: Faults) -> None:
    faults.add(parse("hang-503"))

    assert (await get(client))[0] == 200
    assert (await get(client, "/a/key?wait_for_change=true"))[0] == 503


async def test_rate_answers_429_to_what_is_too_much_in_a_second(
    client: Client, faults: Faults, clock: MovedClock
) -> None:
    faults.add(parse("rate=5"))
    answered = [(await get(client))[0] for _ in range(7)]
    clock.now += 1.5

    assert answered == [200] * 5 + [429] * 2
    assert (await get(client))[0] == 200


# --- when it does -----------------------------------------------------------------------


async def test_first_is_for_so_many_matching_requests(client: Client, faults: Faults) -> None:
    faults.add(parse("status=500@key,first=2"))
    paths = ["/a/key", "/a/other", "/a/key", "/a/key"]

    assert [(await get(client, path))[0] for path in paths] == [500, 200, 500, 200]


async def test_after_and_for_count_from_when_it_was_set(
    client: Client, faults: Faults, clock: MovedClock
) -> None:
    faults.add(parse("status=500,after=5,for=2"))
    answered = []
    for _ in range(8):
        answered.append((await get(client))[0])
        clock.now += 1.0

    assert answered == [200] * 5 + [500] * 2 + [200]


async def test_chance_is_thrown_for_each_request(client: Client, faults: Faults) -> None:
    throws = iter([0.1, 0.9, 0.2])
    faults = Faults([parse("status=500,chance=0.5")], chance=lambda: next(throws))

    async def answer(request: web.Request) -> web.StreamResponse:
        return await faults(request) or web.Response()

    app = web.Application()
    app.router.add_get("/", answer)
    async with TestClient(TestServer(app)) as other:
        assert [(await get(other, "/"))[0] for _ in range(3)] == [500, 200, 500]


async def test_the_first_that_answers_decides_and_slow_lets_the_next_have_its_turn(
    client: Client, faults: Faults
) -> None:
    for text in ("slow=0.001", "status=500@x", "status=410", "status=403"):
        faults.add(parse(text))

    assert (await get(client))[0] == 410
    faults.clear()
    assert (await get(client))[0] == 200


@pytest.mark.parametrize(
    ("path", "matches"),
    [
        ("*", True),
        ("preempted", True),
        ("instance/preempted", True),
        ("/computeMetadata/v1/instance/*", True),
        ("instance/*", True),
        ("empted", False),
        ("instance", False),
    ],
)
def test_a_path_is_the_whole_or_its_end(path: str, matches: bool) -> None:
    fault = Fault("empty", path=path)

    assert fault.matches("/computeMetadata/v1/instance/preempted") is matches


# --- how it is said ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("html", Fault("html")),
        ("status=503", Fault("status", 503)),
        ("status:503", Fault("status", 503)),
        ("hang-503", Fault("hang-503", 0)),
        ("never@latest/api/token", Fault("never", path="latest/api/token")),
        (
            "slow=10@*/token,first=3,after=5,for=60,chance=0.5",
            Fault("slow", 10, "*/token", first=3, after=5, lasting=60, chance=0.5),
        ),
    ],
)
def test_a_fault_is_said_in_one_line(text: str, fault: Fault) -> None:
    assert parse(text) == fault


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "a kind of fault"),
        ("flood", "a kind of fault"),
        ("status", "status=NUMBER"),
        ("slow", "slow=NUMBER"),
        ("status=999", "a status from 200 to 599"),
        ("status=404.5", "a status from 200 to 599"),
        ("status=many", "a number"),
        ("slow=nan", "a number"),
        ("slow=-1", "a number"),
        ("rate=0", "at least 1 request"),
        ("html=1", "no argument"),
        ("html,often", "KIND"),
        ("html,first=1,first=2", "KIND"),
        ("html,first=1.5", "a whole number"),
        ("html,chance=2", "a number from 0 to 1"),
    ],
)
def test_what_is_not_understood_says_what_was_expected(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=re.escape(expected)):
        parse(text)


@given(
    st.text()
    | st.lists(
        st.sampled_from([*KINDS, "=", "1", "@", ",", "first=", "after=", "x", "nan", "-"])
    ).map("".join)
)
def test_no_line_raises_anything_else(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert parse(text).kind in KINDS
