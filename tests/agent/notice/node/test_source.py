"""NodeSource against a small API server over TLS."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

import aiohttp
import pytest
import trustme
from aiohttp import web

from evacd.facts import Cancelled, Confidence, Notice, Noticed, Quiet, Unknown
from evacd.notice.node import Access, NodeApi, NodeSource
from tests.agent.notice.hearing import MovedClock, watching
from tests.agent.notice.node.api_server import ApiServer, Fault, Node, refusing, saying
from tests.agent.notice.node.conftest import FAST, QUICK, Make

LABEL = "qos.coreweave.cloud/pending-preemption"
COREWEAVE = Notice(
    source="node",
    kind="coreweave/preempt",
    id=f"node:label:{LABEL}",
    confidence=Confidence.CERTAIN,
    deadline=1120.0,
    seen=1000.0,
    detail=f"label {LABEL}=true",
)


def label(node: Node) -> None:
    node["metadata"]["labels"][LABEL] = "true"


def unlabel(node: Node) -> None:
    del node["metadata"]["labels"][LABEL]


def taint(key: str, value: str = "") -> Callable[[Node], None]:
    def edit(node: Node) -> None:
        one = {"key": key, "effect": "NoSchedule"} | ({"value": value} if value else {})
        node["spec"].setdefault("taints", []).append(one)

    return edit


def condition(kind: str, message: str, status: str = "True") -> Callable[[Node], None]:
    def edit(node: Node) -> None:
        others = [each for each in node["status"]["conditions"] if each["type"] != kind]
        one = {"type": kind, "status": status, "message": message, "reason": "Any"}
        node["status"]["conditions"] = [*others, one]

    return edit


def preempt(at: float) -> Callable[[Node], None]:
    date = format_datetime(datetime.fromtimestamp(at, UTC), usegmt=True)
    message = f"Preempt Scheduled: {date}. For more information, see https://x. EventId: A1"
    return condition("PreemptionScheduled", message)


# --- what the node says -----------------------------------------------------------------


async def test_a_mark_is_told_in_the_moment_it_is_set_and_cancelled_when_it_goes(
    source: NodeSource, cluster: ApiServer
) -> None:
    async with watching(source) as hearing:
        await hearing.until(Quiet)
        await cluster.until(watches=1)

        await cluster.change("gpu-7", label)
        at = await hearing.until(Noticed)
        await cluster.change("gpu-7", unlabel)
        await hearing.until(Cancelled)
        await cluster.change("gpu-7", taint("unrelated"))
        last = await hearing.until(Quiet, after=at)

        assert hearing.told[:last] == [
            Quiet("node"),
            Noticed(COREWEAVE),
            Cancelled("node", COREWEAVE.id, f"no longer on the node: label:{LABEL}"),
        ]
        assert (cluster.lists, cluster.watches) == (1, 1)


async def test_a_mark_that_is_there_at_the_start_is_told_first(
    source: NodeSource, cluster: ApiServer
) -> None:
    label(cluster.nodes["gpu-7"])
    async with watching(source) as hearing:
        assert await hearing.until(Noticed) == 0
        assert await source.probe() == Noticed(COREWEAVE)


async def test_other_nodes_marks_are_not_ours(source: NodeSource, cluster: ApiServer) -> None:
    async with watching(source) as hearing:
        await cluster.until(watches=1)
        await cluster.change("gpu-8", label)
        await cluster.change("gpu-7", taint("unrelated"))
        await hearing.until(Quiet, after=1)

        assert hearing.told == [Quiet("node"), Quiet("node")]
        assert all(q["fieldSelector"] == "metadata.name=gpu-7" for q in cluster.queries)


async def test_a_mark_told_again_keeps_its_first_deadline(
    source: NodeSource, cluster: ApiServer, clock: MovedClock
) -> None:
    async with watching(source) as hearing:
        await cluster.until(watches=1)
        await cluster.change("gpu-7", label)
        await hearing.until(Noticed)
        clock.now = 1050.0
        await cluster.change("gpu-7", taint("unrelated"))
        at = await hearing.until(Noticed, after=2)

        assert hearing.told[at] == Noticed(COREWEAVE)


async def test_two_marks_are_two_notices_and_the_surest_is_probed(
    source: NodeSource, cluster: ApiServer
) -> None:
    label(cluster.nodes["gpu-7"])
    taint("ToBeDeletedByClusterAutoscaler", "1700000000")(cluster.nodes["gpu-7"])
    async with watching(source) as hearing:
        await hearing.until(Noticed, after=1)

        notices = [each.notice for each in hearing.told if isinstance(each, Noticed)]
        assert [n.kind for n in notices] == ["coreweave/preempt", "autoscaler/scale-down"]
        assert notices[1].id == "node:taint:ToBeDeletedByClusterAutoscaler"
        probed = await source.probe()
        assert isinstance(probed, Noticed)
        assert probed.notice.deadline == 1060.0


@pytest.mark.parametrize(
    ("ahead", "deadline"), [(20, 1020.0), (300, 1030.0), (-40, 1000.0)], ids=["near", "far", "past"]
)
async def test_aks_gives_the_date_in_its_message(
    source: NodeSource, cluster: ApiServer, ahead: int, deadline: float
) -> None:
    preempt(1000 + ahead)(cluster.nodes["gpu-7"])
    cluster.list_fault = undated(cluster)

    probed = await source.probe()

    assert isinstance(probed, Noticed)
    assert (probed.notice.kind, probed.notice.deadline) == ("aks/preempt", deadline)


def undated(cluster: ApiServer) -> Fault:
    """No `Date` header: the test's clock stands in 1970."""

    async def answer(_: web.Request) -> web.StreamResponse:
        body = {"metadata": {"resourceVersion": "1"}, "items": list(cluster.nodes.values())}
        return web.json_response(body, headers={"Date": "never"})

    return answer


async def test_an_advice_that_becomes_real_keeps_its_id_and_is_never_cancelled_between(
    source: NodeSource, cluster: ApiServer
) -> None:
    kind = "PreemptionScheduled"
    async with watching(source) as hearing:
        await cluster.until(watches=1)
        for message in (
            "SpotRebalanceRecommendation Advisory. For more information, see https://x.",
            "Preempt Scheduled: soon.",
            "Preempt Started. EventId: A1",
        ):
            await cluster.change("gpu-7", condition(kind, message))
        await cluster.change("gpu-7", condition(kind, "IMDS unavailable", "Unknown"))
        await cluster.change("gpu-7", condition(kind, "none", "False"))
        at = await hearing.until(Cancelled)

        notices = [each.notice for each in hearing.told[:at] if isinstance(each, Noticed)]
        told = [(n.confidence.word, n.deadline, n.id) for n in notices]
        mark = f"node:condition:{kind}"
        assert told == [
            ("advisory", None, mark),
            ("certain", 1000.0, mark),
            ("started", 1000.0, mark),
            # An Unknown status neither clears nor changes it.
            ("started", 1000.0, mark),
        ]


async def test_a_date_that_moves_later_never_lengthens_and_jitter_changes_nothing(
    source: NodeSource, cluster: ApiServer
) -> None:
    cluster.list_fault = undated(cluster)
    told = []
    for at in (1020.0, 1025.0, 1019.0, 1010.0):
        preempt(at)(cluster.nodes["gpu-7"])
        probed = await source.probe()
        assert isinstance(probed, Noticed)
        told.append(probed.notice.deadline)

    assert told == [1020.0, 1020.0, 1020.0, 1010.0]


async def test_the_kubelets_shutdown_is_a_notice_and_a_second_sign(
    source: NodeSource, cluster: ApiServer
) -> None:
    assert await source.probe() == Quiet("node")
    assert not source.shutting_down

    condition("Ready", "node is shutting down", "False")(cluster.nodes["gpu-7"])
    probed = await source.probe()

    assert isinstance(probed, Noticed)
    assert (probed.notice.confidence, probed.notice.deadline) == (Confidence.STARTED, 1015.0)
    assert source.shutting_down


# --- how the API server behaves ---------------------------------------------------------


@pytest.mark.parametrize("by_event", [False, True], ids=["HTTP 410", "ERROR 410"])
async def test_a_version_that_expired_is_listed_again_without_a_gap(
    source: NodeSource, cluster: ApiServer, by_event: bool
) -> None:
    async with watching(source) as hearing:
        await cluster.until(watches=1)
        cluster.expire_by_event = by_event
        cluster.oldest = 10**6
        await cluster.end_watches()
        await cluster.until(lists=3)
        cluster.oldest = 0
        await cluster.change("gpu-7", label)

        await hearing.until(Noticed)

        assert Unknown not in map(type, hearing.told)


async def test_a_watch_goes_on_from_the_last_version_it_saw(
    source: NodeSource, cluster: ApiServer
) -> None:
    cluster.bookmarks = True
    async with watching(source) as hearing:
        await cluster.until(watches=1)
        await cluster.change("gpu-8", label)
        await cluster.end_watches()
        await cluster.until(watches=2)
        await cluster.change("gpu-7", label)
        await hearing.until(Noticed)
        await cluster.end_watches()
        await cluster.until(watches=3)
        await cluster.end_watches()
        await cluster.until(watches=4)

        versions = [q["resourceVersion"] for q in cluster.queries if "watch" in q]
        assert cluster.lists == 1
        assert versions[3] == "102"


async def test_the_token_is_read_for_every_request(
    source: NodeSource, cluster: ApiServer, access: Access
) -> None:
    assert await source.probe() == Quiet("node")

    cluster.token = "token-2"
    refused = await source.probe()
    access.token_file.write_text("token-2")

    assert isinstance(refused, Unknown)
    assert "token" in refused.cure
    assert await source.probe() == Quiet("node")
    assert cluster.tokens == ["Bearer token-1", "Bearer token-1", "Bearer token-2"]


@pytest.mark.parametrize(
    ("code", "cure"),
    [
        (301, "is this a Kubernetes API server?"),
        (400, "is this a Kubernetes API server?"),
        (401, "is it projected into this pod"),
        (403, "get, list and watch on nodes"),
        (404, "is this a Kubernetes API server?"),
        (409, "is this a Kubernetes API server?"),
        (410, "is this a Kubernetes API server?"),
        (429, "asked again"),
        (500, "asked again"),
        (503, "asked again"),
    ],
)
async def test_a_refused_list_is_unknown_with_a_cure_and_clears_nothing(
    source: NodeSource, cluster: ApiServer, code: int, cure: str
) -> None:
    label(cluster.nodes["gpu-7"])
    async with watching(source) as hearing:
        await hearing.until(Noticed)
        await cluster.until(watches=1)
        cluster.list_fault = cluster.watch_fault = refusing(code)
        await cluster.end_watches()

        at = await hearing.until(Unknown)
        cluster.list_fault = cluster.watch_fault = None
        again = await hearing.until(Noticed, after=at)

        told = hearing.told[at]
        assert isinstance(told, Unknown)
        assert told.reason == f"HTTP {code}"
        assert cure in told.cure
        assert hearing.told[again] == Noticed(COREWEAVE)
        assert Cancelled not in map(type, hearing.told)


@pytest.mark.parametrize("code", [403, 429, 500])
async def test_a_refused_watch_degrades_and_marks_are_still_found(
    source: NodeSource, cluster: ApiServer, code: int
) -> None:
    cluster.watch_fault = refusing(code)
    async with watching(source) as hearing:
        await cluster.until(watches=2)
        assert f"HTTP {code}" in source.degraded
        await cluster.change("gpu-7", label)
        await hearing.until(Noticed)
        cluster.watch_fault = None
        await cluster.until(watches=cluster.watches + 1)
        await cluster.change("gpu-7", unlabel)
        await hearing.until(Cancelled)

        assert source.degraded == ""
        assert Unknown not in map(type, hearing.told)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"<html>sign in</html>",
        b"null",
        b"[]",
        b'{"items": null, "metadata": {"resourceVersion": "1"}}',
        b'{"items": [], "metadata": {}}',
        b'{"items": [{"metadata"',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
    ids=["empty", "html", "null", "array", "no items", "no version", "cut", "binary", "deep"],
)
async def test_a_body_that_is_no_list_is_unknown(
    source: NodeSource, cluster: ApiServer, raw: bytes
) -> None:
    cluster.list_fault = saying(raw)

    assert isinstance(await source.probe(), Unknown)


@pytest.mark.parametrize(
    "raw", [b"<html>\n", b"{}\n", b'{"type":"ADDED"}\n', b'{"type":"NEW"}\n'], ids=repr
)
async def test_a_watch_that_says_something_else_degrades_and_lists_go_on(
    source: NodeSource, cluster: ApiServer, raw: bytes
) -> None:
    cluster.watch_fault = saying(raw)
    async with watching(source) as hearing:
        await cluster.until(lists=3)

        assert source.degraded
        assert set(hearing.told) == {Quiet("node")}


async def test_a_watch_that_is_taken_and_never_answered_leaves_no_mark_unseen(
    source: NodeSource, cluster: ApiServer
) -> None:
    """A watch may be silent for minutes, but its beginning is answered at once."""

    async def never(_: web.Request) -> web.StreamResponse | None:
        await asyncio.Event().wait()
        return None

    cluster.watch_fault = never
    async with watching(source) as hearing:
        await cluster.until(watches=1)
        await cluster.change("gpu-7", label)
        await hearing.until(Noticed)

        assert "no watch (no answer in time)" in source.degraded


async def test_a_watch_that_has_gone_quiet_is_begun_anew_and_misses_nothing(
    session: aiohttp.ClientSession, clock: MovedClock, access: Access, cluster: ApiServer
) -> None:
    """What is between here and the server may keep the connection, and let no word through."""

    async def quiet(request: web.Request) -> web.StreamResponse | None:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        await asyncio.Event().wait()
        return response

    cluster.watch_fault = quiet
    limits = replace(QUICK, quiet=0.2)
    api = NodeApi(session, access, "gpu-7", limits=limits)
    source = NodeSource(api, clock, pace=FAST, jitter=lambda: 0.0)
    async with watching(source) as hearing:
        await cluster.until(watches=1)
        await cluster.change("gpu-7", label)
        cluster.watch_fault = None
        await hearing.until(Noticed)

        assert (cluster.lists, source.degraded) == (1, "")


async def test_a_node_that_is_not_there_is_unknown_and_clears_nothing(
    source: NodeSource, cluster: ApiServer
) -> None:
    label(cluster.nodes["gpu-7"])
    async with watching(source) as hearing:
        await cluster.until(watches=1)
        await cluster.remove("gpu-7")
        at = await hearing.until(Unknown)

        told = hearing.told[at]
        assert isinstance(told, Unknown)
        assert told.reason == "there is no node gpu-7"
        assert "spec.nodeName" in told.cure
        assert Cancelled not in map(type, hearing.told)


async def test_a_slow_server_is_unknown(source: NodeSource, cluster: ApiServer) -> None:
    async def never(_: web.Request) -> web.StreamResponse | None:
        await asyncio.Event().wait()
        return None

    cluster.list_fault = never

    told = await source.probe()

    assert told == Unknown("node", "no answer in time", "the API server is in trouble; asked again")


async def test_a_certificate_of_another_ca_is_unknown(
    make: Make, access: Access, tmp_path: Path, cluster: ApiServer
) -> None:
    trustme.CA().cert_pem.write_to_path(tmp_path / "other.crt")

    told = await make(replace(access, ca_file=tmp_path / "other.crt")).probe()

    assert isinstance(told, Unknown)
    assert told.reason.startswith("the API server's certificate is not to be trusted")
    assert "other.crt" in told.cure
    # The token went to nobody.
    assert cluster.tokens == []


@pytest.mark.parametrize(
    ("token", "ca"),
    [(None, "as is"), ("", "as is"), ("a\nb", "as is"), ("token-1", None), ("token-1", "none")],
    ids=["no token", "empty token", "two lines", "no CA", "no certificate"],
)
async def test_missing_credentials_are_unknown_with_a_cure(
    source: NodeSource, access: Access, token: str | None, ca: str | None
) -> None:
    if token is None:
        access.token_file.unlink()
    else:
        access.token_file.write_text(token)
    if ca is None:
        access.ca_file.unlink()
    elif ca != "as is":
        access.ca_file.write_text(ca)

    told = await source.probe()

    assert isinstance(told, Unknown)
    assert told.cure == "run in a pod with a service account, or name its token and CA file"


async def test_nobody_there_is_unknown(make: Make, access: Access) -> None:
    told = await make(replace(access, url="https://127.0.0.1:1")).probe()

    assert isinstance(told, Unknown)
    assert told.reason == "no connection: Connection refused"
