"""A node that is drilled: a real evacd on one store, and three jobs that stage what they are told to."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from asking import LIMIT_SECONDS, newest, status, until

import evac
from drilling.places import Place
from evac.segment import PAGE, Header, SlotState, aligned

# Jobs, and their shares of all bytes.
JOBS = {"large": 4, "middle": 2, "small": 1}
RESERVE = 0.5
_BLOCK = os.urandom(2**20)


class Job:
    """One rank that stages what it is told to."""

    def __init__(self, name: str, nbytes: int, socket: Path) -> None:
        self._nbytes = nbytes
        self._step = 0
        self._client = evac.connect(job=name, rank=0, world=1, socket=str(socket))
        self._client.wait_connected(LIMIT_SECONDS)
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
    """An evacd of its own.

    Args:
        folder: Its own, for all that it leaves.
        place: Where its jobs are saved.
        size: Bytes of all jobs.
        ends: Ends it.
    """

    def __init__(
        self,
        folder: Path,
        place: Place,
        size: int,
        ends: ExitStack,
    ) -> None:
        folder.mkdir(parents=True)
        self._socket, self._admin = folder / "evacd.sock", folder / "admin.sock"
        log = ends.enter_context((folder / "log").open("wb"))
        command = [
            sys.executable, "-m", "evacd", "run", "--store", place.url,
            *(word for store in place.beside for word in ("--store", store)), "--cloud", "none", "--no-http", "--no-quiet", "--store-keep", "1",
            "--socket", str(self._socket), "--admin-socket", str(self._admin),
            "--state-dir", str(folder / "state"), "--memory-budget", "40%",
            "--plan-commit-reserve-seconds", str(RESERVE),
        ]  # fmt: skip
        process = ends.enter_context(
            subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, **place.environment}
            )
        )
        ends.callback(process.terminate)
        until(self._measured)
        each = size // sum(JOBS.values())
        self._jobs = [Job(name, each * share, self._socket) for name, share in JOBS.items()]

    def round(self) -> Mapping[str, float]:
        """Stage, predict, drill."""
        staged = [job.stage() for job in self._jobs]
        until(lambda: newest(self._socket) == sorted(staged))
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

    def _measured(self) -> bool:
        said = status(self._socket)
        return said is not None and all(lane["measured"] for lane in said["lanes"])

    def _drill(self, *arguments: str) -> Any:
        command = [sys.executable, "-m", "evac", "drill", "--json", "--socket", str(self._admin)]
        return json.loads(
            subprocess.run([*command, *arguments], stdout=subprocess.PIPE, check=False).stdout
        )
