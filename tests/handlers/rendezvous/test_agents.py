"""Real torchrun agents with gloo workers, each a node of its own on loopback.

`make test` runs the first ones; ``EVAC_NIGHTLY=1`` all of them, over and over.
"""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from evac.rendezvous.address import Address
from tests.handlers.rendezvous.agents import Job, now
from tests.handlers.rendezvous.nodes import HOST, depart, local, port_of
from tests.services.process import free_port

nightly = pytest.mark.skipif(
    os.environ.get("EVAC_NIGHTLY") != "1", reason="takes minutes: EVAC_NIGHTLY=1 runs it"
)
Start = Callable[..., Job]


@pytest.fixture
def store_port(tmp_path: Path) -> Iterator[int]:
    """`evac store`, in a process of its own."""
    with (tmp_path / "store.log").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "evac", "store", "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    assert process.stdout is not None
    line = process.stdout.readline().decode()
    assert line.startswith("serving on port ")
    yield int(line.split()[-1])
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    process.stdout.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Makes a job and starts its nodes; the first is its host where no store is there."""
    jobs: list[Job] = []

    def make(nodes: str = "abc", **options: object) -> Job:
        port = options.pop("port", None)
        run = str(options.get("run", "run"))
        job = Job(tmp_path / run, port=port or free_port(), **options)  # type: ignore[arg-type] # passed on
        jobs.append(job)
        for node in nodes:
            job.start(node, is_host=int(port is None and node == nodes[0]))
        job.trains(nodes)
        return job

    yield make
    for job in jobs:
        job.close()


def place(job: Job, scheme: str = "tcpstore") -> Address:
    return Address(scheme, HOST, job.port, f"evac/{job.run}")


def moved(job: Job) -> Address:
    """Where the job's log lies by now, as its workers were told."""
    last = max(job.events(), key=lambda event: float(event["at"]))
    return local(port_of(str(last["rendezvous"]).split("/")[2]))


def in_order(job: Job) -> None:
    """No step was lost and none done twice."""
    steps = job.steps_in_order()
    assert steps == list(range(1, len(steps) + 1))


def test_three_become_two_and_three_again_and_finish(start: Start, store_port: int) -> None:
    job = start(port=store_port, pause=0.02)
    before = now()

    depart(place(job), "a")

    job.trains("bc", after=before)
    assert job.ended("a") == 0
    before = now()
    job.start("d", is_host=0)
    job.trains("bcd", after=before)
    job.finish()
    assert [job.ended(node) for node in "bcd"] == [0, 0, 0]
    assert job.restarts() == 0
    in_order(job)


def test_the_host_gets_a_notice_and_is_killed_at_once(start: Start) -> None:
    job = start()
    before = now()

    depart(place(job), "a")
    # Long enough for an agent to look, too short for it to leave.
    job.wait("a survivor knows", lambda: "is over" in job.log_of("b"))
    job.signal("a", signal.SIGKILL)

    job.trains("bc", after=before)
    assert job.restarts() == 0
    in_order(job)


def test_torchrun_finds_the_backend_by_its_name(tmp_path: Path) -> None:
    """... and says what is wrong with an option."""
    job = Job(tmp_path / "job")
    job.start("a", store="paper")

    assert job.ended("a") == 1
    assert "store: expected tcpstore or etcd, got 'paper'" in job.log_of("a")


def test_nothing_is_loaded_before_torchrun_asks_for_it() -> None:
    code = (
        "import sys, torch.distributed.elastic.rendezvous as r\n"
        "assert 'evac.rendezvous' in sys.modules\n"
        "assert not [m for m in sys.modules if m.startswith('evac.rendezvous.')]\n"
        "from torch.distributed.elastic.rendezvous import rendezvous_handler_registry as registry\n"
        "assert 'evac' in registry._registry\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@nightly
@pytest.mark.parametrize("kind", ["tcpstore", "embedded", "etcd"])
@pytest.mark.parametrize("victim", ["a", "b", "c"])
@pytest.mark.parametrize("kill_after", [None, 0.0, 0.2, 1.0, 5.0])
def test_any_victim_over_any_store(
    start: Start,
    request: pytest.FixtureRequest,
    kind: str,
    victim: str,
    kill_after: float | None,
) -> None:
    fixture = {"tcpstore": "store_port", "etcd": "etcd_port"}.get(kind)
    port = request.getfixturevalue(fixture) if fixture else None
    conf = {"store": "etcd"} if kind == "etcd" else {}
    run = f"{kind}-{victim}-{kill_after}"
    job = start(port=port, conf=conf, run=run, max_restarts=1)
    before = now()

    depart(place(job, "etcd" if kind == "etcd" else "tcpstore"), victim)
    if kill_after is not None:
        job.wait("the time is over", lambda: now() - before >= kill_after)
        job.signal(victim, signal.SIGKILL)

    job.trains(set("abc") - {victim}, after=before)
    if kill_after is None or kill_after >= 0.2:
        assert job.restarts() == 0


@nightly
def test_two_at_once_and_one_of_them_the_host(start: Start) -> None:
    job = start("abcd", nnodes="2:4")
    before = now()

    depart(place(job), "a", "c")

    job.trains("bd", after=before)
    assert [job.ended("a"), job.ended("c")] == [0, 0]
    assert job.restarts() == 0
    in_order(job)


@nightly
def test_the_host_is_told_to_end_without_any_notice(start: Start) -> None:
    job = start(max_restarts=3)
    before = now()

    job.agents["a"].send_signal(signal.SIGTERM)

    job.trains("bc", after=before)


@nightly
def test_of_two_jobs_on_a_node_each_hears_its_own(start: Start, store_port: int) -> None:
    one = start(port=store_port, run="one")
    other = start(port=store_port, run="other")
    before = now()

    depart(place(one), "b")
    depart(place(other), "elsewhere")

    one.trains("ac", after=before)
    assert {event["world"] for event in other.events()} == {3}


@nightly
def test_a_departure_that_reaches_nobody_harms_nobody(start: Start) -> None:
    job = start(pause=0.02)
    job.agents["a"].send_signal(signal.SIGSTOP)  # it serves the store
    before = now()

    def goes_on() -> bool:
        last = max(float(e["at"]) for e in job.events() if e["event"] == "step")
        return last > before + 10.0

    job.wait("the workers train on", goes_on)
    job.agents["a"].send_signal(signal.SIGCONT)
    depart(place(job), "b")
    job.trains("ac", after=before)


@nightly
def test_three_two_three_ten_times(start: Start, store_port: int) -> None:
    job = start(port=store_port, pause=0.02)
    nodes = list("abc")
    for number in range(10):
        leaver = nodes.pop(0)
        before = now()
        depart(place(job), leaver)
        job.trains(nodes, after=before)
        assert job.ended(leaver) == 0
        nodes.append(f"n{number}")
        before = now()
        job.start(nodes[-1], is_host=0)
        job.trains(nodes, after=before)
    assert job.restarts() == 0
    in_order(job)


@nightly
def test_fifty_departures_at_random(start: Start) -> None:
    """The host among them, wherever the store has gone by then."""
    chance = random.Random(8)
    job = start(pause=0.02)
    nodes = list("abc")
    for number in range(50):
        leaver = chance.choice(nodes)
        nodes.remove(leaver)
        here, before = moved(job), now()
        depart(here, leaver)
        job.trains(nodes, after=before)
        assert job.ended(leaver) == 0
        nodes.append(f"n{number}")
        here, before = moved(job), now()
        job.start(nodes[-1], endpoint=here.endpoint, is_host=0)
        job.trains(nodes, after=before)
    assert job.restarts() == 0
    in_order(job)
