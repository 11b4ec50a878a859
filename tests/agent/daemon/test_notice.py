"""A notice on the wire, through the daemon, to the store: with the simulator as the cloud."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.daemon.nodes import Node, node_at, until


class Cloud:
    """`evacd simulate gcp` in a process of its own."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "evacd", "simulate", "gcp", "--json"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout
        first = json.loads(self.process.stdout.readline())
        self.url: str = first["url"]
        self._control: str = first["control"]

    def do(self, what: str) -> None:
        """``preempt`` or ``clear``."""
        request = urllib.request.Request(f"{self._control}/{what}", method="POST")
        with urllib.request.urlopen(request, timeout=5) as answer:
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
        yield node.start("--cloud", "gcp", "--metadata-url", cloud.url)


def test_a_preemption_notice_saves_what_is_staged(node: Node, cloud: Cloud) -> None:
    node.staged(5)

    cloud.do("preempt")
    outcomes = until("the order settles", lambda: node.status()["outcomes"])

    assert [one["kept"] for one in outcomes] == [True]
    order = node.status()["order"]
    assert (order["source"], order["kind"], order["confidence"]) == ("gcp/preempted", "preempted", "certain")
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
