"""A real daemon with two stores: both are lanes, and one that fails costs nothing."""

import subprocess
import sys
from pathlib import Path

from evac.show import render_status
from tests.agent.daemon.nodes import Node, until


def test_two_stores_are_two_measured_lanes_and_a_broken_first_one_costs_nothing(
    node: Node, tmp_path: Path
) -> None:
    second = tmp_path / "second"
    second.mkdir()
    # No folder, so that not even root can write there.
    node.store.write_text("no folder")
    node.start("--store", f"file://{second}")
    node.staged(7)
    until("the second is measured", lambda: node.status()["lanes"][1]["measured"])

    first, other = node.status()["lanes"]
    assert (first["store"], first["measured"]) == (f"file://{node.store}", False)
    assert (other["store"], other["durable"], other["moving"]) == (f"file://{second}", True, None)
    assert "not measured yet" in render_status(node.status())

    node.drain()
    (kept,) = node.settled().values()

    assert (kept["kept"], kept["durable"], kept["store"]) == (True, True, f"file://{second}")
    assert list(second.rglob("__0.manifest.json"))
    names = {event.name for event in node.events()}
    assert not names & {"flush.lost", "flush.failed"}, "it never took a byte, and was asked first"


def test_where_the_only_store_is_dead_the_status_says_what_would_be_lost_and_a_drill_fails(
    node: Node,
) -> None:
    node.store.write_text("no folder")
    node.start()
    node.staged(7)
    until("the store is known to be dead", lambda: node.status()["risk"]["lost"])

    risk = node.status()["risk"]
    assert risk["margin_seconds"] < 0
    assert "nothing would be lost" not in render_status(node.status())
    drilled = subprocess.run(
        [sys.executable, "-m", "evac", "drill", "--socket", str(node.admin)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert drilled.returncode == 1, drilled.stdout
