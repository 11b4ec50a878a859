"""Which cloud: real strings, simulators and impostors as the metadata service."""

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from evacd.notice.detect import (
    AZURE_TAG,
    URLS,
    Detected,
    Dmi,
    Undetected,
    decide,
    detect,
    judge,
    read_dmi,
)
from evacd.notice.simulate.gcp import GcpMetadata
from tests.agent.notice.hearing import http, raw_server, saying, silent

GCE = Dmi(
    sys_vendor="Google",
    product_name="Google Compute Engine",
    bios_vendor="Google",
    board_vendor="Google",
)
EC2 = Dmi(sys_vendor="Amazon EC2", bios_vendor="Amazon EC2", board_vendor="Amazon EC2")
AZURE = Dmi(sys_vendor="Microsoft Corporation", chassis_asset_tag=AZURE_TAG)
HYPER_V = Dmi(sys_vendor="Microsoft Corporation", product_name="Virtual Machine")
LAPTOP = Dmi(sys_vendor="LENOVO", product_name="21HD", bios_vendor="LENOVO")


@pytest.mark.parametrize(
    ("dmi", "named"),
    [
        (GCE, [("gcp", True)]),
        (EC2, [("aws", True)]),
        (AZURE, [("azure", True)]),
        (HYPER_V, [("azure", False)]),
        (Dmi(sys_vendor="Google", product_name="Eve"), [("gcp", False)]),
        (Dmi(sys_vendor="Alibaba Cloud", product_name="Alibaba Cloud ECS"), [("alibaba", True)]),
        (Dmi(sys_vendor="Tencent Cloud", product_name="CVM"), [("tencent", True)]),
        (Dmi(sys_vendor="QEMU", chassis_asset_tag="OracleCloud.com"), [("oracle", True)]),
        (Dmi(sys_vendor="Google", chassis_asset_tag="amazon ec2"), [("aws", True), ("gcp", False)]),
        (LAPTOP, []),
        (Dmi(), []),
    ],
)
def test_the_firmwares_strings_name_clouds(dmi: Dmi, named: list[tuple[str, bool]]) -> None:
    assert [(hint.cloud, hint.sure) for hint in judge(dmi)] == named


texts = st.sampled_from(["", "Google", "Amazon EC2", AZURE_TAG, "Xen"]) | st.text(max_size=8)


@given(st.builds(Dmi, texts, texts, texts, texts, texts), st.data())
def test_whatever_is_said_there_is_one_answer(dmi: Dmi, data: st.DataObject) -> None:
    hints = judge(dmi)
    clouds = [hint.cloud for hint in hints] or list(URLS)
    replies = {cloud: data.draw(st.sampled_from(["", "HTTP 404"])) for cloud in clouds}
    answer = decide(hints, replies)

    confirmed = [cloud for cloud, why in replies.items() if not why]
    if len(confirmed) == 1:
        assert isinstance(answer, Detected)
        assert answer.cloud == confirmed[0]
    elif isinstance(answer, Detected):
        assert answer.cloud in confirmed or not confirmed
        assert answer.cloud in {hint.cloud for hint in hints if hint.sure}


def test_strings_are_read_from_files_and_what_is_missing_says_nothing(tmp_path: Path) -> None:
    written(tmp_path, Dmi(sys_vendor="Google\n", bios_vendor="a\x00b"))

    assert read_dmi(tmp_path) == Dmi(sys_vendor="Google")
    assert read_dmi(tmp_path / "nowhere") == Dmi()


# --- with services ----------------------------------------------------------------------


def written(root: Path, dmi: Dmi) -> Path:
    for name in ("sys_vendor", "product_name", "chassis_asset_tag", "bios_vendor", "board_vendor"):
        if text := getattr(dmi, name):
            (root / name).write_text(text)
    return root


def ec2() -> web.Application:
    """Token service of EC2, no more."""

    async def token(request: web.Request) -> web.Response:
        assert request.headers["X-aws-ec2-metadata-token-ttl-seconds"] == "60"
        return web.Response(text=secrets.token_urlsafe(40) + "==")

    app = web.Application()
    app.router.add_put("/latest/api/token", token)
    return app


def imds() -> web.Application:
    """The versions that Azure's service knows, no more."""

    async def versions(request: web.Request) -> web.Response:
        assert request.headers["Metadata"] == "true"
        return web.json_response({"apiVersions": ["2021-02-01"]})

    app = web.Application()
    app.router.add_get("/metadata/versions", versions)
    return app


@asynccontextmanager
async def at_one_address(app: web.Application) -> AsyncIterator[dict[str, str]]:
    """As in a cloud: whichever service is asked for, this one answers."""
    async with TestServer(app) as server:
        yield dict.fromkeys(URLS, str(server.make_url("")).rstrip("/"))


@pytest.mark.parametrize("dmi", [Dmi(), LAPTOP])
@pytest.mark.parametrize(
    ("app", "cloud"),
    [(lambda: GcpMetadata().app, "gcp"), (imds, "azure")],
    ids=["gcp", "azure"],
)
async def test_where_the_firmware_names_none_the_service_that_answers_does(
    session: aiohttp.ClientSession,
    tmp_path: Path,
    app: Callable[[], web.Application],
    cloud: str,
    dmi: Dmi,
) -> None:
    async with at_one_address(app()) as urls:
        found = await detect(session, root=written(tmp_path, dmi), urls=urls)

    assert found == Detected(cloud, "its metadata service answers")


@pytest.mark.parametrize(
    ("dmi", "app", "cloud"),
    [(GCE, lambda: GcpMetadata().app, "gcp"), (EC2, ec2, "aws"), (AZURE, imds, "azure")],
    ids=["gcp", "aws", "azure"],
)
async def test_a_service_confirms_what_the_firmware_says(
    session: aiohttp.ClientSession,
    tmp_path: Path,
    dmi: Dmi,
    app: Callable[[], web.Application],
    cloud: str,
) -> None:
    async with at_one_address(app()) as urls:
        found = await detect(session, root=written(tmp_path, dmi), urls=urls)

    assert isinstance(found, Detected)
    assert found.cloud == cloud
    assert "and its metadata service answers" in found.how


async def test_where_the_strings_contradict_each_other_the_service_decides(
    session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    both = Dmi(sys_vendor="Amazon EC2", product_name="Google Compute Engine")
    async with at_one_address(GcpMetadata().app) as urls:
        found = await detect(session, root=written(tmp_path, both), urls=urls)

    assert found == Detected(
        "gcp", "DMI product_name is Google Compute Engine, and its metadata service answers"
    )


async def test_a_service_that_is_silent_ends_within_the_limit_and_the_firmware_counts(
    session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with raw_server(silent) as url:
        found = await detect(session, root=written(tmp_path, GCE), urls={"gcp": url}, seconds=0.2)

    assert isinstance(found, Detected)
    assert found.cloud == "gcp"
    assert "does not answer: no answer within 0.2 s" in found.how


async def test_a_hyper_v_guest_that_is_not_on_azure_is_not_detected(
    session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with raw_server(saying(http(b"", status="404 No"))) as url:
        found = await detect(session, root=written(tmp_path, HYPER_V), urls={"azure": url})

    assert isinstance(found, Undetected)
    assert "azure: HTTP 404" in found.reason


@pytest.mark.parametrize(
    "raw",
    [
        http(b"<html>Please log in</html>", kind="text/html"),
        http(b"OK"),
        http(b"{}"),
        http(b"1234567", headers=""),
        http(b'{"apiVersions": 1}'),
        http(b"", status="302 Found", headers="Location: http://127.0.0.1:9/\r\n"),
    ],
)
async def test_an_impostor_is_no_cloud(
    session: aiohttp.ClientSession, tmp_path: Path, raw: bytes
) -> None:
    async with raw_server(saying(raw)) as url:
        found = await detect(session, root=tmp_path, urls=dict.fromkeys(URLS, url))

    assert isinstance(found, Undetected)


async def test_what_plays_every_cloud_is_none(
    session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with (
        TestServer(GcpMetadata().app) as gce,
        TestServer(imds()) as azure,
    ):
        urls = {"gcp": str(gce.make_url("")), "azure": str(azure.make_url(""))}
        unclear = await detect(session, root=tmp_path, urls=urls)
        clear = await detect(session, root=written(tmp_path, GCE), urls=urls)

    assert isinstance(unclear, Undetected)
    assert "gcp and azure all answer" in unclear.reason
    assert isinstance(clear, Detected)
    assert clear.cloud == "gcp"
