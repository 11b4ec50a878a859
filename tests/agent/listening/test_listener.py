"""All sources at once: which they are, that none stops another, and one order for them all."""

import asyncio
import gc
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from evac.errors import ConfigError
from evacd.clock import SystemClock
from evacd.config import Config, load
from evacd.facts import Cancelled, Confidence, Notice, Noticed, Probe, Quiet, Unknown
from evacd.listening import Ears, Found, Listener, find
from evacd.listening.find import url_of
from evacd.notice import aws, gcp
from evacd.notice.simulate import make
from evacd.notice.simulate.azure import AzureMetadata
from tests.agent.listening.scene import ALONE, listening
from tests.agent.listening.scripted import Bug, Count, Scripted
from tests.agent.notice.hearing import LIMIT


def certain(source: str, deadline: float, id: str = "x") -> Noticed:
    return Noticed(Notice(source, "preempted", id, Confidence.CERTAIN, deadline, 0.0))


async def test_a_broken_source_stops_neither_another_nor_the_listener() -> None:
    good, broken = Scripted("good"), Scripted("broken")
    async with listening([broken, good]) as scene:
        for _ in range(3):
            await broken.say(Bug())
        await good.say(certain("good", 50.0))
        await broken.say(Quiet("broken"))

    assert [order.source for order in scene.node.orders] == ["good"]
    assert scene.counts.crashes == ["broken"] * 3
    assert scene.ears.health["broken"].answers


async def test_later_notices_of_other_sources_only_amend_the_one_order() -> None:
    first, second, third = Scripted("first"), Scripted("second"), Scripted("third")
    async with listening([first, second, third]) as scene:
        await first.say(certain("first", 50.0))
        await second.say(certain("second", 20.0))
        await third.say(certain("third", 90.0))

    order = scene.node.order
    assert order is not None
    assert len(scene.node.orders) == 1
    assert (order.deadline, order.source, order.amendments) == (20.0, "second", 1)


names = st.sampled_from(["a", "b", "c"])
ids = st.sampled_from(["x", "y"])
probes: st.SearchStrategy[tuple[str, Probe | Exception]] = names.flatmap(
    lambda name: st.tuples(
        st.just(name),
        st.one_of(
            st.just(Quiet(name)),
            st.just(Unknown(name, "?")),
            st.just(Bug()),
            ids.map(lambda id: Cancelled(name, id)),
            st.builds(
                lambda id, confidence, deadline: Noticed(
                    Notice(name, "k", id, confidence, deadline, 0.0)
                ),
                ids,
                st.sampled_from(Confidence),
                st.one_of(st.none(), st.floats(-1e3, 1e12)),
            ),
        ),
    )
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(script=st.lists(probes, max_size=25))
def test_any_interleaving_is_one_order_at_most_whose_time_never_grows_without_a_cancel(
    script: list[tuple[str, Probe | Exception]],
) -> None:
    async def play() -> None:
        sources = {name: Scripted(name) for name in ("a", "b", "c")}
        # `Node` holds each order to the promise as it comes.
        async with listening(sources.values()) as scene:
            standing: set[tuple[str, str]] = set()
            for name, what in script:
                await sources[name].say(what)
                match what:
                    case Noticed(notice) if notice.confidence >= Confidence.CERTAIN:
                        # It fires with the very probe that tells it.
                        assert scene.node.order is not None
                        standing.add((name, notice.id))
                    case Cancelled(_, id):
                        standing.discard((name, id))
                if standing:
                    assert scene.node.order is not None, "an unknown or a quiet cleared an order"

    with capture_logs():
        asyncio.run(play())


# --- which sources run ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cloud", "source"), [("gcp", "gcp/preempted"), ("aws", "aws/spot"), ("azure", "azure")]
)
async def test_the_cloud_is_found_and_its_notices_are_heard(cloud: str, source: str) -> None:
    metadata = make(cloud)
    async with TestServer(metadata.app) as server:
        url = str(server.make_url("")).rstrip("/")
        auto = {**ALONE, "notice.cloud": "auto", "notice.metadata_url": url}
        async with listening(given=auto) as scene:
            await scene.node.until_heard(source, Quiet)
            metadata.actions["preempt"]()
            await scene.node.until_heard(source, Noticed)

    assert scene.listener.found.cloud == cloud
    assert "metadata service answers" in scene.listener.found.how
    order = scene.node.order
    assert order is not None
    assert order.source == source


async def test_where_the_cloud_is_unknown_the_others_are_heard_and_it_is_looked_for_again(
    tmp_path: Path,
) -> None:
    early = TestServer(make("gcp").app)
    await early.start_server()
    url, port = str(early.make_url("")).rstrip("/"), early.port
    await early.close()
    given = {
        **ALONE,
        "notice.cloud": "auto",
        "notice.metadata_url": url,
        "user.file": f"{tmp_path}/notice.json",
    }
    with capture_logs() as logs:
        async with AsyncExitStack() as late, listening(given=given) as scene:
            await scene.node.until_heard("file", Quiet)
            await until(lambda: scene.listener.found.cure)
            assert scene.listener.waiting == ""
            assert "--cloud" in scene.listener.found.cure
            await late.enter_async_context(TestServer(make("gcp").app, port=port))
            await scene.node.until_heard("gcp/preempted", Quiet)

    assert scene.listener.found.cloud == "gcp"
    assert sum(entry["event"] == "cloud.undetected" for entry in logs) == 1


async def test_where_nothing_is_heard_at_all_it_is_not_ready_and_says_what_to_do() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        given = {**ALONE, "notice.cloud": "auto", "notice.metadata_url": url}
        async with listening(given=given) as scene:
            assert "being found out" in scene.listener.waiting
            await until(lambda: scene.listener.found.cure)
            assert "--cloud" in scene.listener.waiting


async def test_operators_alone_are_enough_where_that_is_meant() -> None:
    async with listening() as scene:
        await until(lambda: not scene.listener.waiting)


async def until(seen: Callable[[], object]) -> None:
    """Wait for what nothing signals."""
    async with asyncio.timeout(LIMIT):
        while not seen():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)


async def test_what_was_asked_for_and_cannot_be_had_is_shown() -> None:
    async with listening(given={**ALONE, "node.watch": "on"}) as scene:
        await scene.node.until_heard("node", Unknown)

    assert scene.ears.health["node"].reason == "this is no Kubernetes cluster"


async def test_a_file_that_answers_hides_no_metadata_service_that_does_not(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        given = {
            **ALONE,
            "notice.cloud": "gcp",
            "notice.metadata_url": url,
            "user.file": f"{tmp_path}/notice.json",
        }
        async with listening(given=given) as scene:
            await scene.node.until_heard("file", Quiet)
            await scene.node.until_heard("gcp/preempted", Unknown)

            assert "gcp/preempted: " in scene.listener.waiting
            assert [each.source for each in scene.ears.deaf()] == ["gcp/preempted"]


async def test_a_bug_in_finding_out_the_cloud_costs_no_other_source(tmp_path: Path) -> None:
    given = {**ALONE, "notice.cloud": "auto", "user.file": f"{tmp_path}/notice.json"}
    with capture_logs() as logs:
        # No path can hold a NUL: what is not foreseen there stands for any bug.
        async with listening(given=given, dmi=Path("\0")) as scene:
            await until(lambda: "its code failed" in scene.listener.found.how)
            await scene.node.until_heard("file", Quiet)

    assert "report it" in scene.listener.found.cure
    assert sum(entry["event"] == "cloud.undetected" for entry in logs) == 1


async def test_what_fails_to_open_leaves_nothing_open() -> None:
    # The session is open by the time that its URL is found to be none.
    config = replace_http(load(None, {}, {**ALONE, "user.http": "http://127.0.0.1:1/"}))
    listener = Listener(config, Ears(lambda _: None, SystemClock(), Count()), SystemClock())

    with pytest.raises(ConfigError):
        await listener.__aenter__()

    gc.collect()  # an unclosed session warns, and a warning is an error


def replace_http(config: Config) -> Config:
    """With a URL that no configuration would pass on."""
    return replace(config, user=replace(config.user, http="ftp://127.0.0.1:1/"))


async def test_advice_can_be_switched_off() -> None:
    async with TestServer(make("aws").app) as server:
        url = str(server.make_url("")).rstrip("/")
        given = {**ALONE, "notice.cloud": "aws", "notice.metadata_url": url}
        async with listening(given={**given, "aws.rebalance": False}) as scene:
            await scene.node.until_heard("aws/spot", Quiet)

    assert {each["source"] for each in scene.ears.shown()} == {
        "aws/spot",
        "aws/maintenance",
        "aws/asg",
    }


async def test_what_is_set_is_not_looked_for() -> None:
    assert await find(load(None, {}, {"notice.cloud": "aws"})) == Found(
        "aws", "aws, set by --cloud"
    )
    none = await find(load(None, {"EVAC_CLOUD": "none"}, {}))
    assert (none.cloud, none.how, none.cure) == ("", "none, set by EVAC_CLOUD", "")


async def test_a_cloud_that_announces_nothing_is_said_to_be_one_and_not_looked_for_again(
    tmp_path: Path,
) -> None:
    (tmp_path / "chassis_asset_tag").write_text("OracleCloud.com\n")

    found = await find(load(None, {}, {}), dmi=tmp_path)

    assert (found.cloud, found.final) == ("", True)
    assert "oracle" in found.how
    assert "--cloud none" in found.cure


def test_each_cloud_has_its_own_address_unless_one_is_set() -> None:
    own, ipv6 = load(None, {}, {}), load(None, {}, {"aws.ipv6": True})
    given = load(None, {}, {"aws.ipv6": True, "notice.metadata_url": "http://127.0.0.1:1"})

    assert url_of(own, "aws") == aws.URL
    assert url_of(ipv6, "aws") == aws.URL_IPV6
    assert url_of(ipv6, "gcp") == gcp.URL
    assert url_of(given, "aws") == "http://127.0.0.1:1"


# --- what the sources are told -----------------------------------------------------------


async def test_azure_is_told_to_go_ahead_once_and_only_where_that_is_wanted_and_all_is_saved() -> (
    None
):
    metadata = AzureMetadata()
    async with TestServer(metadata.app) as server:
        url = str(server.make_url("")).rstrip("/")
        given = {**ALONE, "notice.cloud": "azure", "notice.metadata_url": url}
        for wanted, saved, posts in ((False, True, 0), (True, False, 0), (True, True, 1)):
            async with listening(given={**given, "azure.acknowledge": wanted}) as scene:
                metadata.actions["preempt"]()
                await scene.node.until_heard("azure", Noticed)
                await scene.listener.let_go(all_saved=saved)
                await scene.listener.let_go(all_saved=saved)
            asked = [seen for seen in metadata.requests if seen.method == "POST"]
            assert len(asked) == posts
            metadata.actions["clear"]()


@pytest.mark.parametrize("wrong", [503, 429, None], ids=["503", "429", "no answer"])
async def test_azure_is_told_again_where_it_did_not_take_it_and_who_reads_is_told_once(
    wrong: int | None,
) -> None:
    metadata = AzureMetadata(rate=None)
    refused = 0

    async def refuse(request: web.Request) -> web.StreamResponse | None:
        nonlocal refused
        if request.method != "POST" or refused == 2:
            return None
        refused += 1
        if wrong is None and request.transport is not None:
            request.transport.abort()
        return web.Response(status=wrong or 503)

    async with TestServer(metadata.app) as server:
        url = str(server.make_url("")).rstrip("/")
        asked = {**ALONE, "notice.cloud": "azure", "notice.metadata_url": url}
        async with listening(given={**asked, "azure.acknowledge": True}) as scene:
            metadata.actions["preempt"]()
            await scene.node.until_heard("azure", Noticed)
            metadata.fault = refuse
            with capture_logs() as logs:
                async with asyncio.timeout(LIMIT):
                    while not any(log["event"] == "notice.acknowledged" for log in logs):
                        await scene.listener.let_go(all_saved=True)
                        await asyncio.sleep(0.01)

    assert refused == 2
    told = [log["event"] for log in logs if log["event"].startswith("notice.")]
    assert [each for each in told if "acknowledged" in each] == [
        "notice.unacknowledged",
        "notice.acknowledged",
    ]


async def test_a_source_that_asks_and_says_nothing_any_more_is_stuck_and_a_woken_one_is_not() -> (
    None
):
    asks, woken = Scripted("asks"), Scripted("woken")
    asks.patience = 0.0  # type: ignore[attr-defined]  # as those have that ask
    async with listening([asks, woken]) as scene:
        await asks.say(Quiet("asks"))
        await woken.say(Quiet("woken"))
        await asyncio.sleep(0.01)

        assert scene.listener.stuck() == ["asks"]

        asks.patience = 60.0  # type: ignore[attr-defined]
        assert scene.listener.stuck() == []
