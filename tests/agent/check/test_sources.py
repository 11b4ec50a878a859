"""Each source that would run is asked once: as simulators serve it, and as others do instead."""

import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from evacd.check import Finding, Verdict
from evacd.check.sources import check_sources
from evacd.clock import SystemClock
from evacd.config import load
from evacd.notice.simulate import make
from evacd.notice.simulate.gcp import GcpMetadata


@asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[str]:
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


async def ask(
    url: str = "", cloud: str = "gcp", more: Mapping[str, object] = MappingProxyType({})
) -> dict[str, Finding]:
    given = {"notice.cloud": cloud, "notice.metadata_url": url, "shutdown.watch": "off", **more}
    # Whatever this machine's firmware says: it is not asked.
    nowhere = Path("/nonexistent")
    found = await check_sources(load(None, {}, given), SystemClock(), dmi=nowhere)
    return {finding.name: finding for finding in found}


@pytest.mark.parametrize(
    ("cloud", "names"),
    [
        ("gcp", {"gcp/preempted", "gcp/maintenance", "gcp/upcoming-maintenance", "gcp/stop"}),
        ("aws", {"aws/spot", "aws/rebalance", "aws/maintenance", "aws/asg"}),
        ("azure", {"azure"}),
    ],
)
async def test_a_machine_without_a_notice_has_a_good_line_for_each_source(
    cloud: str, names: set[str]
) -> None:
    async with serving(make(cloud).app) as url:
        found = await ask(url, cloud)

    assert set(found) == {"cloud", *names}
    assert {finding.verdict for finding in found.values()} == {Verdict.OK}
    assert found["cloud"].detail == f"{cloud} ({cloud}, set by --cloud)"


async def test_a_notice_that_stands_is_a_warning() -> None:
    metadata = GcpMetadata()
    metadata.preempt()
    async with serving(metadata.app) as url:
        found = (await ask(url))["gcp/preempted"]

    assert found.verdict is Verdict.WARN
    assert "preempted" in found.detail
    assert "about to go" in found.cure


def answering(answer: Callable[[web.Request], Awaitable[web.Response]]) -> web.Application:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    return app


async def a_portal(_: web.Request) -> web.Response:
    return web.Response(text="<html>Please log in</html>", content_type="text/html")


async def a_refusal(_: web.Request) -> web.Response:
    return web.Response(status=403)


@pytest.mark.parametrize("answer", [a_portal, a_refusal])
@pytest.mark.parametrize(
    ("cloud", "name"), [("gcp", "gcp/preempted"), ("aws", "aws/spot"), ("azure", "azure")]
)
async def test_what_is_no_metadata_service_fails_with_a_cure_in_one_line(
    answer: Callable[[web.Request], Awaitable[web.Response]], cloud: str, name: str
) -> None:
    async with serving(answering(answer)) as url:
        found = (await ask(url, cloud))[name]

    assert found.verdict is Verdict.FAIL
    assert found.detail
    assert 'cloud = "none"' in found.cure
    assert "\n" not in found.detail + found.cure


async def test_nobody_there_fails() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        found = (await ask(f"http://127.0.0.1:{taken.getsockname()[1]}"))["gcp/preempted"]

    assert found.verdict is Verdict.FAIL
    assert "refused" in found.detail


async def test_a_service_that_never_answers_fails() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        found = (await ask(f"http://127.0.0.1:{silent.getsockname()[1]}"))["gcp/preempted"]

    assert found.verdict is Verdict.FAIL


async def test_without_a_cloud_and_sources_operators_are_heard_and_that_is_fine() -> None:
    found = await ask(cloud="none")

    assert set(found) == {"cloud"}
    assert found["cloud"].verdict is Verdict.OK
    assert "operators only" in found["cloud"].detail


async def test_a_cloud_that_answers_is_found() -> None:
    async with serving(make("azure").app) as url:
        found = await ask(url, "auto")

    assert found["cloud"].verdict is Verdict.OK
    assert found["cloud"].detail.startswith("azure (detected: ")
    assert "azure" in found


async def test_an_unknown_place_fails_and_says_which_flag_to_give(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        nothing = await ask(url, "auto")
        something = await ask(url, "auto", {"user.file": f"{tmp_path}/notice.json"})

    assert (nothing["cloud"].verdict, something["cloud"].verdict) == (Verdict.FAIL, Verdict.WARN)
    assert "--cloud" in nothing["cloud"].cure
    assert something["file"].verdict is Verdict.OK


async def test_sources_of_one_s_own_have_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "notice.json"
    file.write_text("{")

    more = {"user.file": str(file), "user.exec": "false", "node.watch": "on"}
    found = await ask(cloud="none", more=more)

    assert {name: one.verdict for name, one in found.items() if name != "cloud"} == {
        "node": Verdict.FAIL,
        "file": Verdict.FAIL,
        "exec": Verdict.FAIL,
    }
    assert "in a pod" in found["node"].cure


async def test_sources_in_the_wrong_hands_fail_and_say_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "notice"
    file.write_text("#!/bin/sh\necho '{\"notices\": []}'\n")
    file.chmod(0o777)

    found = await ask(cloud="none", more={"user.file": str(file), "user.exec": str(file)})

    for name in ("file", "exec"):
        assert found[name].verdict is Verdict.FAIL
        assert found[name].cure == f"chmod o-w {file}"


async def test_an_end_that_is_known_is_a_source() -> None:
    found = await ask(cloud="none", more={"aws.capacity_block_end": "2040-01-01T00:00:00Z"})

    assert "capacity-block-end, planned" in found["calendar"].detail
