"""One cell: a job that is killed in its moment, and a new process that restores what it can."""

import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO

from losing.plan import DLROVER, EVAC, EVERY, FROZEN, HANGS, HUNG, LAST, STAGING, Task

MIB = 1024 * 1024
LIMIT_SECONDS = 120.0
# For what outlives the training process to finish what it had begun.
GRACE_SECONDS = 10.0
# How far into a stage to kill, in parts of the stage before; the next where one was missed.
PARTS_OF_STAGE = (0.5, 0.35, 0.25, 0.6, 0.15, 0.4, 0.3, 0.1)
MARKS = (".metadata", ".snapshot_metadata")
SCRIPT = Path(__file__).parent.parent / "lost.py"
# Killed once staged: a daemon may write whenever it likes, and DLRover's memory mode never does.
IN_MEMORY = (EVAC, DLROVER)


@dataclass(frozen=True)
class Found:
    """How one experiment ended: the steps reached, and the least and the most that came back."""

    reached: int
    low: int
    high: int

    @property
    def lost(self) -> int:
        """Steps."""
        return self.reached - self.low

    def __str__(self) -> str:
        if self.low != self.high:
            return f"torn, loads silently ({self.low} to {self.high})"
        return str(self.lost) if self.low else f"{self.lost}: nothing loads"


class Missed(Exception):
    """The kill did not come in its moment; worth another try."""


class Rank:
    """A process, and what it says."""

    def __init__(self, what: str, task: Task, environ: Mapping[str, str], log: IO[bytes]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), "--process", what, json.dumps(asdict(task))],
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, **environ},
            start_new_session=True,
        )
        self._heard: queue.SimpleQueue[tuple[float, str]] = queue.SimpleQueue()
        self.step = 0
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout
        with self.process.stdout as said:
            for line in said:
                self._heard.put((time.perf_counter(), line.decode().strip()))
        self._heard.put((time.perf_counter(), ""))

    def next(self) -> tuple[float, str]:
        """The next line and when it came; "" at the end."""
        when, line = self._heard.get(timeout=LIMIT_SECONDS)
        if line.startswith("step "):
            self.step = int(line[5:])
        return when, line

    def hear(self, wanted: str) -> float:
        """When it said that."""
        while True:
            when, line = self.next()
            if line == wanted:
                return when
            if not line:
                raise RuntimeError(f"ended before {wanted!r}")

    def rest(self) -> list[str]:
        """All that was still said, until the end."""
        said = []
        while (line := self.next()[1]) != "":
            said.append(line)
        return said

    def kill(self, *, everything: bool) -> None:
        """SIGKILL, and the corpse collected."""
        with suppress(ProcessLookupError):
            (os.killpg if everything else os.kill)(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def left(self) -> bool:
        """Whether anything that it started is there yet."""
        try:
            os.killpg(self.process.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True


class Experiment:
    """One cell, in a folder of its own."""

    def __init__(self, task: Task, folder: Path, ends: ExitStack) -> None:
        self._task = replace(task, place=str(folder / "store"))
        self._folder, self._ends = folder, ends
        (folder / "store").mkdir()
        self._log = ends.enter_context((folder / "log").open("wb"))
        self._socket, self._admin = folder / "evacd.sock", folder / "admin.sock"
        run = f"lost-{os.getpid()}-{folder.name}"
        self._environ = {
            "EVAC_SOCKET": str(self._socket),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(_free_port()),
            # DLRover's names in /tmp and /dev/shm, and that an agent is there.
            "TORCHELASTIC_RUN_ID": run,
            "ELASTIC_JOB_NAME": run,
            "ROLE_NAME": "dlrover-trainer",
        }
        if task.system == DLROVER:
            ends.callback(_forget, run)

    def run(self, part: float) -> Found:
        """Train, kill, restore.

        Raises:
            Missed: It was killed too late.
        """
        task = self._task
        daemon = self._daemon() if task.system == EVAC else None
        agent = self._agent() if task.system == DLROVER else None
        world = 2 if task.moment in (HUNG, FROZEN) else 1
        ranks = [self._start("train", replace(task, rank=r, world=world), r) for r in range(world)]
        if world == 2:
            self._hang(ranks)
            for one in [*ranks, *([agent] if agent else [])]:
                one.kill(everything=True)
            agent = self._agent() if agent else None
        elif task.moment == STAGING:
            self._kill_in_stage(ranks[0], part)
        else:
            self._kill_in_flush(ranks[0])
        reached = ranks[0].step
        until = time.perf_counter() + GRACE_SECONDS
        while ranks[0].left() and time.perf_counter() < until:
            time.sleep(0.05)
        for one in ranks:
            one.kill(everything=True)
        if daemon:
            self._drain()
            daemon.kill()
            daemon.wait()
        said = self._start("resume", task, 0).rest()
        if not said:
            raise RuntimeError("the process that was to resume died of it")
        words = said[-1].split()
        low, high = (int(words[1]), int(words[2])) if words[0] == "restored" else (0, 0)
        return Found(reached, low, high)

    def _start(self, what: str, task: Task, rank: int) -> Rank:
        places = {"LOCAL_RANK": str(rank), "RANK": str(rank), "LOCAL_WORLD_SIZE": str(task.world)}
        environ = {**self._environ, **places, "WORLD_SIZE": str(task.world)}
        started = Rank(what, task, environ, self._log)
        self._ends.callback(started.kill, everything=True)
        return started

    def _kill_in_stage(self, rank: Rank, part: float) -> None:
        before = LAST - EVERY
        began = rank.hear(f"began {before}")
        stall = rank.hear(f"staged {before}") - began
        began = rank.hear(f"began {LAST}")
        time.sleep(max(0.0, began + part * stall - time.perf_counter()))
        rank.kill(everything=False)
        if f"staged {LAST}" in rank.rest():
            raise Missed("it was staged by then")

    def _kill_in_flush(self, rank: Rank) -> None:
        rank.hear(f"staged {LAST}")
        if self._task.system not in IN_MEMORY:
            _until(lambda: self._written() is not None)
        rank.kill(everything=False)
        if self._task.system not in IN_MEMORY and self._written():
            raise Missed("it was whole by then")

    def _written(self) -> bool | None:
        """Whether the last checkpoint is whole; None where nothing of it is there."""
        files = [
            path
            for folder in Path(self._task.place).rglob(f"step-{LAST}*")
            for path in folder.rglob("*")
        ]
        return any(path.name in MARKS for path in files) if files else None

    def _hang(self, ranks: Sequence[Rank]) -> None:
        ranks[1].hear("stopped")
        ranks[0].hear(f"step {HANGS[self._task.moment] - 1}")
        # Into the all-reduce; and time for what still can be written.
        time.sleep(3.0)

    def _agent(self) -> Rank:
        agent = self._start("agent", self._task, 0)
        agent.hear("ready")
        return agent

    def _daemon(self) -> "subprocess.Popen[bytes]":
        command = [
            sys.executable, "-m", "evacd", "run", "--store", f"file://{self._task.place}",
            "--cloud", "none", "--no-http", "--no-quiet", "--shutdown-watch", "off",
            "--socket", str(self._socket), "--admin-socket", str(self._admin),
            "--state-dir", str(self._folder / "state"),
            "--memory-budget", str(8 * self._task.size + 256 * MIB),
        ]  # fmt: skip
        daemon = subprocess.Popen(command, stdout=self._log, stderr=self._log)
        self._ends.callback(daemon.wait)
        self._ends.callback(daemon.kill)
        _until(self._admin.exists)
        return daemon

    def _drain(self) -> None:
        """The node goes, with what the dead have left on it."""
        from evac.admin import read_status, request
        from evac.wire import Drain

        def settled() -> bool:
            order = read_status(self._socket, timeout=5.0)["order"]
            return bool(order and order["settled"])

        def dead() -> bool:
            status = read_status(self._socket, timeout=5.0)
            return not any(one["alive"] for one in status["workloads"])

        _until(dead)
        request(self._admin, Drain(seconds=30.0), timeout=5.0)
        _until(settled)


def experiment(system: str, moment: str, size: int) -> Found:
    """Until the kill came in its moment."""
    for part in PARTS_OF_STAGE:
        where = os.environ.get("EVAC_BENCH_DIR", "/var/tmp")
        folder = Path(tempfile.mkdtemp(dir=where, prefix="lost-"))
        try:
            with ExitStack() as ends:
                return Experiment(Task(system, moment, "", size), folder, ends).run(part)
        except Missed:
            continue
        except Exception:
            sys.stderr.write((folder / "log").read_text(errors="replace")[-4000:])
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    raise RuntimeError(f"{system}, {moment}: every kill came too late")


def _until(there: Callable[[], object]) -> None:
    limit = time.perf_counter() + LIMIT_SECONDS
    while not there():
        if time.perf_counter() > limit:
            raise TimeoutError(f"not within {LIMIT_SECONDS:.0f} s")
        time.sleep(0.0005)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _forget(run: str) -> None:
    """DLRover leaves its shared memory and its sockets behind."""
    for path in Path("/dev/shm").glob(f"{run}_*"):
        path.unlink(missing_ok=True)
    shutil.rmtree(Path("/tmp/ckpt_sock", run), ignore_errors=True)
