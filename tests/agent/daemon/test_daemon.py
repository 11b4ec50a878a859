"""The daemon as a process: starting, refusing, telling, standing down, stopping."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from evac.wire import Accepted, Refuse
from tests.agent.daemon.nodes import LIMIT, WINDOW, Node, node_at, until

MEBI = 1 << 20


def program(path: Path, body: str) -> str:
    """A cordon command: this interpreter with a file of its own."""
    path.write_text(body)
    return f"{sys.executable} {path}"


def test_two_daemons_on_one_socket_the_second_says_so_and_exits_1(node: Node) -> None:
    node.start()

    second = subprocess.run(node.command(), capture_output=True, text=True, timeout=30)

    assert second.returncode == 1
    assert "another evacd is running" in second.stderr
    assert node.status()["node"]


def test_a_missing_state_directory_is_made(node: Node) -> None:
    node.start("--state-dir", str(node.home / "deep" / "state"))

    assert (node.home / "deep" / "state" / "incidents.sqlite").exists()


def test_a_state_directory_that_cannot_be_is_a_clear_error(node: Node) -> None:
    (node.home / "file").write_text("")
    beneath = node.home / "file" / "state"

    run = subprocess.run(
        # Nor can the sockets' directory, which is used instead.
        node.command("--state-dir", str(beneath), "--socket", str(beneath / "evacd.sock")),
        capture_output=True,
        text=True,
        timeout=30,
    )

    assert run.returncode == 1
    assert str(beneath) in run.stderr
    assert "Traceback" not in run.stderr


def test_without_a_store_it_refuses_and_says_why(node: Node) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "evacd", "run", "--cloud", "none"],
        capture_output=True,
        text=True,
        timeout=30,
    )

    assert run.returncode == 2
    assert "--store" in run.stderr


def test_the_cordon_gets_the_order_and_is_undone_on_a_cancel(node: Node, tmp_path: Path) -> None:
    writes = "import sys; open(sys.argv[1], 'w').write(sys.stdin.read())"
    close = program(tmp_path / "close.py", writes) + f" {tmp_path / 'closed.json'}"
    reopen = program(tmp_path / "reopen.py", writes) + f" {tmp_path / 'reopened.json'}"
    node.start("--cordon-command", close, "--cordon-undo-command", reopen)
    node.drain()
    node.event("cordon.closed")

    assert node.cancel() == Accepted()

    node.event("cordon.reopened")
    closed = json.loads((tmp_path / "closed.json").read_text())
    assert closed["action"] == "close"
    assert 0 < closed["order"]["deadline_seconds_left"] <= WINDOW
    assert json.loads((tmp_path / "reopened.json").read_text())["action"] == "reopen"
    assert node.status()["order"] is None


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("slow", "import time; time.sleep(60)"),
        ("failing", "import sys; sys.exit('the scheduler said no')"),
    ],
)
def test_a_slow_or_failing_cordon_costs_the_flush_nothing(
    node: Node, tmp_path: Path, name: str, body: str
) -> None:
    command = program(tmp_path / f"{name}.py", body)
    node.start("--cordon-command", command, "--cordon-timeout-seconds", "20")
    node.staged(5)

    node.drain()
    outcomes = node.settled()

    assert [one["kept"] for one in outcomes.values()] == [True]
    if name == "failing":
        assert "the scheduler said no" in node.event("cordon.failed").data["reason"]


def test_a_departure_that_nobody_hears_costs_the_flush_nothing(node: Node) -> None:
    node.start(
        "--departure-webhook-url", "http://127.0.0.1:9/departures",
        "--departure-timeout-seconds", "1",
    )  # fmt: skip
    node.staged(5)

    node.drain()
    outcomes = node.settled()

    assert [one["kept"] for one in outcomes.values()] == [True]
    assert node.event("departure.failed", word="leaving").data["reason"]


def test_a_cancel_stands_the_workloads_down(node: Node) -> None:
    node.start()
    workload = node.staged(5)
    node.drain()
    until("the order arrives", lambda: workload.do("order")["order"])

    node.cancel()

    until("the workload stands down", lambda: workload.do("order")["order"] is None)


def test_a_cancel_without_a_drain_is_refused(node: Node) -> None:
    node.start()

    assert isinstance(node.cancel(), Refuse)


def test_a_second_drain_only_shortens_the_deadline(node: Node) -> None:
    node.start()
    node.drain(100.0)
    first = node.status()["order"]
    node.drain(1000.0)
    longer = node.status()["order"]
    node.drain(10.0)
    shorter = node.status()["order"]

    assert first["id"] == longer["id"] == shorter["id"]
    assert longer["seconds_left"] <= 100
    assert shorter["seconds_left"] <= 10


@pytest.mark.parametrize(
    ("behave", "need", "window", "kept", "reason"),
    [
        # An answer that is late counts for nothing, so who answers has all the time that it may take.
        ("save", LIMIT, WINDOW, True, None),
        ("fail", LIMIT, WINDOW, False, "the index is broken"),
        ("hang", 0.5, 3.0, False, ""),
    ],
)
def test_a_callback_workload_gets_its_turn_and_its_time(
    node: Node,
    tmp_path: Path,
    behave: str,
    need: float,
    window: float,
    kept: bool,
    reason: str | None,
) -> None:
    node.start("--plan-commit-reserve-seconds", "0")
    workload = node.workload(
        "index", mode="callback", need_seconds=need, behave=behave, file=str(tmp_path / "index.bin")
    )
    workload.do("connect")
    after = node.staged(5, job="after", priority=-1)

    node.drain(window)
    outcomes = {unit.split("/")[1]: one for unit, one in node.settled().items()}

    assert outcomes["index"]["kept"] is kept
    assert outcomes["after"]["kept"]
    assert after.process.poll() is None
    if reason:
        assert reason in outcomes["index"]["reason"]
    if kept:
        assert (tmp_path / "index.bin").stat().st_size == MEBI


def test_a_stop_during_an_order_finishes_what_it_began(node: Node) -> None:
    node.start()
    node.staged(5, nbytes=256 * MEBI)
    node.drain()
    node.event("flush.started")

    assert node.terminate() == 0

    assert [
        event.data["durable"] for event in node.events() if event.name == "commit.finished"
    ] == [True]


def test_a_stop_without_an_order_is_no_notice(node: Node) -> None:
    node.start()
    workload = node.staged(5)

    assert node.terminate() == 0

    assert node.files() == []
    assert workload.process.poll() is None
    assert not node.socket.exists()


def test_a_workload_outlives_the_daemon_and_comes_back(node: Node) -> None:
    node.start()
    workload = node.staged(5)
    node.kill()

    assert "refused" in workload.do("begin", step=6)

    node.start()
    # On board, and no longer in the middle of handing its slots back.
    until("it is back", lambda: workload.do("connect")["connected"])
    assert workload.do("reserve") == {}
    assert workload.do("stage", step=7) == {}
    node.knows("job", 7)


def test_the_journal_tells_the_whole_path(node: Node) -> None:
    node.start()
    node.staged(5)

    node.drain()
    node.settled()

    node.event("report.written")
    names = [event.name for event in node.events()]
    path = ["notice.seen", "order.given", "plan.made", "flush.started", "flush.finished",
            "commit.finished", "report.written"]  # fmt: skip
    assert [name for name in names if name in path] == path


def test_a_corrupt_journal_is_put_aside(tmp_path: Path) -> None:
    for node in node_at(tmp_path / "node"):
        (node.home / "state").mkdir()
        node.journal.write_bytes(b"this was never a database" * 100)
        node.start()
        node.staged(5)
        node.drain()
        node.settled()

        node.event("report.written")
