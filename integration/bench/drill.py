"""How well a node knows its margin: what `evac drill` predicts beside what it drills.

A real evacd on a local store, three jobs that stage between drills, and `evac drill --flush` with a
window of twice what the plan needs. The margin is what is left of that window, less the commit
reserve; the rate behind the prediction is the one that evacd had measured or learned by then.
--size counts the bytes of all jobs. The store is in EVAC_BENCH_DIR (default: /var/tmp).
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from harness import Ratio, Variant, main

import evac
from evac.admin import read_status
from evac.errors import EvacError
from evac.segment import PAGE, Header, SlotState, aligned
from evacd.clock import SystemClock

JOBS = {"large": 4, "middle": 2, "small": 1}
RESERVE = 0.5
_LIMIT = 60.0
_BLOCK = os.urandom(2**20)
_CLOCK = SystemClock()


class Job:
    """One rank that stages what it is told to."""

    def __init__(self, name: str, nbytes: int, socket: Path) -> None:
        self._nbytes = nbytes
        self._step = 0
        self._client = evac.connect(job=name, rank=0, world=1, socket=str(socket))
        self._client.wait_connected(_LIMIT)
        size = PAGE + aligned(nbytes) + PAGE
        self._client.reserve(nbytes=size, body="part0.bin", layout="plain", incarnation=1, slots=2)

    def stage(self) -> int:
        """One generation more; returns its step."""
        slot = None
        while slot is None:
            slot = self._client.acquire(5.0)
        self._step += 1
        slot.begin(1)
        for at in range(0, self._nbytes, len(_BLOCK)):
            length = min(len(_BLOCK), self._nbytes - at)
            slot.memory[PAGE + at : PAGE + at + length] = _BLOCK[:length]
        slot.complete(Header(SlotState.COMPLETE, 1, self._step, self._nbytes))
        self._client.staged(slot, self._step)
        return self._step


class Node:
    """An evacd of its own, in a folder that is gone at the end."""

    def __init__(self, folder: Path, size: int, ends: ExitStack) -> None:
        self._socket, self._admin = folder / "evacd.sock", folder / "admin.sock"
        log = ends.enter_context((folder / "log").open("wb"))
        command = [
            sys.executable, "-m", "evacd", "run", "--store", f"file://{folder}/store",
            "--cloud", "none", "--no-http", "--no-quiet", "--store-keep", "1",
            "--socket", str(self._socket), "--admin-socket", str(self._admin),
            "--state-dir", str(folder / "state"), "--memory-budget", "80%",
            "--plan-commit-reserve-seconds", str(RESERVE),
        ]  # fmt: skip
        process = ends.enter_context(subprocess.Popen(command, stdout=log, stderr=log))
        ends.callback(process.terminate)
        self._until(lambda: self._status() is not None)
        each = size // sum(JOBS.values())
        self._jobs = [Job(name, each * share, self._socket) for name, share in JOBS.items()]

    def round(self) -> Mapping[str, float]:
        """Stage, predict, drill."""
        staged = [job.stage() for job in self._jobs]
        self._until(lambda: self._newest() == sorted(staged))
        plan = self._drill("--seconds", "3600")
        need = 3600.0 - RESERVE - plan["predicted_margin_seconds"]
        report = self._drill("--flush", "--seconds", f"{2 * need + RESERVE:.3f}")
        predicted, drilled = report["predicted_margin_seconds"], report["drilled_margin_seconds"]
        took = report["window_seconds"] - RESERVE - drilled
        return {
            "predicted_margin_s": predicted,
            "drilled_margin_s": drilled,
            "margin_off": abs(predicted - drilled) / abs(drilled),
            # The same in the shortest of the clouds' usual windows.
            "margin_off_in_30s": abs(need - took) / abs(30.0 - RESERVE - took),
            "predicted_per_drilled_s": need / took,
        }

    def _drill(self, *arguments: str) -> Any:
        command = [sys.executable, "-m", "evac", "drill", "--json", "--socket", str(self._admin)]
        return json.loads(
            subprocess.run([*command, *arguments], stdout=subprocess.PIPE, check=False).stdout
        )

    def _newest(self) -> list[int]:
        status = self._status() or {"risk": {"units": []}}
        return sorted(unit["newest_step"] or 0 for unit in status["risk"]["units"])

    def _status(self) -> dict[str, Any] | None:
        try:
            return read_status(self._socket, timeout=5.0)
        except EvacError:
            return None

    def _until(self, true: Any) -> None:
        ends = _CLOCK.monotonic() + _LIMIT
        while not true():
            if _CLOCK.monotonic() > ends:
                raise RuntimeError("evacd did not do its part within a minute")
            time.sleep(0.02)


def run() -> int:
    """One node for all rounds."""
    made: list[Node] = []
    with ExitStack() as ends:
        folder = Path(
            ends.enter_context(
                tempfile.TemporaryDirectory(dir=os.environ.get("EVAC_BENCH_DIR", "/var/tmp"))
            )
        )

        def variants(size: int) -> list[Variant]:
            made.append(Node(folder, size, ends))
            return [Variant("evac drill", made[0].round)]

        return main(
            "drill",
            variants,
            [
                Ratio("in_30s", "margin_off_in_30s", "evac drill", None, 0.2, at_least=False),
                Ratio("in_twice_the_need", "margin_off", "evac drill", None, 0.2, at_least=False),
            ],
            size=700 * 2**20,
            warmup=1,
        )


if __name__ == "__main__":
    sys.exit(run())
