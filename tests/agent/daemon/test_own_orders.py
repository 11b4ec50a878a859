"""`evac leave`: a job has its own state saved, and nobody else notices."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evac import incident
from evac.admin import request
from evac.wire import Ordered, Refuse, Save
from evacd.allowance import Allowance
from tests.agent.daemon.nodes import LIMIT, Node, until


def leave(node: Node, job: str, *flags: str) -> "subprocess.CompletedProcess[str]":
    """As a preStop hook does."""
    return subprocess.run(
        [sys.executable, "-m", "evac", "leave", "--socket", str(node.socket), *flags],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "EVAC_JOB": job},
    )


def left(node: Node, job: str) -> dict[str, Any]:
    """What the status says of the order of *job*."""
    found: list[dict[str, Any]] = node.status()["leaving"]
    return next(one for one in found if one["unit"].endswith(f"/{job}"))


def files_of(node: Node, job: str) -> list[str]:
    return [path for path in node.files() if f"/{job}/" in path and "/step-" in path]


def test_what_was_staged_is_durable_when_it_returns_and_nobody_else_is_disturbed(
    node: Node,
) -> None:
    node.start()
    node.staged(7, "mine")
    other = node.staged(9, "other")

    done = leave(node, "mine", "--within", "120")

    assert done.returncode == 0, done.stderr
    assert "saved  " in done.stdout
    assert "mine: step 7, 1.05 MB" in done.stdout
    assert any("step-7." in path for path in files_of(node, "mine"))
    assert files_of(node, "other") == []
    assert node.status()["order"] is None
    assert other.do("order") == {"order": None}
    assert other.do("stage", step=10) == {}
    [told] = incident.load(node.journal)
    assert (told.source, told.kind) == ("workload", "leave")
    names = [event.name for event in told.events]
    assert names[0] == "order.given"
    assert told.events[0].data["scope"] == "workload"
    assert names[-3:] == ["flush.finished", "commit.finished", "report.written"]
    assert incident.summary(told).whole
    report = subprocess.run(
        [sys.executable, "-m", "evac", "report", "--journal", str(node.journal)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "workload leave" in report.stdout


def test_a_dead_process_of_the_same_user_can_be_saved_for(node: Node) -> None:
    node.start()
    node.staged(7, "mine").kill()

    done = leave(node, "mine", "--json")

    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["state"], told["generation"]["step"], told["durable"]) == ("kept", 7, True)


def test_what_is_durable_already_is_no_byte_more(node: Node) -> None:
    node.start()
    node.staged(7, "mine")
    assert leave(node, "mine").returncode == 0

    again = leave(node, "mine")

    assert again.returncode == 0
    assert "step 7 was durable already" in again.stdout


def test_who_has_staged_nothing_is_told_so(node: Node) -> None:
    node.start()
    node.workload("mine").ready()

    done = leave(node, "mine", "--within", "5")

    assert done.returncode == 1
    assert done.stdout.startswith("LOST ")
    assert "nothing was staged" in done.stdout


def test_a_callback_workload_gets_its_turn(node: Node, tmp_path: Path) -> None:
    node.start()
    file = tmp_path / "index"
    node.workload(
        "index", mode="callback", need_seconds=5.0, file=str(file), nbytes=1000
    ).do("connect")  # fmt: skip

    done = leave(node, "index", "--within", "120")

    assert done.returncode == 0, done.stderr
    assert "its own flush, 1.00 kB" in done.stdout
    assert file.stat().st_size == 1000


def test_a_callback_workload_that_fails_is_lost_with_its_reason(node: Node) -> None:
    node.start()
    node.workload("index", mode="callback", need_seconds=5.0, behave="fail").do("connect")

    done = leave(node, "index", "--within", "120")

    assert done.returncode == 1
    assert "the index is broken" in done.stdout


def test_in_a_node_order_it_is_part_of_that(node: Node) -> None:
    node.start()
    node.staged(7, "mine")
    node.drain()
    node.settled()

    done = leave(node, "mine", "--within", "120")

    assert done.returncode == 0, done.stderr
    status = node.status()
    assert left(node, "mine")["order"] == status["order"]["id"]
    assert [one.source for one in incident.load(node.journal, last=9)] == ["operator"]


def test_asked_again_the_sooner_deadline_counts(node: Node) -> None:
    node.start()
    job = node.workload("index", mode="callback", need_seconds=5.0, behave="hang")
    job.do("connect")
    first = request(node.socket, Save(job="index", seconds=3600.0), timeout=LIMIT)
    second = request(node.socket, Save(job="index", seconds=60.0), timeout=LIMIT)
    third = request(node.socket, Save(job="index", seconds=900.0), timeout=LIMIT)

    assert first == second == third
    assert isinstance(first, Ordered)
    assert left(node, "index")["seconds_left"] <= 60.0
    job.kill()
    until("it has settled", lambda: left(node, "index")["settled"])
    assert "its process died" in left(node, "index")["reason"]


@pytest.mark.parametrize(
    ("job", "flags", "code", "said"),
    [
        ("nobody", (), 1, "no job nobody of user"),
        ("", (), 2, "which job? Give --job, or set EVAC_JOB"),
        ("../x", (), 2, "save.job"),
        ("mine", ("--within", "nan"), 2, "save.seconds"),
    ],
)
def test_what_cannot_be_is_said_in_words(
    node: Node, job: str, flags: tuple[str, ...], code: int, said: str
) -> None:
    node.start()
    done = leave(node, job, *flags)
    assert done.returncode == code
    assert said in done.stderr
    assert done.stdout == ""


def test_without_a_daemon_it_is_two(node: Node) -> None:
    done = leave(node, "mine")
    assert done.returncode == 2
    assert "no such socket" in done.stderr


def test_a_daemon_that_is_stopped_finishes_it_first(node: Node) -> None:
    node.start()
    node.staged(7, "mine")
    assert isinstance(request(node.socket, Save("mine", 20.0), timeout=LIMIT), Ordered)
    assert node.terminate() == 0
    assert any("step-7." in path for path in files_of(node, "mine"))
    assert not isinstance(incident.load(node.journal)[0].ended, type(None))


def test_nobody_fills_the_journal(node: Node) -> None:
    allowance: Allowance[int] = Allowance(2, every=60.0)
    assert [allowance.take(1, now=float(at)) for at in range(4)] == [True, True, False, False]
    assert allowance.take(2, now=4.0)
    assert [allowance.take(1, now=at) for at in (100.0, 101.0)] == [True, False]

    node.start()
    node.staged(1, "mine")
    answers = [request(node.socket, Save("mine", 20.0), timeout=LIMIT)]
    while isinstance(answers[-1], Ordered) and len(answers) < 200:
        until("it has settled", lambda: left(node, "mine")["settled"])
        answers.append(request(node.socket, Save("mine", 20.0), timeout=LIMIT))
    assert isinstance(answers[-1], Refuse)
    assert "has asked too often" in answers[-1].reason
    assert len(incident.load(node.journal, last=500)) <= 40
