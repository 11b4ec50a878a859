"""An agent whose node stays tells its evacd what the job has agreed on; hostile words of others do not."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from evac.admin import request
from evac.rendezvous import log
from evac.rendezvous.address import Address
from evac.rendezvous.events import Depart, encode
from evac.show import render_status
from evac.wire import Accepted, Pin, Refuse
from tests.agent.daemon.nodes import Node as Machine
from tests.agent.daemon.nodes import Workload, node_at
from tests.handlers.rendezvous.nodes import Node, open_keys, until, work_together

nightly = pytest.mark.skipif(
    os.environ.get("EVAC_NIGHTLY") != "1", reason="takes seconds: EVAC_NIGHTLY=1 runs it"
)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    for one in node_at(tmp_path / "machine"):
        yield one.start()


def pins(machine: Machine) -> list[tuple[int, bool]]:
    return [(one["step"], one["held"]) for one in machine.status()["pins"]]


def kept(machine: Machine) -> set[int]:
    (one,) = machine.status()["workloads"]
    return {slot["step"] for slot in one["slots"] if slot["state"] == "complete"}


def staged(machine: Machine, *steps: int, world: int = 1) -> Workload:
    worker = machine.workload(world=world).ready()
    for step in steps:
        assert worker.do("stage", step=step) == {}
        machine.knows("job", step)
    return worker


def test_what_one_leaves_with_stays_in_the_memory_of_who_stays(
    machine: Machine, tcpstore: Address
) -> None:
    worker = staged(machine, 1, 2, 3)
    [prefix] = {one["unit"] for one in machine.status()["workloads"]}
    nodes = [
        Node(name, tcpstore, socket=str(machine.socket) if name == "b" else "/nowhere/x")
        for name in "abc"
    ]
    for node in nodes:
        node.start()
    until("the first round", work_together(nodes))

    def say(word: str, sequence: int, step: int = 2) -> None:
        event = Depart(word, "a", "boot", sequence, step=step, incarnation=1, job=prefix)
        keys = open_keys(tcpstore)
        found = log.snapshot(keys)
        log.append(keys, found.at if found else 0, encode(event))
        keys.close()

    say("leaving", 1)
    until("it is pinned", lambda: pins(machine) == [(2, True)])
    for step in (4, 5, 6):
        assert worker.do("stage", step=step) == {}
        machine.knows("job", step)

    assert kept(machine) >= {2, 6}
    (slot,) = [s for s in machine.status()["workloads"][0]["slots"] if s["step"] == 2]
    assert slot["pinned"]
    # Its agent has gone, and its node then stays after all.
    assert nodes[0].join() == 0
    say("staying", 2)
    until("its node stays", lambda: pins(machine) == [])
    for node in nodes[1:]:
        node.finish()
    assert [node.join() for node in nodes[1:]] == ["finished", "finished"]


def test_it_ends_when_the_job_has_resumed_and_of_a_strange_job_nothing_is_pinned(
    machine: Machine,
) -> None:
    worker = staged(machine, 1, 2, 3)
    [prefix] = {one["unit"] for one in machine.status()["workloads"]}
    assert request(machine.socket, Pin(prefix, 1, 9), timeout=10) == Accepted()
    assert pins(machine) == [(9, False)]
    # What was not even there gives way to what is.
    assert request(machine.socket, Pin(prefix, 1, 2), timeout=10) == Accepted()
    assert pins(machine) == [(2, True)]
    for strange in ("root/other", "", "../..", "x" * 256):
        answer = request(machine.socket, Pin(strange, 2**53, 2**53), timeout=10)
        assert isinstance(answer, Refuse)
    assert "step 2: what its nodes agreed on" in render_status(machine.status())

    assert worker.do("reserve", incarnation=2) == {}
    assert worker.do("stage", step=3) == {}
    until("it has resumed", lambda: pins(machine) == [])

    answer = request(machine.socket, Pin(prefix, 1, 2), timeout=10)
    assert isinstance(answer, Refuse)
    assert "resumed since" in answer.reason


def test_who_stays_saves_that_of_its_dead_workers(machine: Machine) -> None:
    """The others' parts of it are saved elsewhere; of their newest there are none."""
    worker = staged(machine, 1, 2, 3, world=2)
    [prefix] = {one["unit"] for one in machine.status()["workloads"]}
    request(machine.socket, Pin(prefix, 1, 2), timeout=10)

    worker.kill()

    until("it is saved", lambda: f"{prefix}/step-2.1/__0.manifest.json" in machine.files())
    assert not [one for one in machine.files() if "step-3.1" in one]


@nightly
def test_a_pin_outlives_the_daemon(machine: Machine) -> None:
    worker = staged(machine, 1, 2, 3)
    [prefix] = {one["unit"] for one in machine.status()["workloads"]}
    assert request(machine.socket, Pin(prefix, 1, 2), timeout=10) == Accepted()

    machine.kill()
    machine.start()
    until("it is on board", lambda: worker.do("connect")["connected"])
    until("its memory is back", lambda: pins(machine) == [(2, True)])
