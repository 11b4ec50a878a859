"""Metadata as the simulator serves it, and as others do in its place; programs; the webhook."""

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from evacd.check import Verdict
from evacd.check.outside import check_cordon, check_departure, check_metadata
from evacd.clock import SystemClock
from evacd.config import CordonConfig, DepartureConfig, NoticeConfig
from evacd.notice.simulate.gcp import GcpMetadata


@asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[str]:
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


async def ask(url: str, cloud: str = "gcp") -> tuple[Verdict, str, str]:
    finding = await check_metadata(NoticeConfig(cloud=cloud, metadata_url=url), SystemClock())
    return finding.verdict, finding.detail, finding.cure


async def test_a_metadata_service_without_a_notice_is_fine() -> None:
    async with serving(GcpMetadata().app) as url:
        verdict, detail, _ = await ask(url)

    assert verdict is Verdict.OK
    assert "no notice" in detail


async def test_a_notice_that_stands_is_a_warning() -> None:
    metadata = GcpMetadata()
    metadata.preempt()
    async with serving(metadata.app) as url:
        verdict, detail, cure = await ask(url)

    assert verdict is Verdict.WARN
    assert "preempted" in detail
    assert "about to go" in cure


def answering(answer: Callable[[web.Request], Awaitable[web.Response]]) -> web.Application:
    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    return app


async def a_portal(_: web.Request) -> web.Response:
    return web.Response(text="<html>Please log in</html>", content_type="text/html")


async def a_refusal(_: web.Request) -> web.Response:
    return web.Response(status=403)


@pytest.mark.parametrize("answer", [a_portal, a_refusal])
async def test_what_is_no_metadata_service_fails_with_a_cure(
    answer: Callable[[web.Request], Awaitable[web.Response]],
) -> None:
    async with serving(answering(answer)) as url:
        verdict, detail, cure = await ask(url)

    assert verdict is Verdict.FAIL
    assert url in detail
    assert 'cloud = "none"' in cure


async def test_nobody_there_fails() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        verdict, _, cure = await ask(f"http://127.0.0.1:{taken.getsockname()[1]}")

    assert verdict is Verdict.FAIL
    assert 'cloud = "none"' in cure


async def test_a_service_that_never_answers_fails() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        verdict, _, _ = await ask(f"http://127.0.0.1:{silent.getsockname()[1]}")

    assert verdict is Verdict.FAIL


async def test_a_name_in_place_of_an_address_fails_as_configuration() -> None:
    verdict, _, cure = await ask("http://metadata.example")

    assert verdict is Verdict.FAIL
    assert "notice.metadata_url" in cure


async def test_without_a_cloud_nothing_is_asked() -> None:
    verdict, detail, _ = await ask("http://127.0.0.1:1", cloud="none")

    assert verdict is Verdict.OK
    assert "operators only" in detail


def test_the_programs_of_the_cordon_must_be_there(tmp_path: Path) -> None:
    program = tmp_path / "cordon"
    program.write_text("#!/bin/sh\n")

    assert check_cordon(CordonConfig()).verdict is Verdict.OK
    assert check_cordon(CordonConfig((str(program),))).verdict is Verdict.FAIL
    program.chmod(0o755)
    assert check_cordon(CordonConfig((str(program),))).verdict is Verdict.WARN
    assert check_cordon(CordonConfig((str(program),), ("no-such-one",))).verdict is Verdict.FAIL
    assert check_cordon(CordonConfig((str(program),), ("sh",))).verdict is Verdict.OK


def test_the_secret_of_the_webhook_must_be_readable_and_private(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    config = DepartureConfig(webhook_url="http://me:hunter2@h/p", secret_file=secret)

    assert check_departure(DepartureConfig()).verdict is Verdict.OK
    assert check_departure(config).verdict is Verdict.FAIL
    secret.write_text("\n")
    assert check_departure(config).verdict is Verdict.FAIL
    secret.write_text("xyzzy")
    secret.chmod(0o644)
    assert check_departure(config).verdict is Verdict.WARN
    secret.chmod(0o600)
    finding = check_departure(config)
    assert finding.verdict is Verdict.OK
    assert "hunter2" not in finding.detail
    assert "xyzzy" not in finding.detail
