"""`evac` as people run it, against a real daemon."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.daemon.nodes import Node, node_at, until


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    for node in node_at(tmp_path / "node"):
        yield node.start()


def evac(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "evac", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_status_shows_who_is_on_board_and_what_is_staged(node: Node) -> None:
    node.staged(5, job="gpt", priority=100)

    shown = evac("status", "--socket", node.socket)

    assert shown.returncode == 0
    row = next(line for line in shown.stdout.splitlines() if "/gpt" in line)
    assert row.split()[1:4] == ["0/1", "100", "staged"]
    assert "step 5" in row
    assert "no order; listening" in shown.stdout


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
    assert evac("drain", "--no-wait", "--socket", node.admin).returncode == 0
    assert node.status()["order"]

    assert evac("drain", "--cancel", "--socket", node.admin).returncode == 0

    assert node.status()["order"] is None
    again = evac("drain", "--cancel", "--socket", node.admin)
    assert again.returncode == 1
    assert "no drain" in again.stderr


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
    assert "Is evacd running?" in shown.stderr
    assert "Traceback" not in shown.stderr


def test_no_journal_is_a_clear_error(tmp_path: Path) -> None:
    report = evac("report", "--journal", tmp_path / "none.sqlite")

    assert report.returncode == 2
    assert "none.sqlite" in report.stderr
    assert "Traceback" not in report.stderr


def test_the_help_names_every_command_and_the_exit_codes() -> None:
    shown = evac("--help").stdout

    for word in ("status", "drain", "report", "ls", "verify", "exit codes"):
        assert word in shown
