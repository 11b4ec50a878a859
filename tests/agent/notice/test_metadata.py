"""The client against servers that misbehave, to the byte."""

import random

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from evac.errors import ConfigError
from evacd.notice.metadata import (
    BODY_LIMIT,
    HEADER_LIMIT,
    Answer,
    Failed,
    Limits,
    MetadataClient,
    open_session,
)
from tests.agent.notice.hearing import Talk, dripping, http, raw_server, resetting, saying, silent

QUICK = Limits(connect=1.0, read=0.3, hang_slack=0.2)


async def ask(session: aiohttp.ClientSession, talk: Talk) -> Answer | Failed:
    async with raw_server(talk) as url:
        return await MetadataClient(session, url, limits=QUICK).ask("/key")


async def test_an_answer_carries_status_body_etag_and_headers(
    session: aiohttp.ClientSession,
) -> None:
    answer = await ask(session, saying(http(b"TRUE\n")))

    assert isinstance(answer, Answer)
    assert (answer.status, answer.body, answer.etag) == (200, "TRUE\n", "7")
    assert answer.headers["metadata-flavor"] == "Google"


@pytest.mark.parametrize(
    ("talk", "reason"),
    [
        pytest.param(saying(http(b"x", kind="text/html")), "HTML", id="html type"),
        pytest.param(saying(http(b"\n <!DOCTYPE html><p>")), "HTML", id="html body"),
        pytest.param(saying(http(b"<HTML>")), "HTML", id="html in capitals"),
        pytest.param(saying(http(b"x" * (BODY_LIMIT + 1))), "over 65536", id="too large"),
        pytest.param(saying(http(b"TR", length=4)), "cut short", id="truncated"),
        pytest.param(saying(http(b"\xff\xfe\x00")), "not text", id="bad encoding"),
        pytest.param(saying(b"SSH-2.0-OpenSSH_9.6\r\n"), "not HTTP", id="not http"),
        pytest.param(saying(b""), "broke", id="closed without a word"),
        pytest.param(resetting, "broke", id="reset"),
        pytest.param(silent, "within 0.3 s", id="silent"),
        pytest.param(dripping, "within 0.3 s", id="dripping"),
    ],
)
async def test_what_the_far_end_does_wrong_is_a_value(
    session: aiohttp.ClientSession, talk: Talk, reason: str
) -> None:
    failed = await ask(session, talk)

    assert isinstance(failed, Failed)
    assert reason in failed.reason
    assert failed.cure


async def test_a_body_of_just_the_limit_is_taken(session: aiohttp.ClientSession) -> None:
    answer = await ask(session, saying(http(b"x" * BODY_LIMIT)))

    assert isinstance(answer, Answer)
    assert len(answer.body) == BODY_LIMIT


async def test_an_error_page_in_html_keeps_its_status(session: aiohttp.ClientSession) -> None:
    answer = await ask(session, saying(http(b"<html>\xff", status="404 No", kind="text/html")))

    assert isinstance(answer, Answer)
    assert answer.status == 404


async def test_an_etag_that_cannot_be_sent_back_is_none(session: aiohttp.ClientSession) -> None:
    answer = await ask(session, saying(http(b"TRUE", headers="ETag: \u00e9\u20ac\r\n")))

    assert isinstance(answer, Answer)
    assert answer.etag == ""


async def test_headers_are_printable_and_short(session: aiohttp.ClientSession) -> None:
    async with raw_server(
        saying(
            b"HTTP/1.1 200 OK\r\nX-Raw: a\xff\xfeb\x1b"
            + b"x" * 5000
            + b"\r\nContent-Length: 0\r\n\r\n"
        )
    ) as url:
        answer = await MetadataClient(session, url, limits=QUICK).ask("/key")

    if isinstance(answer, Answer):
        assert answer.headers["x-raw"].startswith("a??b")
    for value in answer.headers.values() if isinstance(answer, Answer) else [answer.reason]:
        assert value.isprintable()
        assert len(value) <= HEADER_LIMIT


async def test_a_compressed_body_is_not_unpacked(session: aiohttp.ClientSession) -> None:
    failed = await ask(session, saying(http(b"\x1f\x8b\x08", headers="Content-Encoding: gzip\r\n")))

    assert isinstance(failed, Failed)


async def test_nothing_that_is_sent_raises(session: aiohttp.ClientSession) -> None:
    dice = random.Random(7)
    good = http(b"TRUE", headers="ETag: 7\r\nTransfer-Encoding: chunked\r\n")
    for _ in range(150):
        raw = bytearray(good if dice.random() < 0.5 else http(b"TRUE"))
        for _ in range(dice.randint(1, 6)):
            raw[dice.randrange(len(raw))] = dice.randrange(256)
        del raw[dice.randrange(1, len(raw) + 1) :]

        assert isinstance(await ask(session, saying(bytes(raw))), Answer | Failed)


async def test_a_refused_connection_is_a_value(session: aiohttp.ClientSession) -> None:
    async with raw_server(silent) as url:
        pass

    failed = await MetadataClient(session, url).ask("/key")

    assert isinstance(failed, Failed)
    assert failed.reason == "no connection: Connection refused"
    assert "hostNetwork" in failed.cure


async def test_a_redirect_is_not_followed(session: aiohttp.ClientSession) -> None:
    touched: list[str] = []

    async def elsewhere(request: web.Request) -> web.Response:
        touched.append(request.path)
        return web.Response(text="TRUE")

    app = web.Application()
    app.router.add_get("/elsewhere", elsewhere)
    async with TestServer(app) as server:
        to = server.make_url("/elsewhere")
        answer = await ask(
            session, saying(http(b"", status="301 Moved", headers=f"Location: {to}\r\n"))
        )

    assert isinstance(answer, Answer)
    assert answer.status == 301
    assert touched == []


@pytest.fixture
def proxied(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


async def test_the_proxy_environment_is_never_used(proxied: pytest.MonkeyPatch) -> None:
    touched: list[str] = []

    async def trap(*_: object) -> None:
        touched.append("a request")

    async with raw_server(trap) as proxy, raw_server(saying(http(b"TRUE"))) as url:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
            proxied.setenv(name, proxy)
        async with open_session() as session:
            answer = await MetadataClient(session, url).ask("/key")

    assert isinstance(answer, Answer)
    assert answer.body == "TRUE"
    assert touched == []


async def test_a_session_that_trusts_the_environment_is_refused() -> None:
    async with aiohttp.ClientSession(trust_env=True) as session:
        with pytest.raises(ValueError, match="proxy environment"):
            MetadataClient(session, "http://127.0.0.1")


async def test_a_check_turns_an_answer_down(session: aiohttp.ClientSession) -> None:
    async with raw_server(saying(http(b"TRUE"))) as url:
        client = MetadataClient(session, url)

        assert await client.ask("/key", check=lambda _: Failed("foreign")) == Failed("foreign")


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254",
        "http://169.254.169.254/",
        "http://[fd00:ec2::254]:80",
        "http://localhost:8080",
        "http://127.0.0.1:1",
    ],
)
async def test_an_address_is_taken(session: aiohttp.ClientSession, url: str) -> None:
    assert MetadataClient(session, url).url == url.rstrip("/")


@pytest.mark.parametrize(
    "url",
    [
        "http://metadata.google.internal",
        "https://169.254.169.254",
        "169.254.169.254",
        "http://",
        "http://169.254.169.254:99999",
        "http://169.254.169.254/computeMetadata",
        "http://169.254.169.254?x=1",
        "http://user@169.254.169.254",
        "http://[169.254.169.254",
        "",
    ],
)
async def test_anything_but_an_address_is_a_config_error(
    session: aiohttp.ClientSession, url: str
) -> None:
    with pytest.raises(ConfigError, match=r"evac\.toml:3: url: expected http://ADDRESS"):
        MetadataClient(session, url, where="evac.toml:3")
