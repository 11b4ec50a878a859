"""A real node for tests: evacd in a process of its own, workloads in theirs."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from evac import incident
from evac.admin import read_status, request
from evac.errors import EvacError
from evac.wire import Cancel, Drain, Message
from tests.agent.daemon import worker as worker_module

T = TypeVar("T")
# How long a test waits for what a busy machine may take long for. Windows of orders are far longer,
# or far shorter: a test that passes because a deadline came in time, or fails because it did not
# yet, tells of neither.
LIMIT = 60.0
WINDOW = 5 * LIMIT


def until(what: str, probe: Callable[[], T | None]) -> T:
    """Poll until *probe* gives something true; fail after 60 s, saying what was waited for."""
    ends = time.monotonic() + LIMIT  # noqa: TID251 - real processes live in real time
    while True:
        if found := probe():
            return found
        assert time.monotonic() < ends, f"{what}: not within {LIMIT:.0f} s"  # noqa: TID251
        time.sleep(0.01)


@contextmanager
def out_of_reach(store: Path) -> Iterator[None]:
    """What is to be saved there is tried until it is back."""
    away = store.with_name("away")
    store.rename(away)
    # Else it would be made anew.
    store.symlink_to("where nothing is")
    yield
    store.unlink()
    away.rename(store)


class Process(Protocol):
    """One that runs: what is asked of a `subprocess.Popen` here."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, number: int, /) -> None: ...
    def kill(self) -> None: ...
    def terminate(self) -> None: ...


class Workload:
    """A `worker.py` in a process of its own."""

    def __init__(self, prefix: Sequence[str] = (), **settings: Any) -> None:
        self.settings = settings
        self.process = subprocess.Popen(
            [*prefix, sys.executable, worker_module.__file__, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def do(self, what: str, **arguments: Any) -> dict[str, Any]:
        """Have it do something, and return its answer."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def ready(self, **reservation: Any) -> "Workload":
        """Registered, with its slots."""
        assert self.do("connect")["connected"]
        assert self.do("reserve", **reservation) == {}
        return self

    def kill(self) -> None:
        """SIGKILL, and the corpse collected."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """SIGSTOP."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def close(self) -> None:
        """Gone, with its pipes."""
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe
            pipe.close()


class Node:
    """One machine: a daemon, its folders, and whoever is on board."""

    def __init__(self, home: Path, store: Path | None = None) -> None:
        self.home = home
        self.home.mkdir(parents=True, exist_ok=True)
        self.store = store or home / "store"
        self.socket = home / "run" / "evacd.sock"
        self.admin = home / "run" / "admin.sock"
        self.journal = home / "state" / "incidents.sqlite"
        self.log = home / "evacd.log"
        self._ends = ExitStack()
        self.process: Process | None = None

    def command(self, *flags: str) -> list[str]:
        """How the daemon is started."""
        return [
            sys.executable, "-m", "evacd", "run",
            "--store", f"file://{self.store}",
            "--cloud", "none",
            "--socket", str(self.socket),
            "--admin-socket", str(self.admin),
            "--state-dir", str(self.home / "state"),
            "--memory-budget", "2GiB",
            "--log-format", "json",
            # What trickles would be in the store, and moving, whenever a test looks there.
            "--no-quiet",
            # The machine's own bus and a fixed port are none of a test's business.
            "--shutdown-watch", "off",
            "--no-http",
            *flags,
        ]  # fmt: skip

    def start(self, *flags: str, environ: Mapping[str, str] | None = None) -> "Node":
        """Start the daemon and wait until it listens; later flags win.

        Args:
            environ: Variables beside this process's own.
        """
        variables = {**os.environ, **(environ or {})}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(*flags), stdout=log, stderr=log, env=variables
            )
        until("evacd listens", self.listens)
        return self

    def listens(self) -> bool:
        """It answers; fails where its process has ended."""
        assert self.process
        assert self.process.poll() is None, self.log.read_text()
        try:
            self.status()
        except EvacError:
            return False
        return True

    def workload(self, job: str = "job", **settings: Any) -> Workload:
        """A workload process on this node, killed at the end of the test."""
        workload = Workload(job=job, socket=str(self.socket), **settings)
        self._ends.callback(workload.close)
        return workload

    def staged(self, step: int, job: str = "job", **settings: Any) -> Workload:
        """A workload that has staged one generation."""
        workload = self.workload(job, **settings).ready()
        assert workload.do("stage", step=step) == {}
        self.knows(job, step, rank=settings.get("rank", 0))
        return workload

    def knows(self, job: str, step: int, *, rank: int = 0) -> None:
        """Wait until the daemon has accepted what a rank staged."""

        def complete() -> bool:
            return any(
                slot["state"] == "complete" and slot["step"] == step
                for one in self.status()["workloads"]
                if one["job"] == job and one["rank"] == rank
                for slot in one["slots"]
            )

        until(f"{job} rank {rank} step {step} is complete", complete)

    def status(self) -> dict[str, Any]:
        """As `evac status --json`."""
        return read_status(self.socket, timeout=LIMIT / 2)

    def drain(self, seconds: float = WINDOW) -> Message:
        """As `evac drain`."""
        return request(self.admin, Drain(seconds=seconds), timeout=LIMIT)

    def cancel(self) -> Message:
        """As `evac drain --cancel`."""
        return request(self.admin, Cancel(), timeout=LIMIT)

    def settled(self) -> dict[str, dict[str, Any]]:
        """Wait until the running order has nothing left to do, and that is on record.

        Its outcomes by unit.
        """

        def done() -> dict[str, Any] | None:
            status = self.status()
            return status if status["order"] and status["order"]["settled"] else None

        outcomes = {one["unit"]: one for one in until("the order settles", done)["outcomes"]}
        if outcomes:
            # The journal is written in order, so all that came before is on the disk, too.
            self.event("report.written")
        return outcomes

    def events(self) -> list[incident.Event]:
        """Of the last incident."""
        found = incident.load(self.journal) if self.journal.exists() else ()
        return list(found[-1].events) if found else []

    def event(self, name: str, **data: Any) -> incident.Event:
        """Wait for an event of the last incident."""

        def find() -> incident.Event | None:
            for event in self.events():
                if event.name == name and all(event.data.get(k) == v for k, v in data.items()):
                    return event
            return None

        return until(f"{name} {data}", find)

    def files(self) -> list[str]:
        """All files in the store, relative, sorted."""
        return sorted(
            str(path.relative_to(self.store))
            for path in self.store.rglob("*")
            if path.is_file() and "evac-probe" not in path.parts
        )

    def kill(self) -> None:
        """SIGKILL the daemon."""
        assert self.process
        self.process.kill()
        self.process.wait()

    def terminate(self) -> int:
        """SIGTERM the daemon; its exit code."""
        assert self.process
        self.process.terminate()
        return self.process.wait(LIMIT)

    def close(self) -> None:
        """All processes gone."""
        self._ends.close()
        if self.process and self.process.poll() is None:
            self.kill()


def node_at(home: Path) -> Iterator[Node]:
    """For fixtures: a node that is gone at the end."""
    node = Node(home)
    try:
        yield node
    finally:
        node.close()
