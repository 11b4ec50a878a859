"""Read by GET, changed by nothing, and never in the daemon's way."""

import socket
from collections.abc import AsyncIterator

import aiohttp
import pytest
from structlog.testing import capture_logs

from evacd.report.page import Serving, serving
from evacd.report.vitals import Verdict


class Page:
    def __init__(self) -> None:
        self.health = Verdict({"loop": ""})
        self.ready = Verdict({"sockets": ""})
        self.served = Serving()


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    page = Page()
    async with serving(
        "127.0.0.1",
        0,
        metrics=lambda: b"evac_order_active 0\n",
        content_type="text/plain; version=0.0.4",
        healthy=lambda: page.health,
        ready=lambda: page.ready,
    ) as page.served:
        yield page


async def ask(page: Page, path: str, method: str = "GET") -> tuple[int, str, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, page.served.url + path) as answer,
    ):
        return answer.status, answer.headers.get("Content-Type", ""), await answer.text()


async def test_metrics_are_plain_text(page: Page) -> None:
    status, kind, text = await ask(page, "/metrics")

    assert (status, text) == (200, "evac_order_active 0\n")
    assert kind.startswith("text/plain; version=0.0.4")


@pytest.mark.parametrize(("path", "name"), [("/healthz", "health"), ("/readyz", "ready")])
async def test_health_and_readiness_can_fail_and_say_why(page: Page, path: str, name: str) -> None:
    good, kind, text = await ask(page, path)
    setattr(page, name, Verdict({"sources": "none has answered", "loop": ""}))
    bad, _, why = await ask(page, path)

    assert (good, bad) == (200, 503)
    assert kind.startswith("application/json")
    assert '"ok": true' in text
    assert '"sources": "none has answered"' in why
    assert '"loop": "ok"' in why


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/readyz", "/drain", "/"])
async def test_nothing_but_get_is_answered(page: Page, method: str, path: str) -> None:
    status, _, _ = await ask(page, path, method)

    assert status == 405


async def test_other_pages_are_not_there(page: Page) -> None:
    assert (await ask(page, "/drain"))[0] == 404


async def test_a_port_that_is_taken_is_said_and_stops_nothing(page: Page) -> None:
    with capture_logs() as logs, socket.create_server(("127.0.0.1", 0)) as taken:
        async with serving(
            "127.0.0.1",
            taken.getsockname()[1],
            metrics=bytes,
            content_type="text/plain",
            healthy=Verdict,
            ready=Verdict,
        ) as served:
            assert served.url == ""
            assert "in use" in served.reason

    assert [entry["event"] for entry in logs] == ["page.refused"]
    assert "--http-port" in logs[0]["cure"]


async def test_an_address_of_another_machine_is_said_and_stops_nothing() -> None:
    async with serving(
        "192.0.2.1",
        0,
        metrics=bytes,
        content_type="text/plain",
        healthy=Verdict,
        ready=Verdict,
    ) as served:
        assert served.reason
