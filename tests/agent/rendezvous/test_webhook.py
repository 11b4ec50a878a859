"""The webhook, against real servers on loopback, good and bad."""

import asyncio
import hashlib
import hmac
import json
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from evac.errors import ConfigError
from evac.generation import Generation
from evacd.clock import SystemClock
from evacd.rendezvous import Announcer, Departure, Word
from evacd.rendezvous.webhook import WebhookAnnouncer, idempotency_key

DEPARTURE = Departure(
    word=Word.LEAVING,
    node="gpu-7",
    boot="b1",
    order="ab12-1",
    seconds_left=29.8,
    job="alice/gpt",
    generation=Generation(incarnation=2, step=1200),
    store="file:///mnt/ckpt",
    sequence=7,
)
# No test here meets this limit unless it brings a shorter one.
PLENTY = 60.0


@dataclass
class Receiver:
    """Answers what it is told to, and keeps what it got; the last answer goes on for ever."""

    answers: list[int] = field(default_factory=lambda: [200])
    text: str = ""
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    elsewhere: int = 0

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/hook/t0ken", self._hook)
        app.router.add_route("*", "/elsewhere", self._elsewhere)
        return app

    async def _hook(self, request: web.Request) -> web.Response:
        self.got.append((dict(request.headers), await request.read()))
        status = self.answers[min(len(self.got), len(self.answers)) - 1]
        headers = {"Location": "/elsewhere"} if 300 <= status < 400 else {}
        return web.Response(status=status, text=self.text, headers=headers)

    async def _elsewhere(self, request: web.Request) -> web.Response:
        self.elsewhere += 1
        return web.Response()


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@pytest.fixture
async def url(receiver: Receiver) -> AsyncIterator[str]:
    async with TestServer(receiver.app()) as server:
        yield str(server.make_url("/hook/t0ken"))


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def webhook(
    url: str,
    session: aiohttp.ClientSession,
    *,
    timeout_seconds: float = PLENTY,
    secret: bytes | None = None,
) -> WebhookAnnouncer:
    return WebhookAnnouncer(
        url, session, timeout_seconds=timeout_seconds, clock=SystemClock(), secret=secret
    )


async def test_it_posts_the_departure_as_json(
    url: str, session: aiohttp.ClientSession, receiver: Receiver
) -> None:
    announcer: Announcer = webhook(url, session)

    assert await announcer.announce(DEPARTURE) is None
    ((headers, body),) = receiver.got
    assert json.loads(body) == {
        "schema": 1,
        "sequence": 7,
        "word": "leaving",
        "node": "gpu-7",
        "boot": "b1",
        "order": "ab12-1",
        "seconds_left": 29.8,
        "job": "alice/gpt",
        "generation": {"incarnation": 2, "step": 1200},
        "store": "file:///mnt/ckpt",
        "reason": "",
    }
    assert headers["Content-Type"] == "application/json"
    assert "Evac-Signature" not in headers


async def test_without_a_generation_it_is_null(
    url: str, session: aiohttp.ClientSession, receiver: Receiver
) -> None:
    await webhook(url, session).announce(replace(DEPARTURE, generation=None))

    assert json.loads(receiver.got[0][1])["generation"] is None


async def test_the_signature_is_the_hmac_of_the_very_bytes(
    url: str, session: aiohttp.ClientSession, receiver: Receiver
) -> None:
    await webhook(url, session, secret=b"s3cret").announce(DEPARTURE)

    ((headers, body),) = receiver.got
    expected = hmac.new(b"s3cret", body, hashlib.sha256).hexdigest()
    assert headers["Evac-Signature"] == f"sha256={expected}"


async def test_an_error_of_the_server_is_tried_again_under_the_same_key(
    url: str, session: aiohttp.ClientSession, receiver: Receiver
) -> None:
    receiver.answers = [500, 429, 200]

    assert await webhook(url, session).announce(DEPARTURE) is None
    assert len(receiver.got) == 3
    assert len({(headers["Idempotency-Key"], body) for headers, body in receiver.got}) == 1


async def test_a_server_that_always_fails_is_told_of_within_the_limit(
    url: str, session: aiohttp.ClientSession, receiver: Receiver
) -> None:
    receiver.answers, receiver.text = [503], "try\x1b[31m later\nor never"

    wrong = await webhook(url, session, timeout_seconds=2.0).announce(DEPARTURE)

    assert wrong is not None
    assert "answered 503: try?[31m later; " in wrong
    assert wrong.endswith("in 2 s")


@pytest.mark.parametrize("status", [400, 401, 404, 422])
async def test_a_refusal_is_not_tried_again(
    url: str, session: aiohttp.ClientSession, receiver: Receiver, status: int
) -> None:
    receiver.answers, receiver.text = [status], "no such hook"

    wrong = await webhook(url, session).announce(DEPARTURE)

    assert wrong is not None
    assert wrong.endswith(f": answered {status}: no such hook")
    assert len(receiver.got) == 1


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_not_followed(
    url: str, session: aiohttp.ClientSession, receiver: Receiver, status: int
) -> None:
    receiver.answers = [status]

    wrong = await webhook(url, session).announce(DEPARTURE)

    assert wrong is not None
    assert f"redirected ({status})" in wrong
    assert (len(receiver.got), receiver.elsewhere) == (1, 0)


@pytest.fixture
def black_hole() -> Iterator[str]:
    """The kernel accepts the connection, and nobody ever answers."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        yield f"http://127.0.0.1:{deaf.getsockname()[1]}/hook/t0ken"


async def test_a_black_hole_costs_the_time_limit_and_no_more(
    black_hole: str, session: aiohttp.ClientSession
) -> None:
    async with asyncio.timeout(PLENTY):
        wrong = await webhook(black_hole, session, timeout_seconds=0.5).announce(DEPARTURE)

    assert wrong is not None
    assert "no answer" in wrong


async def test_a_refused_connection_is_tried_again_and_told_of(
    session: aiohttp.ClientSession,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    url = f"http://127.0.0.1:{port}/hook/t0ken"

    wrong = await webhook(url, session, timeout_seconds=2.0).announce(DEPARTURE)

    assert wrong is not None
    assert wrong.startswith(f"http://127.0.0.1:{port}: ")
    assert "1 try" not in wrong


async def test_a_server_that_talks_something_else_is_an_answer(
    session: aiohttp.ClientSession,
) -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook/t0ken"
        wrong = await webhook(url, session, timeout_seconds=0.5).announce(DEPARTURE)

    assert wrong is not None
    assert "t0ken" not in wrong


async def test_neither_secret_nor_token_shows(
    url: str, session: aiohttp.ClientSession, receiver: Receiver
) -> None:
    receiver.answers = [403]
    announcer = webhook(url, session, secret=b"s3cret")
    wrong = await announcer.announce(DEPARTURE)

    for shown in (repr(announcer), wrong or ""):
        assert "s3cret" not in shown
        assert "t0ken" not in shown


def test_the_key_tells_all_announcements_apart() -> None:
    others = [
        replace(DEPARTURE, word=Word.DURABLE),
        replace(DEPARTURE, job="bob/eval"),
        replace(DEPARTURE, order="ab12-2"),
        replace(DEPARTURE, node="gpu-8"),
        replace(DEPARTURE, boot="b2"),
        replace(DEPARTURE, sequence=8),
        replace(DEPARTURE, generation=Generation(incarnation=2, step=1201)),
        replace(DEPARTURE, generation=Generation(incarnation=3, step=1200)),
        replace(DEPARTURE, generation=None),
    ]

    assert len({idempotency_key(one) for one in (DEPARTURE, *others)}) == len(others) + 1


def test_the_key_is_the_same_for_all_tries() -> None:
    assert idempotency_key(replace(DEPARTURE, seconds_left=1.0)) == idempotency_key(DEPARTURE)


@pytest.mark.parametrize(
    "url", ["", "hook", "ftp://host/x", "http://", "http://host:port/", "http://[::1/"]
)
async def test_what_cannot_be_posted_to_is_refused_at_once(
    url: str, session: aiohttp.ClientSession
) -> None:
    with pytest.raises(ConfigError, match="webhook"):
        webhook(url, session)


async def test_a_session_that_trusts_the_environment_is_refused() -> None:
    async with aiohttp.ClientSession(trust_env=True) as session:
        with pytest.raises(ValueError, match="proxies"):
            webhook("http://127.0.0.1/", session)
