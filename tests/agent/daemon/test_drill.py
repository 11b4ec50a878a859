"""A drill on a real node: real bytes move, nobody leaves, training goes on."""

import json
import shutil
import subprocess
import sys
from contextlib import ExitStack
from typing import Any

from evac import incident
from tests.agent.daemon.nodes import LIMIT, WINDOW, Node, out_of_reach, until

MEBI = 1 << 20


def drill(node: Node, *arguments: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "evac", "drill", "--json", "--socket", str(node.admin)]
    run = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120)
    return run.returncode, json.loads(run.stdout) if run.stdout else {"said": run.stderr}


def test_training_goes_on_and_stages_while_a_drill_flushes(node: Node) -> None:
    node.start("--cordon-command", "/bin/false")
    node.staged(1, job="big", nbytes=256 * MEBI, priority=9)
    training = node.staged(1, job="training")
    command = [
        sys.executable, "-m", "evac", "drill", "--flush", "--json", "--socket", str(node.admin),
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        step = 1
        while running.poll() is None:
            step += 1
            assert training.do("stage", step=step) == {}
        assert running.stdout
        report = json.load(running.stdout)

    assert running.returncode == 0
    assert report["lost"] == []
    assert {one["unit"].split("/")[-1] for one in report["units"]} == {"big", "training"}
    assert all(one["drilled_margin_seconds"] > 0 for one in report["units"])
    node.knows("training", step)
    assert training.do("order") == {"order": None}
    assert node.status()["order"] is None
    names = [event.name for event in node.events()]
    assert "flush.finished" in names
    assert not any(name.startswith(("cordon.", "departure.", "order.")) for name in names)


def test_it_is_on_record_as_a_drill(node: Node) -> None:
    node.start()
    node.staged(5)

    code, report = drill(node, "--flush")

    assert code == 0
    until("it is on record", lambda: incident.load(node.journal, id=report["id"]))
    (found,) = incident.load(node.journal, id=report["id"])
    assert (found.source, found.kind) == ("operator", "drill")


def test_without_flush_no_byte_moves_and_who_would_be_lost_is_named(node: Node) -> None:
    node.start("--plan-commit-reserve-seconds", "2")
    node.staged(5)

    code, report = drill(node, "--seconds", "1")

    assert code == 1
    assert [name.split("/")[-1] for name in report["lost"]] == ["job"]
    assert report["units"][0]["reason"]
    assert node.files() == []


def test_a_store_that_cannot_be_written_is_found_by_a_drill(node: Node) -> None:
    node.start()
    node.staged(5)
    # Until then probes come and go there.
    until("the store is measured", lambda: "lane.measured" in node.log.read_text())
    shutil.rmtree(node.store)
    node.store.write_text("no folder")

    code, report = drill(node, "--flush")

    assert code == 1
    assert report["units"][0]["drilled_lost"]


def test_under_an_order_it_is_refused(node: Node) -> None:
    node.start()
    node.staged(5)
    node.drain()

    code, answer = drill(node)

    assert code == 1
    assert "an evacuation is running" in answer["said"]


def test_a_notice_in_mid_drill_is_answered_at_once(node: Node) -> None:
    node.start()
    node.staged(5)
    # Until then probes come and go there.
    until("the store is measured", lambda: "lane.measured" in node.log.read_text())
    command = [sys.executable, "-m", "evac", "drill", "--flush", "--socket", str(node.admin)]
    command += ["--seconds", str(WINDOW)]
    # For as long as the store is away, the drill is in its flush.
    with out_of_reach(node.store), ExitStack() as ends:
        running = ends.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        ends.callback(running.kill)
        node.event("flush.started")
        node.drain()
        said, _ = running.communicate(timeout=LIMIT)
    outcomes = node.settled()

    assert [one["kept"] for one in outcomes.values()] == [True]
    assert running.returncode == 1
    assert "it gave way to a real flush" in said
