"""An agent on a node with a real evacd, whose workers never say a word to it."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from evac.rendezvous.address import Address
from evac.rendezvous.events import Depart
from evac.rendezvous.own_node import OwnNode
from evac.rendezvous.state import Agent
from tests.handlers.rendezvous.nodes import Node, until, work_together
from tests.services.process import process


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Where an evacd runs that hears of no cloud."""
    command = [
        sys.executable, "-m", "evacd", "run",
        "--store", f"file://{tmp_path}/store",
        "--cloud", "none",
        "--no-http",
        "--shutdown-watch", "off",
        "--socket", f"{tmp_path}/evacd.sock",
        "--admin-socket", f"{tmp_path}/admin.sock",
        "--state-dir", f"{tmp_path}/state",
    ]  # fmt: skip
    with process(command, folder=tmp_path, ready=(tmp_path / "admin.sock").exists):
        yield tmp_path


def evac(home: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "evac", *arguments, "--socket", f"{home}/admin.sock"]
    subprocess.run(command, check=True, capture_output=True)


def test_an_order_to_its_evacd_makes_an_agent_leave(home: Path, tcpstore: Address) -> None:
    nodes = [
        Node(name, tcpstore, socket=str(home / "evacd.sock") if name == "b" else "/nowhere/x")
        for name in "abc"
    ]
    for node in nodes:
        node.start()
    until("the first round", work_together(nodes))

    evac(home, "drain", "--seconds", "30", "--no-wait")

    rest = [nodes[0], nodes[2]]
    until("two go on", work_together(rest))
    assert nodes[1].join() == 0
    for node in rest:
        node.finish()
    assert [node.join() for node in rest] == ["finished", "finished"]


def test_it_says_each_thing_once_and_takes_it_back() -> None:
    own = OwnNode("/nowhere/x", Agent("a-1", "a", "boot"), lambda _event: None)

    assert own.heard({"order": None}) is None
    assert own.heard({"order": {"id": "o1", "seconds_left": 30}}) == Depart(
        "leaving", "a", "boot", order="o1", seconds_left=30.0
    )
    assert own.heard({"order": {"id": "o1", "seconds_left": 20}}) is None
    assert own.heard({"order": None}) == Depart("staying", "a", "boot", order="o1")
    assert own.heard({}) is None
