"""Real torchrun agents with gloo workers, each a node of its own on loopback, in every circumstance.

`make test` runs some; ``EVAC_NIGHTLY=1`` all of them. Where nothing else is said, no restart is
consumed: ``--max-restarts=0`` would end the job.
"""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.handlers.rendezvous.agents import Job, now, resources
from tests.handlers.rendezvous.cells import ETCD, HOSTED, KILLED, KINDS, TCPSTORE
from tests.handlers.rendezvous.meeting import Meeting, meeting
from tests.handlers.rendezvous.nodes import depart
from tests.services.skipping import or_skip

NIGHTLY = os.environ.get("EVAC_NIGHTLY") == "1"
nightly = pytest.mark.skipif(not NIGHTLY, reason="takes minutes: EVAC_NIGHTLY=1 runs it")
over_all = pytest.mark.parametrize("kind", [pytest.param(kind, marks=nightly) for kind in KINDS])
Start = Callable[..., Job]


@pytest.fixture
def place(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Meeting]:
    """Where the nodes meet."""
    with or_skip(), meeting(kind, tmp_path) as made:
        yield made


@pytest.fixture
def start(place: Meeting, tmp_path: Path) -> Iterator[Start]:
    """Makes a job and starts its nodes, until all of them train."""
    jobs: list[Job] = []

    def make(nodes: str = "abc", *, run: str = "run", **options: object) -> Job:
        jobs.append(place.job(tmp_path / run, run=run, **options))
        for node in nodes:
            jobs[-1].start(node, is_host=int(place.hosted and node == nodes[0]))
        jobs[-1].trains(nodes)
        return jobs[-1]

    yield make
    for job in jobs:
        job.close()


def replace(job: Job, node: str) -> None:
    """A replacement: told where the log lies by now."""
    job.start(node, endpoint=job.address().endpoint, is_host=0)


def again(job: Job, nodes: Sequence[str], leaver: str, new: str) -> list[str]:
    """One leaves, and another comes; who is there then."""
    rest = [node for node in nodes if node != leaver]
    before = now()
    depart(job.address(), leaver)
    job.trains(rest, after=before)
    assert job.ended(leaver) == 0
    before = now()
    replace(job, new)
    job.trains([*rest, new], after=before)
    return [*rest, new]


def end(job: Job, nodes: Sequence[str], *, restarts: int = 0) -> None:
    """All end well, no more restarts were consumed, no step lost and none done twice."""
    job.finish()
    assert [job.ended(node) for node in nodes] == [0] * len(nodes)
    assert job.restarts() <= restarts
    steps = job.steps_in_order()
    assert steps == list(range(1, len(steps) + 1))


@pytest.mark.parametrize("kind", [TCPSTORE, pytest.param(HOSTED, marks=nightly), ETCD])
def test_three_become_two_and_three_again_and_finish(
    start: Start, place: Meeting, kind: str
) -> None:
    keys = place.count_keys()
    job = start(pause=0.02)
    before = now()

    depart(job.address(), "a")

    job.trains("bc", after=before)
    assert job.ended("a") == 0
    before = now()
    replace(job, "d")
    job.trains("bcd", after=before)
    end(job, "bcd")
    assert place.count_keys() == keys


@pytest.mark.parametrize("kind", [HOSTED])
def test_the_host_gets_a_notice_and_is_killed_at_once(start: Start, kind: str) -> None:
    job = start()
    before = now()

    depart(job.address(), "a")
    # Long enough for an agent to look, too short for it to leave.
    job.wait("a survivor knows", lambda: "is over" in job.log_of("b"))
    job.signal("a", signal.SIGKILL)

    job.trains("bc", after=before)
    end(job, "bc")


@over_all
@pytest.mark.parametrize("rank", range(3))
def test_any_rank(start: Start, kind: str, rank: int) -> None:
    job = start()
    victim = job.node_of_rank(rank)
    before = now()

    depart(job.address(), victim)

    rest = "abc".replace(victim, "")
    job.trains(rest, after=before)
    assert job.ended(victim) == 0
    end(job, rest)


@pytest.mark.parametrize("kind", [pytest.param(HOSTED, marks=nightly)])
def test_the_host_of_the_store_leaves(start: Start, kind: str) -> None:
    job = start()
    there, before = job.address(), now()

    depart(there, "a")

    job.trains("bc", after=before)
    assert job.ended("a") == 0
    assert job.address() != there
    end(job, "bc")


@over_all
@pytest.mark.parametrize("rank", range(3))
@pytest.mark.parametrize("seconds", KILLED)
def test_a_kill_after_the_notice(start: Start, kind: str, seconds: float, rank: int) -> None:
    """Whose workers have crashed before the notice was read, may count that; see the next one."""
    allowed = 0 if seconds >= 1.0 else 1
    job = start(max_restarts=allowed)
    victim = job.node_of_rank(rank)
    before = now()

    depart(job.address(), victim)
    job.wait("the time is over", lambda: now() - before >= seconds)
    job.signal(victim, signal.SIGKILL)

    rest = "abc".replace(victim, "")
    job.trains(rest, after=before)
    end(job, rest, restarts=allowed)


@nightly
@pytest.mark.parametrize("kind", [TCPSTORE])
def test_whose_workers_are_dead_before_it_looks_counts_a_restart(start: Start, kind: str) -> None:
    """... however soon it hears of the notice: torch's agent looks at its workers first.

    `SimpleElasticAgent._invoke_run` (2.9 to 2.14) asks the rendezvous only while they live. One that has
    ended is a failure: it takes one of ``--max-restarts``, or ends the agent, and no public call gives it
    back. An agent looks ten times a second, and a worker takes about as long to end; here they are made to
    be dead by then.
    """
    job = start(max_restarts=1)
    for node in "bc":
        job.agents[node].send_signal(signal.SIGSTOP)
    before = now()
    depart(job.address(), "a")
    job.signal("a", signal.SIGKILL)
    job.wait("their workers are dead", lambda: all(job.worker_is_dead(node) for node in "bc"))
    for node in "bc":
        job.agents[node].send_signal(signal.SIGCONT)

    job.trains("bc", after=before)

    assert job.restarts() == 1
    end(job, "bc", restarts=1)


@over_all
def test_two_at_once(start: Start, kind: str) -> None:
    """Where a node is the host, it is one of them."""
    job = start("abcd", nnodes="2:4")
    before = now()

    depart(job.address(), "a", "c")

    job.trains("bd", after=before)
    assert [job.ended("a"), job.ended("c")] == [0, 0]
    end(job, "bd")


@over_all
def test_a_notice_while_a_rendezvous_is_under_way(
    start: Start, place: Meeting, tmp_path: Path, kind: str
) -> None:
    job = place.job(tmp_path / "job", nnodes="3:3")
    try:
        for node in "ab":
            job.start(node, is_host=int(place.hosted and node == "b"))
        job.wait("both wait", lambda: all("1 more node" in job.log_of(node) for node in "ab"))

        depart(place.address(job), "a")

        assert job.ended("a") == 0
        for node in "cd":
            job.start(node, is_host=0)
        job.trains("bcd")
        end(job, "bcd")
    finally:
        job.close()


@over_all
def test_the_same_notice_twice_is_one(start: Start, kind: str) -> None:
    job = start()
    there, before = job.address(), now()

    depart(there, "b")
    depart(there, "b", sequence=2)
    job.trains("ac", after=before)
    depart(job.address(), "b", word="durable", sequence=3)
    before = now()
    replace(job, "d")

    job.trains("acd", after=before)
    assert [job.worlds_of(node) for node in "ac"] == [[3, 2, 3], [3, 2, 3]]
    end(job, "acd")


@over_all
def test_a_notice_that_is_taken_back(start: Start, kind: str) -> None:
    job = start(nnodes="2:4")

    depart(job.address(), "b")
    depart(job.address(), "b", word="staying", sequence=2)
    before = now()
    replace(job, "d")  # proof that all have read so far

    job.trains("abcd", after=before)
    assert all(world >= 3 for node in "abc" for world in job.worlds_of(node))
    end(job, "abcd")


@over_all
def test_of_two_jobs_on_a_node_each_hears_its_own(start: Start, kind: str) -> None:
    one, other = start(run="one"), start(run="other")
    before = now()

    depart(one.address(), "b")
    depart(other.address(), "elsewhere")

    one.trains("ac", after=before)
    end(one, "ac")
    end(other, "abc")
    assert {event["world"] for event in other.events()} == {3}


@over_all
def test_an_earlier_boot_is_another_node(start: Start, kind: str) -> None:
    job = start()
    before = now()

    depart(job.address(), "b", boot="an earlier one")
    depart(job.address(), "c")

    job.trains("ab", after=before)
    end(job, "ab")


@over_all
def test_too_few_survivors_wait_until_one_comes(start: Start, kind: str) -> None:
    job = start("ab")

    depart(job.address(), "b")
    assert job.ended("b") == 0
    job.wait("it says so", lambda: "waiting for 1 more node" in job.log_of("a"))
    before = now()
    replace(job, "c")

    job.trains("ac", after=before)
    end(job, "ac")


@over_all
def test_an_agent_is_told_to_end_without_any_notice(start: Start, kind: str) -> None:
    """Its workers are told by it, and crash the others': that may count as a restart."""
    job = start(max_restarts=3)
    before = now()

    job.agents["a"].send_signal(signal.SIGTERM)

    job.trains("bc", after=before)


@over_all
def test_the_store_dies(start: Start, place: Meeting, kind: str) -> None:
    """Whoever works goes on, to the end; where a node was the store, without it."""
    job = start(max_restarts=1)
    before = now()

    if place.process is None:
        job.signal("a", signal.SIGKILL)
        job.trains("bc", after=before)
        return
    place.process.kill()

    job.wait("steps go on", lambda: goes_on(job, before + 3.0))
    end(job, "abc")


@over_all
def test_a_departure_that_reaches_nobody_harms_nobody(
    start: Start, place: Meeting, kind: str
) -> None:
    job = start(pause=0.02)
    process = place.process or job.agents["a"]
    process.send_signal(signal.SIGSTOP)
    before = now()
    job.wait("steps go on", lambda: goes_on(job, before + 10.0))

    process.send_signal(signal.SIGCONT)
    depart(job.address(), "b")

    job.trains("ac", after=before)
    end(job, "ac")


def goes_on(job: Job, until: float) -> bool:
    return max(float(e["at"]) for e in job.events() if e["event"] == "step") > until


@over_all
def test_three_two_three_ten_times(start: Start, kind: str) -> None:
    job = start(pause=0.02)
    nodes = list("abc")
    for number in range(10):
        nodes = again(job, nodes, nodes[0], f"n{number}")
    end(job, nodes)


@over_all
def test_fifty_departures_at_random(start: Start, place: Meeting, kind: str) -> None:
    """Where a node is the host it is among them, wherever the store has gone by then.

    Elsewhere one node sees it all, and has no more files and threads at the end than early on.
    """
    chance, keys = random.Random(8), place.count_keys()
    job, nodes, early = start(pause=0.02), list("abc"), (0, 0)
    for number in range(50):
        leaver = chance.choice(nodes if place.hosted else [node for node in nodes if node != "a"])
        nodes = again(job, nodes, leaver, f"n{number}")
        if number == 5 and not place.hosted:
            early = resources(job.agents["a"])
    if not place.hosted:
        late = resources(job.agents["a"])
        assert [then - few for few, then in zip(early, late, strict=True) if then > few + 3] == []
    end(job, nodes)
    assert place.count_keys() == keys


SLOW = """\
import pathlib, sys, time
folder, node = pathlib.Path(sys.argv[1]), sys.argv[2]
(folder / node).touch()
while node == "c" or not (folder / "finish").exists():
    time.sleep(0.02)
"""


@nightly
@pytest.mark.parametrize("kind", [TCPSTORE])
def test_who_has_finished_is_not_kept_by_one_that_leaves(
    place: Meeting, tmp_path: Path, kind: str
) -> None:
    script = tmp_path / "slow.py"
    script.write_text(SLOW)
    env, conf = {"LOGLEVEL": "INFO"}, {"meet_timeout": 2}
    job = place.job(tmp_path / "job", script=script, conf=conf, env=env)
    try:
        for node in "abc":
            job.start(node, is_host=0)
        job.wait("all work", lambda: all((job.folder / node).exists() for node in "abc"))
        job.finish()
        job.wait(
            "two have finished",
            lambda: all("Waiting 300 seconds" in job.log_of(node) for node in "ab"),
        )

        depart(place.address(job), "c")

        assert [job.ended(node) for node in "abc"] == [0, 0, 0]
    finally:
        job.close()


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
