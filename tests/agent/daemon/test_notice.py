"""A notice on the wire, through the daemon, to the store: with simulators as the clouds."""

import asyncio
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from evac.wire import Accepted
from tests.agent.daemon.nodes import LIMIT, Node, node_at, until
from tests.agent.notice.shutdown.logind import HAS_DBUS, FakeLogind, PrivateBus


class Cloud:
    """`evacd simulate` in a process of its own."""

    def __init__(self, name: str = "gcp") -> None:
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, "-m", "evacd", "simulate", name, "--json"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout
        first = json.loads(self.process.stdout.readline())
        self.url: str = first["url"]
        self._control: str = first["control"]

    @property
    def flags(self) -> tuple[str, ...]:
        """By which a daemon hears it."""
        return ("--cloud", self.name, "--metadata-url", self.url)

    def do(self, what: str) -> None:
        """``preempt``, ``clear`` or another of its actions."""
        request = urllib.request.Request(f"{self._control}/{what}", method="POST")
        with urllib.request.urlopen(request, timeout=LIMIT) as answer:
            answer.read()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout
        self.process.stdout.close()


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    cloud = Cloud()
    yield cloud
    cloud.close()


@pytest.fixture
def node(tmp_path: Path, cloud: Cloud) -> Iterator[Node]:
    for node in node_at(tmp_path / "node"):
        yield node.start(*cloud.flags)


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Node]:
    """A node whose daemon is not started yet."""
    yield from node_at(tmp_path / "node")


@pytest.fixture
def of(request: pytest.FixtureRequest) -> Iterator[Cloud]:
    """The cloud that the test is parametrised with."""
    cloud = Cloud(request.param)
    yield cloud
    cloud.close()


def logged(node: Node, event: str) -> list[dict[str, Any]]:
    """Lines of the daemon's log."""
    lines = [json.loads(line) for line in node.log.read_text().splitlines() if line[:1] == "{"]
    return [line for line in lines if line["event"] == event]


def source(node: Node, name: str) -> dict[str, Any]:
    """One source as the status has it."""
    found: dict[str, Any] = {}
    for each in node.status()["sources"]:
        if each["source"] == name:
            found = each
    return found


def test_a_preemption_notice_saves_what_is_staged(node: Node, cloud: Cloud) -> None:
    node.staged(5)

    cloud.do("preempt")
    outcomes = until("the order settles", lambda: node.status()["outcomes"])

    assert [one["kept"] for one in outcomes] == [True]
    order = node.status()["order"]
    assert (order["source"], order["kind"], order["confidence"]) == (
        "gcp/preempted",
        "preempted",
        "certain",
    )
    assert 0 < order["seconds_left"] <= 30


def test_a_notice_before_anybody_is_on_board_waits_for_them(node: Node, cloud: Cloud) -> None:
    cloud.do("preempt")
    until("the order is given", lambda: node.status()["order"])

    late = node.staged(5)

    until("the late one is saved", lambda: node.status()["outcomes"])
    assert late.do("order")["order"] == node.status()["order"]["id"]


def test_a_notice_that_goes_away_stands_everybody_down(node: Node, cloud: Cloud) -> None:
    workload = node.staged(5)
    cloud.do("preempt")
    until("the order arrives", lambda: workload.do("order")["order"])

    cloud.do("clear")

    until("the workload stands down", lambda: workload.do("order")["order"] is None)
    assert node.status()["order"] is None


def test_a_metadata_service_that_dies_is_told_and_fires_nothing(node: Node, cloud: Cloud) -> None:
    until("the source answers", lambda: [s for s in node.status()["sources"] if s["answers"]])

    cloud.close()

    degraded = until(
        "the source is degraded",
        lambda: [s for s in node.status()["sources"] if not s["answers"]],
    )
    assert degraded[0]["reason"]
    assert node.status()["order"] is None


# --- the other clouds -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of", "kind", "by", "most"),
    [("aws", "terminate", "aws/spot", 120.0), ("azure", "preempt", "azure", 30.0)],
    indirect=["of"],
)
def test_each_cloud_s_notice_saves_what_is_staged(
    of: Cloud, bare: Node, kind: str, by: str, most: float
) -> None:
    bare.start(*of.flags)
    bare.staged(5)

    of.do("preempt")
    outcomes = until("the order settles", lambda: bare.status()["outcomes"])

    assert [one["kept"] for one in outcomes] == [True]
    order = bare.status()["order"]
    assert (order["source"], order["kind"].lower()) == (by, kind)
    assert order["seconds_left"] <= most
    assert bare.status()["cloud"]["cloud"] == of.name


@pytest.mark.parametrize("of", ["azure"], indirect=True)
def test_an_azure_event_that_vanishes_stands_everybody_down(of: Cloud, bare: Node) -> None:
    bare.start(*of.flags)
    workload = bare.staged(5)
    of.do("preempt")
    until("the order arrives", lambda: workload.do("order")["order"])

    of.do("clear")

    until("the workload stands down", lambda: workload.do("order")["order"] is None)
    assert bare.status()["order"] is None


@pytest.mark.parametrize("of", ["aws"], indirect=True)
def test_a_notice_that_stands_for_many_polls_is_one_line_and_one_order(
    of: Cloud, bare: Node
) -> None:
    bare.start(*of.flags, "--poll-seconds", "0.2", "--http", "--http-port", "0")
    of.do("preempt")
    until("it was told five times", lambda: _metric(bare, "notice") >= 5)

    assert len(logged(bare, "notice.heard")) == 1
    assert len(logged(bare, "order.given")) == 1
    assert logged(bare, "order.amended") == []


def _metric(node: Node, outcome: str) -> float:
    for line in _page(node, "/metrics")[1].splitlines():
        if line.startswith("evac_probe_requests_total{") and f'outcome="{outcome}"' in line:
            return float(line.split()[-1])
    return 0.0


@pytest.mark.parametrize("of", ["aws"], indirect=True)
def test_advice_neither_orders_nor_cordons(of: Cloud, bare: Node, tmp_path: Path) -> None:
    cordoned = tmp_path / "cordoned"
    bare.start(*of.flags, "--cordon-command", f"touch {cordoned}")
    bare.staged(5)

    of.do("rebalance")
    until("it is told", lambda: logged(bare, "notice.advised"))
    of.do("clear")
    until("it is taken back", lambda: logged(bare, "notice.withdrawn"))

    assert bare.status()["order"] is None
    assert not cordoned.exists()


@pytest.mark.parametrize("of", ["aws"], indirect=True)
def test_advice_that_still_stands_is_told_again(of: Cloud, bare: Node) -> None:
    bare.start(*of.flags, "--poll-seconds", "0.2", "--advise-again-seconds", "0.3")

    of.do("rebalance")

    until("it is told again", lambda: len(logged(bare, "notice.advised")) > 2)
    assert len(logged(bare, "notice.heard")) == 1


@pytest.mark.parametrize("of", ["azure"], indirect=True)
def test_azure_is_told_to_go_ahead_when_all_is_saved_where_that_is_wanted(
    of: Cloud, bare: Node
) -> None:
    bare.start(*of.flags, "--azure-acknowledge")
    bare.staged(5)

    of.do("preempt")

    until("it is acknowledged", lambda: logged(bare, "notice.acknowledged"))
    saved = [line["event"] for line in map(json.loads, bare.log.read_text().splitlines())]
    assert saved.index("flush.finished") < saved.index("notice.acknowledged")
    until("it has started", lambda: bare.status()["order"]["confidence"] == "started")


# --- sources of one's own, side by side ---------------------------------------------------


def test_a_file_is_heard_while_a_source_beside_it_is_broken(bare: Node, tmp_path: Path) -> None:
    file = tmp_path / "notice.json"
    bare.start("--user-file", str(file), "--user-exec", "false", "--user-period-seconds", "0.1")
    bare.staged(5)
    broken = until("the program is degraded", lambda: source(bare, "exec").get("reason"))
    assert "exit code 1" in broken
    assert bare.status()["order"] is None

    notice = {"id": "1", "kind": "reclaim", "confidence": "certain", "seconds_left": 60}
    _write(file, {"notices": [notice]})
    until("the order settles", lambda: bare.status()["outcomes"])
    assert bare.status()["order"]["source"] == "file"

    _write(file, {"notices": []})
    until("it is taken back", lambda: bare.status()["order"] is None)
    assert source(bare, "file")["answers"]
    assert not source(bare, "exec")["answers"]


def _write(path: Path, document: dict[str, Any]) -> None:
    aside = path.with_suffix(".new")
    aside.write_text(json.dumps(document))
    aside.rename(path)


# --- the machine's own shutdown -------------------------------------------------------------

# Silent, so that a sign can come from files alone.
_NO_BUS = ("--shutdown-watch", "auto", "--shutdown-bus-address", "unix:path=/nonexistent")


def test_a_sigterm_with_a_second_sign_is_a_notice_and_the_order_is_finished(
    bare: Node, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    bare.start(*_NO_BUS, "--shutdown-run-dir", str(run))
    bare.staged(5)
    (run / "systemd/shutdown").mkdir(parents=True)
    (run / "systemd/shutdown/scheduled").write_text("USEC=1\nWARN_WALL=1\nMODE=poweroff\n")

    assert bare.terminate() == 0

    assert [line["detail"] for line in logged(bare, "notice.heard")] == [
        "SIGTERM, and a poweroff is scheduled"
    ]
    assert [line["source"] for line in logged(bare, "order.given")] == ["shutdown"]
    bare.event("flush.finished")
    assert any("manifest" in name for name in bare.files())


def test_a_sigterm_alone_is_no_notice(bare: Node, tmp_path: Path) -> None:
    bare.start(*_NO_BUS, "--shutdown-run-dir", str(tmp_path))
    bare.staged(5)

    assert bare.terminate() == 0

    assert logged(bare, "order.given") == []
    assert bare.events() == []


def test_what_is_switched_off_is_not_asked_at_a_sigterm(bare: Node, tmp_path: Path) -> None:
    (tmp_path / "nologin").touch()
    bare.start("--shutdown-watch", "off", "--shutdown-run-dir", str(tmp_path))

    assert bare.terminate() == 0

    assert logged(bare, "order.given") == []


@pytest.mark.skipif(not HAS_DBUS, reason="dbus-daemon is not installed")
async def test_a_shutdown_waits_for_the_flush_and_no_longer(bare: Node, tmp_path: Path) -> None:
    bus = PrivateBus(tmp_path)
    await bus.start()
    logind = FakeLogind(bus.address, delay_seconds=60.0)
    await logind.start()
    try:
        await asyncio.to_thread(
            bare.start, "--shutdown-watch", "on", "--shutdown-bus-address", bus.address
        )
        await logind.until_held(1)
        await asyncio.to_thread(bare.staged, 5)

        logind.shut_down()
        # Long before its delay is over.
        assert await logind.until_down()

        saved = await asyncio.to_thread(bare.settled)
        assert [one["kept"] for one in saved.values()] == [True]
    finally:
        await logind.die()
        await bus.stop()


@pytest.mark.skipif(not HAS_DBUS, reason="dbus-daemon is not installed")
async def test_a_shutdown_after_all_is_saved_does_not_wait(bare: Node, tmp_path: Path) -> None:
    bus = PrivateBus(tmp_path)
    await bus.start()
    logind = FakeLogind(bus.address, delay_seconds=60.0)
    await logind.start()
    try:
        await asyncio.to_thread(
            bare.start, "--shutdown-watch", "on", "--shutdown-bus-address", bus.address
        )
        await logind.until_held(1)
        await asyncio.to_thread(bare.staged, 5)
        await asyncio.to_thread(bare.drain)
        await asyncio.to_thread(bare.settled)

        logind.shut_down()

        assert await logind.until_down()
    finally:
        await logind.die()
        await bus.stop()


# --- what can be read -------------------------------------------------------------------


def _page(node: Node, path: str) -> tuple[int, str]:
    url = node.status()["http"]["url"] + path
    try:
        with urllib.request.urlopen(url, timeout=LIMIT) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.parametrize("of", ["aws"], indirect=True)
def test_health_and_metrics_of_a_daemon_whose_cloud_goes_silent(of: Cloud, bare: Node) -> None:
    bare.start(
        *of.flags, "--poll-seconds", "0.2",
        "--http", "--http-port", "0", "--http-degraded-seconds", "0.1",
    )  # fmt: skip
    until("it is ready", lambda: _page(bare, "/readyz")[0] == 200)
    assert _page(bare, "/healthz")[0] == 200
    assert "evac_order_active 0.0" in _page(bare, "/metrics")[1]

    of.close()

    until("it is not ready", lambda: _page(bare, "/readyz")[0] == 503)
    assert "aws/spot: no answer for" in json.loads(_page(bare, "/readyz")[1])["sources"]
    # A restart would cost what is staged and bring no answer back.
    assert _page(bare, "/healthz")[0] == 200
    assert bare.status()["order"] is None


def test_a_daemon_that_has_heard_nothing_yet_is_not_ready_and_says_why(bare: Node) -> None:
    bare.start(
        "--cloud", "aws", "--metadata-url", "http://127.0.0.1:1", "--http", "--http-port", "0"
    )  # fmt: skip

    status, why = _page(bare, "/readyz")

    assert status == 503
    assert "aws" in json.loads(why)["sources"]
    assert json.loads(why)["sockets"] == "ok"


def test_a_store_that_takes_nothing_makes_the_node_unready_and_says_why(
    bare: Node, tmp_path: Path
) -> None:
    blocked = tmp_path / "a-file"
    blocked.write_text("no directory")
    bare.store = blocked / "store"
    bare.start("--http", "--http-port", "0")

    def said() -> str | None:
        status, why = _page(bare, "/readyz")
        store: str = json.loads(why)["store"]
        return store if status == 503 and "nothing was written there yet" not in store else None

    assert f"file://{blocked}/store: " in until("what is wrong is said", said)


def test_a_store_that_was_measured_is_one_to_count_on(bare: Node) -> None:
    bare.start("--http", "--http-port", "0")

    until("it is ready", lambda: _page(bare, "/readyz")[0] == 200)
    assert json.loads(_page(bare, "/readyz")[1])["store"] == "ok"


def test_what_is_announced_for_later_is_shown(bare: Node, tmp_path: Path) -> None:
    told = tmp_path / "notice.json"
    when = datetime.now(UTC) + timedelta(hours=3)
    told.write_text(
        json.dumps(
            {
                "notices": [
                    {
                        "id": "x",
                        "kind": "reboot",
                        "confidence": "planned",
                        "deadline": when.isoformat(),
                    }
                ]
            }
        )
    )
    bare.start("--user-file", str(told), "--http", "--http-port", "0")

    (notice,) = until("it is shown", lambda: bare.status().get("notices"))

    assert (notice["source"], notice["kind"], notice["confidence"]) == ("file", "reboot", "planned")
    assert 10_000 < notice["starts_in"] <= notice["seconds_left"] <= 10_800
    assert bare.status()["order"] is None
    assert 'evac_notices_standing{confidence="planned"} 1.0' in _page(bare, "/metrics")[1]


def test_a_second_daemon_on_the_port_runs_without_it_and_says_so(
    bare: Node, tmp_path: Path
) -> None:
    bare.start("--http", "--http-port", "0")
    port = bare.status()["http"]["url"].rpartition(":")[2]
    for other in node_at(tmp_path / "other"):
        other.start("--http", "--http-port", port)

        assert other.status()["http"]["url"] == ""
        assert "in use" in other.status()["http"]["reason"]
        assert isinstance(other.drain(), Accepted)
