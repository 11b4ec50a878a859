"""The token holder against the simulated service, and against servers that are not EC2."""

import asyncio
import socket

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from evac.errors import ConfigError
from evacd.notice.aws import URL_IPV6, Imds, aws_client
from evacd.notice.aws.token import DECIDED_SECONDS, EARLY_AGAIN_SECONDS, HOP_LIMIT
from evacd.notice.metadata import Answer, Failed
from evacd.notice.simulate.faults import parse
from tests.agent.notice.aws.scene import PATIENT, QUICK, TOKEN, Clocks, Scene
from tests.agent.notice.hearing import LIMIT, http, raw_server, saying

KEY = "instance-id"
GET = f"GET {KEY}"


async def good(imds: Imds) -> str:
    answer = await imds.get(KEY)
    assert isinstance(answer, Answer), answer
    return answer.body


async def failed(imds: Imds) -> Failed:
    answer = await imds.get(KEY)
    assert isinstance(answer, Failed), answer
    return answer


# --- one token --------------------------------------------------------------------------


async def test_one_token_serves_many_keys(scene: Scene) -> None:
    imds = scene.imds()
    answers = [await imds.get(key) for key in ("instance-id", "ami-id", "no-such-key")]

    assert [isinstance(a, Answer) and a.status for a in answers] == [200, 200, 404]
    put, *gets = list(scene.ec2.requests)
    assert put.all("X-aws-ec2-metadata-token-ttl-seconds") == ["21600"]
    assert [len(get.all("X-aws-ec2-metadata-token")) for get in gets] == [1, 1, 1]
    assert scene.asked() == [TOKEN, GET, "GET ami-id", "GET no-such-key"]


async def test_keys_asked_for_at_once_get_one_token(scene: Scene) -> None:
    imds = scene.imds()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(4):
            tasks.create_task(good(imds))

    assert scene.asked() == [TOKEN, GET, GET, GET, GET]


async def test_a_token_is_replaced_at_half_its_life(scene: Scene) -> None:
    imds = scene.imds(ttl_seconds=100)
    await good(imds)
    scene.pass_time(49.9)
    await good(imds)
    assert scene.asked() == [TOKEN, GET, GET]
    scene.pass_time(0.1)
    await good(imds)

    assert scene.asked() == [TOKEN, GET]


async def test_a_shorter_life_than_asked_for_is_heeded(scene: Scene) -> None:
    async def short(request: web.Request) -> web.StreamResponse | None:
        if request.method == "GET":
            return None
        header = {"X-aws-ec2-metadata-token-ttl-seconds": "2"}
        return web.Response(text="short", headers=header)

    scene.ec2.fault, scene.ec2.tokens_required = short, False
    imds = scene.imds()
    await imds.get(KEY)
    scene.asked()
    scene.pass_time(1.0)
    await imds.get(KEY)

    assert scene.asked()[0] == TOKEN


async def test_with_a_life_of_one_second_no_question_goes_unanswered(scene: Scene) -> None:
    imds = scene.imds(ttl_seconds=1)
    for _ in range(20):
        await good(imds)
        scene.pass_time(0.3)

    asked = scene.asked()
    # One in two of 0.3 s: never on a 401, for then there were more questions than answers.
    assert asked.count(GET) == 20
    assert asked.count(TOKEN) == 10


async def test_after_a_401_the_token_is_replaced_and_the_key_asked_for_once_more(
    scene: Scene,
) -> None:
    imds = scene.imds()
    await good(imds)
    scene.asked()
    scene.ec2.expire_tokens()

    assert await good(imds) == "i-0e7acded51301a7ed"
    assert scene.asked() == [GET, TOKEN, GET]


async def test_401_for_ever_is_one_retry_each_time_and_never_an_end(scene: Scene) -> None:
    scene.faults.add(parse("status=401@instance-id"))
    imds = scene.imds()
    first = await failed(imds)
    assert scene.asked() == [TOKEN, GET, TOKEN, GET]
    second = await failed(imds)

    assert scene.asked() == [GET, TOKEN, GET]
    assert first == second
    assert first.reason == "HTTP 401"
    assert "tokens are not accepted" in first.cure


async def test_sources_that_meet_a_401_together_replace_the_token_once(scene: Scene) -> None:
    imds = scene.imds()
    await good(imds)
    scene.ec2.expire_tokens()
    scene.asked()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(4):
            tasks.create_task(good(imds))

    assert scene.asked().count(TOKEN) == 1


async def test_while_no_new_token_can_be_had_the_old_one_serves_to_its_end(scene: Scene) -> None:
    imds = scene.imds(ttl_seconds=100)
    await good(imds)
    scene.asked()
    scene.faults.add(parse("status=503@api/token"))
    scene.pass_time(60.0)
    await good(imds)
    await good(imds)
    assert scene.asked() == [TOKEN, GET, GET]
    scene.pass_time(EARLY_AGAIN_SECONDS)
    await good(imds)
    assert scene.asked() == [TOKEN, GET]
    scene.pass_time(40.0)

    assert (await failed(imds)).reason == "no token: HTTP 503"
    scene.faults.clear()
    assert await good(imds)


async def test_while_one_waits_for_a_new_token_the_others_use_the_old_one(scene: Scene) -> None:
    imds = scene.imds(ttl_seconds=100)
    await good(imds)
    scene.pass_time(60.0)
    asked, answer = asyncio.Event(), asyncio.Event()

    async def held_back(request: web.Request) -> web.StreamResponse | None:
        if request.method == "PUT":
            asked.set()
            await answer.wait()
        return None

    scene.ec2.fault = held_back
    async with asyncio.timeout(LIMIT), asyncio.TaskGroup() as tasks:
        renewing = tasks.create_task(good(imds))
        await asked.wait()
        assert await good(imds)
        assert not renewing.done()
        answer.set()


async def test_an_old_token_that_was_kept_and_then_refused_is_not_sent_again(
    scene: Scene,
) -> None:
    imds = scene.imds(ttl_seconds=100)
    await good(imds)
    scene.faults.add(parse("status=503@api/token,first=1"))
    scene.pass_time(60.0)
    await good(imds)
    scene.ec2.expire_tokens()
    scene.asked()

    assert await good(imds)
    assert scene.asked() == [GET, TOKEN, GET]


async def test_a_failed_token_is_asked_for_once_by_all_who_wait(scene: Scene) -> None:
    scene.faults.add(parse("status=503@api/token"))
    imds = scene.imds()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(4):
            tasks.create_task(failed(imds))

    assert scene.asked() == [TOKEN]


# --- no token ---------------------------------------------------------------------------


async def test_a_put_in_a_black_hole_with_get_alive_is_the_hop_limit(scene: Scene) -> None:
    scene.faults.add(parse("never@api/token"))
    imds = scene.imds(limits=QUICK)

    assert await failed(imds) == Failed(
        "no token: the PUT times out while a GET is answered", HOP_LIMIT
    )
    assert "hostNetwork" in HOP_LIMIT
    # The one GET is to learn that it is answered, never for what it says.
    assert scene.asked() == [TOKEN, "GET "]


async def test_the_hop_limit_is_found_out_once_and_believed_for_a_while(scene: Scene) -> None:
    scene.faults.add(parse("never@api/token"))
    imds = scene.imds(limits=QUICK)
    first = await failed(imds)
    scene.asked()
    scene.pass_time(DECIDED_SECONDS - 1.0)
    assert await failed(imds) == first
    assert scene.asked() == []
    scene.faults.clear()
    scene.pass_time(1.0)

    assert await good(imds)


async def test_a_put_that_hangs_once_after_tokens_were_had_is_asked_for_again_at_once(
    scene: Scene,
) -> None:
    imds = scene.imds(limits=QUICK)
    await good(imds)
    scene.ec2.expire_tokens()
    scene.faults.add(parse("never@api/token,first=1"))

    assert (await failed(imds)).cure == HOP_LIMIT
    assert await good(imds)


async def test_optional_tokens_are_no_reason_to_ask_without_one(scene: Scene) -> None:
    scene.ec2.tokens_required = False
    scene.faults.add(parse("never@api/token"))

    assert (await failed(scene.imds(limits=QUICK))).cure == HOP_LIMIT
    assert GET not in scene.asked()


async def test_a_service_that_says_nothing_at_all_is_not_the_hop_limit(scene: Scene) -> None:
    scene.faults.add(parse("never"))
    wrong = await failed(scene.imds(limits=QUICK))

    assert wrong.reason == "no answer within 0.3 s"
    assert wrong.cure != HOP_LIMIT


async def test_403_says_that_imds_is_off_or_a_proxy_in_the_way(scene: Scene) -> None:
    scene.faults.add(parse("status=403@api/token"))

    assert await failed(scene.imds()) == Failed(
        "no token: HTTP 403",
        "switch IMDS on (aws ec2 modify-instance-metadata-options --http-endpoint enabled), "
        "or take away the proxy that adds X-Forwarded-For",
    )


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "no token"),
        (b" \n", "no token"),
        (b"two words", "no token"),
        (b"caf\xc3\xa9", "no token"),
        (b"a\nb: c", "no token"),
        (b"x" * 1025, "no token"),
        (b"<html>log in</html>", "HTML"),
        (b"\xff\xfe", "not text"),
    ],
)
async def test_what_is_no_token_is_never_sent(
    session: aiohttp.ClientSession, body: bytes, reason: str
) -> None:
    async with raw_server(saying(http(body))) as url:
        answer = await Imds(aws_client(session, url, limits=PATIENT), Clocks()).get(KEY)

    assert isinstance(answer, Failed)
    assert reason in answer.reason


async def test_a_refused_connection_is_a_value(session: aiohttp.ClientSession) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        answer = await Imds(aws_client(session, url), Clocks()).get(KEY)

    assert isinstance(answer, Failed)
    assert answer.reason == "no connection: Connection refused"


@pytest.mark.parametrize("seconds", [0, -1, 21_601])
def test_a_life_that_ec2_would_refuse_is_refused(scene: Scene, seconds: int) -> None:
    with pytest.raises(ValueError, match="21600"):
        scene.imds(ttl_seconds=seconds)


# --- the address ------------------------------------------------------------------------


async def test_the_ipv6_address_is_taken(session: aiohttp.ClientSession) -> None:
    assert aws_client(session, URL_IPV6).url == "http://[fd00:ec2::254]"


@pytest.mark.parametrize("url", ["http://instance-data", "https://169.254.169.254", "[fd00::1]"])
async def test_a_name_is_refused(session: aiohttp.ClientSession, url: str) -> None:
    with pytest.raises(ConfigError, match=r"notice\.url"):
        aws_client(session, url, where="notice.url")


async def test_it_is_heard_over_ipv6(session: aiohttp.ClientSession, scene: Scene) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    async with TestServer(scene.ec2.app, host="::1") as server:
        imds = Imds(aws_client(session, f"http://[::1]:{server.port}"), scene.clock)
        assert await good(imds) == "i-0e7acded51301a7ed"


async def test_the_proxy_environment_is_never_used(
    monkeypatch: pytest.MonkeyPatch, scene: Scene
) -> None:
    touched: list[str] = []

    async def trap(*_: object) -> None:
        touched.append("a request")

    async with raw_server(trap) as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)

        assert await good(scene.imds())

    assert touched == []
