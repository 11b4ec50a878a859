"""What a workload costs the daemon beside 0, 7, 63 and 511 others: on board, planned, flushed.

A real evacd on a local store, so many jobs of one rank that stage --size bytes each, and
`evac drill --flush`, which plans, moves and commits all of them. CPU is the daemon's own, by the kernel's
count; each figure is per workload, so that a flat cost shows as equal ones. The store is in EVAC_BENCH_DIR
(default: /var/tmp).
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from harness import Ratio, Variant, main

import evac
from evac.admin import read_status, request
from evac.errors import EvacError
from evac.segment import PAGE, Header, SlotState, aligned
from evac.wire import Drill, Refuse

COUNTS = (1, 8, 64, 512)
_LIMIT = 40.0


class Job:
    """One rank, which has one generation staged when it is made."""

    def __init__(self, name: str, nbytes: int, socket: Path) -> None:
        self._nbytes = nbytes
        self._client = evac.connect(job=name, rank=0, world=1, socket=str(socket))
        self._client.wait_connected(_LIMIT)
        size = PAGE + aligned(nbytes) + PAGE
        self._client.reserve(nbytes=size, body="part0.bin", layout="plain", incarnation=1, slots=1)

    def stage(self, step: int = 1) -> None:
        """Fill its slot."""
        slot = None
        while slot is None:
            slot = self._client.acquire(5.0)
        slot.begin(1)
        slot.memory[PAGE : PAGE + self._nbytes] = bytes(self._nbytes)
        slot.complete(Header(SlotState.COMPLETE, 1, step, self._nbytes))
        self._client.staged(slot, step)

    def close(self) -> None:
        """Let the daemon forget it."""
        self._client.close()


class Node:
    """An evacd of its own for one round."""

    def __init__(self, folder: Path, ends: ExitStack, store: str = "") -> None:
        self.socket, self._admin = folder / "evacd.sock", folder / "admin.sock"
        self.log = folder / "log"
        log = ends.enter_context(self.log.open("wb"))
        command = [
            sys.executable, "-m", "evacd", "run", "--store", store or f"file://{folder}/store",
            "--cloud", "none", "--no-http", "--no-quiet", "--store-keep", "1",
            "--socket", str(self.socket), "--admin-socket", str(self._admin),
            "--state-dir", str(folder / "state"), "--memory-budget", "80%",
        ]  # fmt: skip
        self._process = ends.enter_context(subprocess.Popen(command, stdout=log, stderr=log))
        ends.callback(self._process.terminate)
        self.until(lambda: self.status() is not None)

    def cpu(self) -> float:
        """Seconds that the daemon has had of a processor."""
        # The clock of another process, to the nanosecond (clock_getcpuclockid(3)): one plan is far below a tick.
        return time.clock_gettime(~self._process.pid << 3 | 2)

    def drill(self, *arguments: str) -> Any:
        """What a drill reports."""
        command = [sys.executable, "-m", "evac", "drill", "--json", "--socket", str(self._admin)]
        command += ["--seconds", "3600", *arguments]
        return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=False).stdout)

    def staged(self, step: int = 1) -> int:
        """How many have staged it."""
        status = self.status() or {"risk": {"units": []}}
        return sum(unit["newest_step"] == step for unit in status["risk"]["units"])

    def begin_drill(self) -> None:
        """Move what is staged for real, and return at once."""
        answer = request(self._admin, Drill(seconds=3600.0, flush=True), timeout=_LIMIT)
        if isinstance(answer, Refuse):
            raise RuntimeError(f"evacd drills nothing: {answer.reason}")

    def until(self, true: Callable[[], bool]) -> None:
        """Wait for it."""
        began = time.perf_counter()
        while (asked := time.perf_counter()) - began < _LIMIT:
            if true():
                return
            # Each look costs the daemon, too, the more the more are on board.
            time.sleep(max(0.2, 20 * (time.perf_counter() - asked)))
        raise RuntimeError("evacd did not do its part in time")

    def status(self) -> dict[str, Any] | None:
        """What it says of itself; None as long as it says nothing."""
        try:
            return read_status(self.socket, timeout=30.0)
        except EvacError:
            return None


def lives(count: int, size: int) -> Mapping[str, float]:
    """So many workloads from coming on board to being flushed; figures for each of them."""
    where = os.environ.get("EVAC_BENCH_DIR", "/var/tmp")
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(dir=where)))
        node = Node(folder, ends)
        figures: dict[str, float] = {}

        def phase(name: str, work: Callable[[], object]) -> None:
            cpu, began = node.cpu(), time.perf_counter()
            work()
            figures[f"{name}_ms"] = (time.perf_counter() - began) * 1000 / count
            figures[f"{name}_cpu_ms"] = (node.cpu() - cpu) * 1000 / count

        jobs: list[Job] = []

        def board() -> None:
            for number in range(count):
                jobs.append(Job(f"job{number}", size, node.socket))
                ends.callback(jobs[-1].close)

        def stage() -> None:
            for job in jobs:
                job.stage()
            node.until(lambda: node.staged() == count)

        def flush() -> None:
            report = node.drill("--flush")
            if len(report["units"]) != count:
                raise RuntimeError(f"{len(report['units'])} of {count} were drilled")

        phase("board", board)
        phase("stage", stage)
        phase("plan", node.drill)
        phase("flush", flush)
        return figures


def variants(size: int) -> list[Variant]:
    """One for each number of workloads."""
    return [Variant(f"{count}", partial(lives, count, size)) for count in COUNTS]


if __name__ == "__main__":
    sys.exit(
        main(
            "many",
            variants,
            [
                Ratio("board", "board_cpu_ms", "512", "64", 1.5, at_least=False),
                Ratio("stage", "stage_cpu_ms", "512", "64", 1.5, at_least=False),
                Ratio("plan", "plan_cpu_ms", "512", "64", 1.5, at_least=False),
                Ratio("flush", "flush_cpu_ms", "512", "64", 1.5, at_least=False),
            ],
            size=64 * 1024,
            rounds=3,
        )
    )
