"""Machines that really are cut off: each agent in a network of its own, and a cable is pulled.

Nobody hears a connection end there, as they do where a process dies on loopback.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from evac.rendezvous.address import Address
from tests.handlers.rendezvous.agents import Job, Machine, now
from tests.handlers.rendezvous.cells import ETCD, HOSTED, TCPSTORE
from tests.handlers.rendezvous.meeting import evac_store
from tests.services.etcd import etcd_process
from tests.services.network import INTERFACE, Network, network
from tests.services.skipping import or_skip

nightly = pytest.mark.skipif(
    os.environ.get("EVAC_NIGHTLY") != "1", reason="takes minutes: EVAC_NIGHTLY=1 runs it"
)
PORT = 29400
# As evacd announces that this node leaves; prints what went wrong.
ANNOUNCE = """
import asyncio, sys
import aiohttp
from evacd.clock import SystemClock
from evacd.rendezvous import Departure, Word
from evacd.rendezvous.jobstore import JobStoreAnnouncer

async def main(node, store):
    async with aiohttp.ClientSession() as session:
        announcer = JobStoreAnnouncer(
            lambda job: [store], session, timeout_seconds=1.0, clock=SystemClock()
        )
        leaving = Departure(Word.LEAVING, node, "boot", "order", 30.0, job="job", sequence=1)
        print(await announcer.announce(leaving))

asyncio.run(main(*sys.argv[1:]))
"""
# Silence is noticed soon, so that the test is.
QUICK = {"keep_alive_interval": 0.5, "keep_alive_max_attempt": 4}


@pytest.fixture
def net() -> Iterator[Network]:
    """Three machines, and one for a store."""
    with or_skip(), network("a", "b", "c", "s") as made:
        yield made


@pytest.fixture
def store(kind: str, net: Network, tmp_path: Path) -> Iterator[Address]:
    """Where the nodes meet: on the machine of the first, or on one that is nobody's."""
    host = net.address("a" if kind == HOSTED else "s")
    with ExitStack() as stack:
        port, enter = PORT, tuple(net.on("s"))
        with or_skip():
            if kind == TCPSTORE:
                port, _ = stack.enter_context(evac_store(tmp_path, enter))
            if kind == ETCD:
                port, _ = stack.enter_context(etcd_process(tmp_path / "etcd", enter, host))
        yield Address("etcd" if kind == ETCD else "tcpstore", host, port, "evac/run")


@pytest.fixture
def start(net: Network, store: Address, kind: str, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Makes the job, until all three train."""
    machines = {name: Machine(tuple(net.on(name)), net.address(name), INTERFACE) for name in "abc"}
    with ExitStack() as stack:

        def make(**conf: object) -> Job:
            job = Job(
                tmp_path / "job",
                scheme=store.scheme,
                machines=machines,
                conf={**QUICK, **conf},
                # Longer than the cut, or shorter: a collective's patience with who is cut off.
                env={"GROUP_SECONDS": "5" if conf else "60"},
                max_restarts=1 if conf else 0,
            )
            stack.callback(job.close)
            for name in "abc":
                is_host = int(kind == HOSTED and name == "a")
                job.start(name, endpoint=store.endpoint, is_host=is_host)
            job.trains("abc")
            return job

        yield make


def announce(net: Network, node: str, store: Address) -> str:
    done = subprocess.run(
        [*net.on(node), sys.executable, "-c", ANNOUNCE, node, str(store)],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def waits_for(pid: int, number: signal.Signals) -> bool:
    """Whether a stopped process was sent a signal: proc(5), ShdPnd."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    pending = next(line.split()[1] for line in lines if line.startswith("ShdPnd:"))
    return bool(int(pending, 16) >> (number - 1) & 1)


@pytest.mark.parametrize(
    "kind", [HOSTED, *(pytest.param(kind, marks=nightly) for kind in (TCPSTORE, ETCD))]
)
def test_who_is_cut_off_holds_nobody_up_and_comes_back(
    start: Callable[..., Job], net: Network, store: Address, kind: str
) -> None:
    job = start()
    net.cut("c")
    before = now()

    assert "not told within 1 s" in announce(net, "c", store)

    job.trains("ab", after=before)
    # Its worker's collective breaks as soon as packets flow again, and torch's agent looks at workers first: a
    # worker that it finds dead has failed, which costs a restart. It is to hear of the end of the round before.
    worker = job.worker("c")
    os.kill(worker, signal.SIGSTOP)
    net.heal("c")
    before = now()
    job.wait("c knows, and ends its worker", lambda: waits_for(worker, signal.SIGTERM))
    os.kill(worker, signal.SIGCONT)
    job.trains("abc", after=before)
    assert job.restarts() == 0
    steps = job.steps_in_order()
    assert steps == list(range(1, len(steps) + 1))


@nightly
@pytest.mark.parametrize("kind", [HOSTED, TCPSTORE, ETCD])
def test_without_the_store_s_machine_nobody_waits_for_ever(
    start: Callable[..., Job], net: Network, store: Address, kind: str
) -> None:
    """Where that is a node's, the collectives of the others end, and there is nobody to meet."""
    job = start(join_timeout=4)
    net.cut("a" if kind == HOSTED else "s")

    if kind == HOSTED:
        # To itself it can be told.
        assert announce(net, "a", store) == "None"
        assert job.ended("a") == 0
    else:
        # Nobody has to meet anybody, until one is gone.
        job.wait("steps go on", lambda: job.steps_in_order()[-1] > 100)
        job.signal("a", signal.SIGKILL)

    assert [job.ended(name) for name in "bc"] == [1, 1]
    assert all("the rendezvous store" in job.log_of(name) for name in "bc")


@nightly
@pytest.mark.parametrize("kind", [HOSTED, TCPSTORE, ETCD])
def test_a_departure_that_was_cut_off_is_heard_once_the_network_is_back(
    start: Callable[..., Job], net: Network, store: Address, kind: str
) -> None:
    job = start()
    net.cut("c")
    assert "not told within 1 s" in announce(net, "c", store)
    net.heal("c")
    before = now()

    assert announce(net, "c", store) == "None"

    assert job.ended("c") == 0
    job.trains("ab", after=before)
    assert job.restarts() == 0
