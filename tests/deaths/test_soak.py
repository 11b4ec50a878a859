"""A node over a long time: generations, reconnects and restarts by the hundred, and nothing grows.

``EVAC_NIGHTLY=1`` is ten thousand generations, a thousand reconnects, a hundred restarts.
"""

import os
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path

from tests.agent.daemon.nodes import until
from tests.deaths.machine import Machine, Worker

NIGHTLY = os.environ.get("EVAC_NIGHTLY") == "1"
GENERATIONS, RECONNECTS, RESTARTS = (10_000, 1_000, 100) if NIGHTLY else (300, 30, 5)
# So much a Python process's memory moves by itself, from one look to another.
SLACK_BYTES = 6 << 20
RANKS = 2


@dataclass(frozen=True)
class Taken:
    """What a machine takes.

    Attributes:
        rss: Of the daemon, bytes.
        fds: Of the daemon.
        client_fds: Of each workload that stays.
        slots: That the daemon knows.
        stored: Fds in the fd store.
        files: In the store.
        rows: Bytes of the table of slots.
    """

    rss: int
    fds: int
    client_fds: tuple[int, ...]
    slots: int
    stored: int
    files: int
    rows: int


class Soak:
    """Two ranks that stay for all of it, and one job whose process is another one all the time."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.step = 0
        machine.start()
        self.ranks = [machine.worker(rank=rank, world=RANKS).ready() for rank in range(RANKS)]
        machine.drain(48 * 3600.0)

    def stage(self, generations: int) -> None:
        """One after the other; now and then it is waited for until one is safe."""
        for number in range(generations):
            self.step += 1
            for worker in self.ranks:
                self._staged(worker)
            if number % 10 == 9:
                self._safe()
        self._safe()

    def come_and_go(self) -> None:
        """A process of another job comes, stages, is killed; another one adopts, and leaves."""
        machine = self.machine
        first = machine.worker("guest").ready()
        assert first.do("stage", step=1) == {}
        machine.knows("guest", 1)
        first.close()
        second = machine.worker("guest")
        assert second.do("connect")["connected"]
        assert second.do("adopt")["adopted"] == [[0, 1, True]]
        assert second.do("leave") == {}
        second.close()
        del machine.workers[-2:]

    def restart(self) -> None:
        """The daemon is killed, and the next one has everything."""
        machine = self.machine
        machine.kill()
        machine.reap()
        for worker in self.ranks:
            worker.alone()
        machine.start()
        for worker in self.ranks:
            until("it is back", lambda worker=worker: worker.do("connect")["connected"])  # type: ignore[misc] # bound to this turn

    def taken(self) -> Taken:
        """Once nothing moves."""
        machine = self.machine
        machine.settled()
        folder = machine.store / "root" / "job"
        until("old ones are gone", lambda: len(list(folder.glob("step-*"))) <= 2)
        for name in machine.asides():
            os.utime(machine.store / name, (0, 0))
        assert machine.process
        pid = machine.process.pid
        until("only the ranks' slots are left", lambda: len(machine.slots()) == 3 * RANKS)
        until("the fd store has these", lambda: len(machine.manager.names()) == 3 * RANKS)
        fds = until("no fd comes or goes", lambda: _steady(pid))
        return Taken(
            rss=int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
            fds=fds,
            client_fds=tuple(_fds(worker.process.pid) for worker in self.ranks),
            slots=len(machine.slots()),
            stored=len(machine.manager.names()),
            files=len([name for name in machine.files() if "guest" not in name]),
            rows=sum(one.stat().st_size for one in machine.home.glob("*/slots.table")),
        )

    def _staged(self, worker: Worker) -> None:
        """A slot may still be moving: then it waits, which a training would not."""
        until(
            "a slot is free",
            lambda: worker.do("stage", step=self.step) == {},
        )

    def _safe(self) -> None:
        until("it is safe", lambda: self.machine.saved(self.step))


def _fds(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def _steady(pid: int) -> int:
    first = _fds(pid)
    return first if all(_fds(pid) == first for _ in range(50)) else 0


def test_nothing_grows_over_generations_reconnects_and_restarts(
    machines: Callable[..., Machine], record_property: Callable[[str, object], None]
) -> None:
    soak = Soak(machines("--store-keep", "2"))
    each, comings = GENERATIONS // (RESTARTS + 1), RECONNECTS // (2 * (RESTARTS + 1))
    looks = []
    for life in range(RESTARTS + 1):
        if life:
            soak.restart()
        for _ in range(comings):
            soak.come_and_go()
        soak.stage(each)
        looks.append(soak.taken())
    record_property("soak", [astuple(one) for one in looks])

    first, last = looks[min(1, len(looks) - 1)], looks[-1]
    assert last.rss <= first.rss + SLACK_BYTES, looks
    for look in looks[1:]:
        assert look.fds <= first.fds + 2, looks
        assert (look.client_fds, look.slots, look.stored) == (
            first.client_fds, first.slots, first.stored,
        ), looks  # fmt: skip
        assert look.files <= first.files, looks
        assert look.rows == first.rows, looks


def test_nothing_grows_within_one_life(machines: Callable[..., Machine]) -> None:
    soak = Soak(machines("--store-keep", "2"))
    soak.stage(GENERATIONS // 6)
    soak.come_and_go()
    first = soak.taken()

    soak.stage(GENERATIONS // 3)
    for _ in range(RECONNECTS // 6):
        soak.come_and_go()

    last = soak.taken()
    assert last.rss <= first.rss + SLACK_BYTES, (first, last)
    assert last.fds <= first.fds + 2, (first, last)
    assert (last.client_fds, last.slots, last.stored, last.files) == (
        first.client_fds, first.slots, first.stored, first.files,
    )  # fmt: skip
