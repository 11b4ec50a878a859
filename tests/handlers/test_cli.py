"""`evac` as people run it, against a real daemon."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.agent.daemon.nodes import Node, node_at, until


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    for node in node_at(tmp_path / "node"):
        yield node.start()


def evac(
    *arguments: object, environ: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "evac", *map(str, arguments)]
    variables = {**os.environ, **(environ or {})}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=variables)


def test_status_shows_who_is_on_board_and_what_is_staged(node: Node) -> None:
    node.staged(5, job="gpt", priority=100)

    shown = evac("status", "--socket", node.socket)

    assert shown.returncode == 0
    row = next(line for line in shown.stdout.splitlines() if "/gpt" in line)
    assert row.split()[1:4] == ["0/1", "100", "staged"]
    assert "step 5" in row
    assert "no order; listening" in shown.stdout
    assert "nothing would be lost" in shown.stdout


def test_status_as_json_is_json(node: Node) -> None:
    status = json.loads(evac("status", "--socket", node.socket, "--json").stdout)

    assert status["order"] is None
    assert status["workloads"] == []
    assert status["memory"]["used"] == 0


def test_drain_follows_the_order_and_says_that_all_was_saved(node: Node) -> None:
    node.staged(5, job="gpt")

    drained = evac("drain", "--seconds", 30, "--socket", node.admin)

    assert drained.returncode == 0
    assert "saved" in drained.stdout
    assert "1 saved, 0 lost" in drained.stderr


def test_drain_exits_1_where_something_was_lost(node: Node) -> None:
    node.workload("empty").ready()

    drained = evac("drain", "--seconds", 30, "--socket", node.admin)

    assert drained.returncode == 1
    assert "LOST" in drained.stdout


def test_drain_can_be_withdrawn(node: Node) -> None:
    given = evac("drain", "--no-wait", "--socket", node.admin)
    assert given.returncode == 0
    assert "LEAVING (operator drain, certain)" in given.stdout
    assert node.status()["order"]

    taken_back = evac("drain", "--cancel", "--socket", node.admin)
    assert (taken_back.returncode, taken_back.stdout) == (0, "the drain is withdrawn\n")

    assert node.status()["order"] is None
    as_json = evac("drain", "--no-wait", "--json", "--socket", node.admin)
    assert json.loads(as_json.stdout)["order"]
    as_json = evac("drain", "--cancel", "--json", "--socket", node.admin)
    assert json.loads(as_json.stdout)["order"] is None
    again = evac("drain", "--cancel", "--socket", node.admin)
    assert again.returncode == 1
    assert "no drain" in again.stderr


def test_who_stops_watching_a_drain_is_told_that_it_goes_on(node: Node) -> None:
    node.workload("index", mode="callback", need_seconds=8.0, behave="hang").do("connect")
    command = [sys.executable, "-m", "evac", "drain", "--seconds", "300"]
    with subprocess.Popen(
        [*command, "--socket", str(node.admin)], stderr=subprocess.PIPE, text=True
    ) as drain:
        assert drain.stderr is not None
        assert "running" in drain.stderr.readline()
        drain.send_signal(signal.SIGINT)
        said = drain.stderr.read()

    assert drain.returncode == 130
    assert said == "\nevac: the order goes on; to withdraw it: evac drain --cancel\n"
    assert node.status()["order"]


def test_a_longer_drain_says_that_the_running_deadline_stays(node: Node) -> None:
    assert evac("drain", "--seconds", 30, "--no-wait", "--socket", node.admin).stderr == ""
    id = node.status()["order"]["id"]

    longer = evac("drain", "--seconds", 100, "--socket", node.admin)

    assert longer.returncode == 0
    assert "deadline stays" in longer.stderr
    assert id in longer.stderr
    assert node.status()["order"]["seconds_left"] <= 30
    shorter = evac("drain", "--seconds", 5, "--no-wait", "--socket", node.admin)
    assert (shorter.returncode, shorter.stderr) == (0, "")
    assert node.status()["order"]["seconds_left"] <= 5


def test_a_drain_ends_with_how_to_see_its_timeline(node: Node) -> None:
    drained = evac("drain", "--seconds", 30, "--socket", node.admin)

    hint = drained.stdout.splitlines()[-1]
    assert hint == f"The timeline: evac report --journal {node.journal}"
    command = hint.removeprefix("The timeline: evac ").split()
    assert evac(*command, "--socket", node.socket).returncode == 0
    as_json = evac("drain", "--seconds", 30, "--socket", node.admin, "--json")
    assert json.loads(as_json.stdout)["order"]


def test_report_finds_the_journal_of_the_daemon_it_can_ask(node: Node) -> None:
    asked = evac("report", "--socket", node.socket)
    assert asked.returncode == 1
    assert f"{node.journal}: no evacuation is on record" in asked.stderr
    assert json.loads(evac("report", "--socket", node.socket, "--json").stdout) == []

    node.drain()
    node.event("order.given")

    assert evac("report", "--socket", node.socket).returncode == 0
    unknown = evac("report", "--socket", node.socket, "--id", "nobody-1")
    assert unknown.returncode == 1
    assert f"{node.journal}: no evacuation of order nobody-1" in unknown.stderr


@pytest.mark.parametrize("variable", ["EVAC_JOURNAL", "EVAC_STATE_DIR"])
def test_report_looks_where_the_environment_says(node: Node, variable: str) -> None:
    node.drain()
    node.event("order.given")
    node.kill()
    journal = node.journal if variable == "EVAC_JOURNAL" else node.journal.parent

    found = evac("report", "--socket", node.socket, environ={variable: str(journal)})

    assert found.returncode == 0
    elsewhere = evac(
        "report", "--socket", node.socket, environ={variable: str(node.home / "elsewhere")}
    )
    assert elsewhere.returncode == 2
    assert str(node.home / "elsewhere") in elsewhere.stderr


def test_drain_on_the_workload_socket_is_refused(node: Node) -> None:
    drained = evac("drain", "--no-wait", "--socket", node.socket)

    assert drained.returncode != 0
    assert node.status()["order"] is None


def test_report_works_with_the_daemon_dead(node: Node) -> None:
    node.staged(5, job="gpt")
    node.drain()
    node.settled()
    node.event("report.written")
    node.kill()

    report = evac("report", "--journal", node.journal, "--socket", node.socket)

    assert report.returncode == 0
    assert "flush finished" in report.stdout
    assert "1 of 1 workload kept" in report.stdout
    (told,) = json.loads(evac("report", "--journal", node.journal, "--json").stdout)
    assert told["source"] == "operator"


def test_report_of_a_machine_that_died_in_mid_flush_calls_it_torn(node: Node) -> None:
    node.staged(5, job="gpt", nbytes=768 << 20)
    node.drain()
    node.event("flush.started")
    node.kill()

    report = evac("report", "--journal", node.journal, "--socket", node.socket)

    assert "torn" in report.stdout
    assert "0 of 1 workload" in report.stdout


def test_ls_and_verify_tell_a_whole_generation_from_a_corrupt_one(node: Node) -> None:
    node.staged(5, job="gpt")
    node.drain()
    node.settled()
    store = f"file://{node.store}"

    listed = evac("ls", store)
    assert listed.returncode == 0
    assert "complete" in listed.stdout
    assert evac("verify", store).returncode == 0

    body = until("the body", lambda: next(node.store.rglob("part0.bin"), None))
    content = bytearray(body.read_bytes())
    content[1000] ^= 1
    body.write_bytes(content)

    verified = evac("verify", store)
    assert verified.returncode == 1
    assert "part0.bin" in verified.stdout + verified.stderr


def test_nothing_to_talk_to_is_exit_2_and_a_cure(tmp_path: Path) -> None:
    shown = evac("status", "--socket", tmp_path / "nobody.sock")

    assert shown.returncode == 2
    assert shown.stderr.count("s evacd running?") == 1
    assert "Traceback" not in shown.stderr


@pytest.mark.parametrize("wrong", ["99999", "-1", "x"])
def test_a_port_that_is_none_is_wrong_usage(wrong: str) -> None:
    served = evac("store", "--port", wrong)

    assert served.returncode == 2
    assert f"'{wrong}': expected a port, 0 to 65535" in served.stderr


def test_a_count_that_is_none_is_wrong_usage() -> None:
    for wrong in ("0", "-3", "x"):
        report = evac("report", "--last", wrong)

        assert report.returncode == 2
        assert f"'{wrong}': expected a whole number, 1 or more" in report.stderr


def test_no_journal_is_a_clear_error(tmp_path: Path) -> None:
    report = evac("report", "--journal", tmp_path / "none.sqlite")

    assert report.returncode == 2
    assert "none.sqlite" in report.stderr
    assert "Traceback" not in report.stderr


def test_the_help_names_every_command_and_the_exit_codes() -> None:
    shown = evac("--help").stdout

    for word in ("status", "drain", "report", "ls", "verify", "exit codes"):
        assert word in shown
