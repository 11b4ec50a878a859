"""What was asked of a daemon, and answered, is done by the one that comes after it: `evac leave`, drain, cancel.

``EVAC_NIGHTLY=1`` kills it at every boundary between the wish and its end, and has its disk hang.
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from typing import Any

import pytest

import evac
from evac import incident
from evac.admin import request
from evac.wire import Accepted, Ordered, Save
from tests.agent.daemon.nodes import LIMIT, out_of_reach, until
from tests.deaths.machine import Machine, Worker
from tests.deaths.nursery import Nursery

NIGHTLY = os.environ.get("EVAC_NIGHTLY") == "1"
AT_ONCE = 4
PHASES = ("flush", "pending", "manifest", "metadata", "marker")
SOME = [
    ("flush pwrite before", 0, False),
    ("manifest link after", 0, True),
    ("marker rename before", 0, False),
]

Make = Callable[..., Machine]


def leave(machine: Machine, *flags: str) -> "subprocess.Popen[str]":
    """As a preStop hook does."""
    return subprocess.Popen(
        [sys.executable, "-m", "evac", "leave", "--json", "--within", "3600", *flags],
        env={**os.environ, "EVAC_JOB": "job", "EVAC_SOCKET": str(machine.socket)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """What it was told; it has to end well."""
    out, err = process.communicate(timeout=2 * LIMIT)
    assert process.returncode == 0, (out, err)
    told: dict[str, Any] = json.loads(out)
    return told


def left(machine: Machine) -> dict[str, Any]:
    """What the status says of the job's order; empty where it knows of none."""
    found: list[dict[str, Any]] = machine.status()["leaving"]
    return found[0] if found else {}


def settled(machine: Machine) -> dict[str, Any]:
    return until("its order settles", lambda: (one := left(machine)).get("settled") and one)


def incidents(machine: Machine) -> tuple[incident.Incident, ...]:
    return incident.load(machine.journal, last=99)


def asked(machine: Machine) -> str:
    """A wish that cannot be granted yet, of one who waits for no end of it; the order's id."""
    answer = request(machine.socket, Save("job", 3600.0), timeout=LIMIT)
    assert isinstance(answer, Ordered)
    assert not left(machine)["settled"]
    return answer.order


@pytest.mark.parametrize("stores", [True, False], ids=["fd store", "no fd store"])
def test_an_order_of_before_goes_on_though_nobody_asks_again(machines: Make, stores: bool) -> None:
    machine = machines(stores=stores)
    machine.start()
    worker = machine.worker().ready()
    assert worker.do("stage", step=7) == {}
    machine.knows("job", 7)
    with out_of_reach(machine.store):
        order = asked(machine)
        machine.kill()
        if stores:
            # Then memory is all there is of it, and only the fd store has that.
            worker.kill()

    machine.start()

    told = settled(machine)
    assert (told["order"], told["state"], told["generation"]["step"]) == (order, "kept", 7)
    assert machine.saved(7)
    machine.complete()
    until("that is on record", lambda: all_ended(machine))
    (one,) = incidents(machine)
    assert incident.summary(one).whole
    assert [event.name for event in one.events].count("order.given") == 2


def test_no_stop_waits_for_a_store_that_is_out_of_reach(machines: Make) -> None:
    machine = machines().start()
    assert machine.worker().ready().do("stage", step=7) == {}
    machine.knows("job", 7)
    with out_of_reach(machine.store):
        order = asked(machine)
        machine.terminate()

    machine.start()

    assert (settled(machine)["order"], settled(machine)["state"]) == (order, "kept")


@pytest.mark.skipif(not NIGHTLY, reason="five seconds of waiting: with EVAC_NIGHTLY=1")
def test_nor_for_a_callback_that_hangs(machines: Make) -> None:
    machine = machines().start()
    worker = machine.worker(mode="callback", need_seconds=5.0, behave="hang")
    assert worker.do("connect")["connected"]
    order = asked(machine)
    machine.terminate()

    machine.start()

    assert left(machine)["order"] == order
    until("it has its turn", lambda: left(machine)["state"] == "moving")
    worker.kill()
    assert "its process died" in settled(machine)["reason"]


def all_ended(machine: Machine) -> bool:
    return all(one.ended is not None for one in incidents(machine))


def test_a_callback_workload_has_its_turn_of_the_daemon_that_comes_after(
    machines: Make, tmp_path: Path
) -> None:
    machine, file = machines().start(), tmp_path / "index"
    worker = machine.worker(mode="callback", need_seconds=5.0, file=str(file))
    assert worker.do("connect")["connected"]
    worker.process.send_signal(signal.SIGSTOP)
    order = asked(machine)
    machine.kill()
    machine.start()

    worker.process.send_signal(signal.SIGCONT)

    told = settled(machine)
    assert (told["order"], told["state"], told["nbytes"]) == (order, "kept", machine.nbytes)
    assert file.stat().st_size == machine.nbytes


def test_a_turn_that_runs_is_told_of_less_time(machines: Make) -> None:
    machine = machines().start()
    began: SimpleQueue[evac.TurnBudget] = SimpleQueue()
    done = Event()
    with evac.connect("job", mode="callback", need_seconds=1.0, socket=machine.socket) as client:

        @client.on_turn
        def flush(budget: evac.TurnBudget) -> int:
            began.put(budget)
            return int(done.wait(2 * LIMIT))

        assert client.wait_connected(LIMIT)
        for ask in (
            lambda seconds: request(machine.socket, Save("job", seconds), timeout=LIMIT),
            machine.drain,
        ):
            ask(3600.0)
            budget = began.get(timeout=LIMIT)
            assert budget.seconds_left() > 900.0
            ask(600.0)
            until("it hears of it", lambda budget=budget: budget.seconds_left() <= 600.0)  # type: ignore[misc] # bound to this turn
            done.set()
            until("its turn is over", lambda: settled_turns(machine))
            done.clear()


def settled_turns(machine: Machine) -> bool:
    status = machine.status()
    return all(one["settled"] for one in status["leaving"]) and (
        status["order"] is None or bool(status["outcomes"])
    )


def as_of_another_boot(machine: Machine) -> None:
    """The only incident once more, as another boot of this machine has left it; nobody has closed either."""
    columns = "node, began, source, kind, confidence, window_seconds"
    with closing(sqlite3.connect(machine.journal)) as journal, journal:
        journal.execute("UPDATE incident SET ended = NULL")
        journal.execute(
            f"INSERT INTO incident (id, boot, {columns}) "
            f"SELECT 'before', 'another', {columns} FROM incident"
        )
        journal.execute(
            "INSERT INTO event (incident, at, name, data) "
            "SELECT (SELECT number FROM incident WHERE id = 'before'), at, name, data FROM event"
        )


def test_whoever_died_meanwhile_is_told_lost_and_a_reboot_ends_it_as_well(machines: Make) -> None:
    machine = machines(stores=False).start()
    worker = machine.worker().ready()
    assert worker.do("stage", step=7) == {}
    machine.knows("job", 7)
    with out_of_reach(machine.store):
        order = asked(machine)
        machine.kill()
        worker.kill()
        as_of_another_boot(machine)

        machine.start()

        told = settled(machine)
    assert (told["order"], told["state"]) == (order, "lost")
    assert "nobody of it is on board any more" in told["reason"]
    until("both are closed", lambda: all_ended(machine))
    units = [incident.summary(one).units for one in incidents(machine)]
    assert [[unit.unit for unit in each] for each in units] == [["root/job"], ["root/job"]]
    assert "the machine has booted since" in units[1][0].reason


def test_what_became_of_it_is_told_by_the_daemon_that_comes_after(machines: Make) -> None:
    machine = machines(stores=False).start()
    assert machine.worker().ready().do("stage", step=7) == {}
    machine.knows("job", 7)
    before = ended(leave(machine))
    machine.kill()
    as_of_another_boot(machine)

    machine.start()

    assert left(machine) | {"seconds_left": 0} == before | {"seconds_left": 0}
    # Its end is all that an older daemon may have left to say, before and after a boot.
    assert len(incidents(machine)) == 2
    until("both are closed", lambda: all_ended(machine))
    assert all(incident.summary(one).whole for one in incidents(machine))
    names = [event.name for one in incidents(machine) for event in one.events]
    assert names.count("report.written") == 2
    assert "flush.lost" not in names


def test_a_job_that_has_not_come_back_yet_can_be_saved_and_a_daemon_that_is_away_is_waited_for(
    machines: Make,
) -> None:
    machine = machines(stores=False).start()
    ranks = [machine.worker(rank=rank, world=2).ready() for rank in range(2)]
    for rank, worker in enumerate(ranks):
        assert worker.do("stage", step=7) == {}
        machine.knows("job", 7, rank=rank)
    ranks[1].process.send_signal(signal.SIGSTOP)
    machine.kill()

    leaving = leave(machine)
    machine.start()
    until("it is asked for", lambda: left(machine))
    # One rank alone is nothing that could be saved.
    machine.knows("job", 7)
    assert not left(machine)["settled"]
    ranks[1].process.send_signal(signal.SIGCONT)

    told = ended(leaving)
    assert (told["generation"]["step"], told["durable"]) == (7, True)
    assert machine.saved(7)
    machine.complete()


# --- who asks, and is answered ----------------------------------------------------------------


def test_a_drain_and_its_end_are_on_the_disk_when_they_are_answered(machines: Make) -> None:
    machine = machines().start()
    for _ in range(3):
        assert machine.drain(3600.0) == Accepted()
        machine.kill()
        machine.start()
        until("the drain stands", lambda: machine.status()["order"])

        assert machine.cancel() == Accepted()
        machine.kill()
        machine.start()
        assert machine.status()["order"] is None


@pytest.mark.skipif(not NIGHTLY, reason="two seconds of waiting: with EVAC_NIGHTLY=1")
def test_a_disk_that_hangs_is_waited_for_but_not_for_ever(machines: Make) -> None:
    machine = machines().start()
    # Nobody ever reads from it.
    os.mkfifo(machine.home / "state" / "standing.json.new")
    assert machine.drain(3600.0) == Accepted()
    assert machine.status()["order"] is not None


# --- killed in the middle -----------------------------------------------------------------------


def life(machine: Machine, **doom: Any) -> "subprocess.Popen[str]":
    """A daemon whose job leaves; it may be dead by the end of it."""
    machine.begin(report=str(machine.home / "boundaries"), **doom)
    until("evacd listens", machine.listens)
    worker: Worker = machine.worker().ready()
    assert worker.do("stage", step=7) == {}
    machine.knows("job", 7)
    return leave(machine)


def strike(nursery: Nursery, home: Path, aim: tuple[str, int, bool]) -> None:
    """One daemon dies there, while somebody waits; the next one saves it."""
    label, nth, stores = aim
    machine = Machine(nursery, home, stores=stores)
    try:
        leaving = life(machine, label=label, nth=nth)
        daemon = machine.process
        assert daemon
        until("it dies", lambda: daemon.poll() is not None)

        machine.start()

        told = ended(leaving)
        assert (told["state"], told["generation"]["step"], told["durable"]) == ("kept", 7, True)
        assert machine.saved(7)
        assert machine.complete().get("root/job")
        until("all is on record", lambda: all_ended(machine))
        # A wish that was not answered yet may not be on record, either: then it was asked anew.
        assert [one.id for one in incidents(machine)].count(told["order"]) == 1
    finally:
        machine.close()


def boundaries(machine: Machine) -> list[tuple[str, int]]:
    """All that such a daemon passes on its way."""
    ended(life(machine))
    passed = (machine.home / "boundaries").read_text().splitlines()
    times = {label: passed.count(label) for label in passed if label.startswith(PHASES)}
    return [(label, nth) for label, most in times.items() for nth in range(most)]


def test_a_daemon_that_is_killed_meanwhile_costs_nobody_who_leaves_anything(
    nursery: Nursery, machines: Make, tmp_path: Path
) -> None:
    places = boundaries(machines()) if NIGHTLY else []
    aims = [(*place, stores) for place in places for stores in (True, False)] or SOME
    with ThreadPoolExecutor(AT_ONCE) as pool:
        homes = (tmp_path / str(number) for number in range(len(aims)))
        list(pool.map(partial(strike, nursery), homes, aims))
