"""How long from a preemption notice on the wire until the API server is asked to close the node.

A real evacd hears GCP's protocol from `evacd simulate`, flushes --size bytes of staged state to a
local store (in EVAC_BENCH_DIR, default /var/tmp) as fast as that takes them, and closes its node
beside that. The API server is the tests' own, in a process of its own, over TLS on loopback; its
clock is the system's monotonic one, as ours. Beside it stands the same with nothing to flush.
"""

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from asking import LIMIT_SECONDS, newest, status, until
from harness import Ratio, Variant, main

sys.path.insert(0, str(Path(__file__).parents[2]))

import evac
from evac.segment import PAGE, Header, SlotState, aligned
from evacd.clock import SystemClock
from tests.kube.access import MASTERS, User
from tests.kube.cluster import Cluster, running

NODE = "gpu-7"
_BLOCK = os.urandom(2**20)
_CLOCK = SystemClock()


class Scene:
    """One node, its cloud and its cluster."""

    def __init__(self, folder: Path, size: int, ends: ExitStack) -> None:
        self._size = size
        self._step = 0
        self._socket = folder / "evacd.sock"
        (folder / "cluster").mkdir()
        self._cluster: Cluster = ends.enter_context(running(folder / "cluster"))
        self._cluster.node(NODE)
        account = self._cluster.account(folder / "account", namespace="e", name="e", node=NODE)
        # Rights cost the server a millisecond, which is no part of what is measured.
        self._cluster.user((account / "token").read_text(), User("evacd", (MASTERS,)))
        simulator = ends.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "evacd", "simulate", "gcp", "--json"],
                stdout=subprocess.PIPE,
            )
        )
        ends.callback(simulator.terminate)
        assert simulator.stdout
        first = json.loads(simulator.stdout.readline())
        self._control = first["control"]
        log = ends.enter_context((folder / "log").open("wb"))
        command = [
            sys.executable, "-m", "evacd", "run", "--store", f"file://{folder}/store",
            "--cloud", "gcp", "--metadata-url", first["url"], "--gcp-trust-true-at-boot",
            "--no-http", "--no-quiet", "--shutdown-watch", "off", "--store-keep", "1",
            "--socket", str(self._socket), "--admin-socket", str(folder / "admin.sock"),
            "--state-dir", str(folder / "state"), "--memory-budget", "80%",
            "--node-account", str(account),
        ]  # fmt: skip
        environ = {**os.environ, **self._cluster.environ, "NODE_NAME": NODE}
        daemon = ends.enter_context(subprocess.Popen(command, stdout=log, stderr=log, env=environ))
        ends.callback(daemon.terminate)
        until(lambda: status(self._socket))
        self._client = evac.connect(job="train", rank=0, world=1, socket=str(self._socket))
        ends.callback(self._client.close)
        self._client.wait_connected(LIMIT_SECONDS)
        nbytes = PAGE + aligned(size) + PAGE
        self._client.reserve(
            nbytes=nbytes, body="part0.bin", layout="plain", incarnation=1, slots=2
        )

    def flushing(self) -> Mapping[str, float]:
        """A generation more is staged, and has to go out."""
        slot = None
        while slot is None:
            slot = self._client.acquire(5.0)
        self._step += 1
        slot.begin(1)
        for at in range(0, self._size, len(_BLOCK)):
            length = min(len(_BLOCK), self._size - at)
            slot.memory[PAGE + at : PAGE + at + length] = _BLOCK[:length]
        slot.complete(Header(SlotState.COMPLETE, 1, self._step, self._size))
        self._client.staged(slot, self._step)
        until(lambda: newest(self._socket) == [self._step])
        return self.idle()

    def idle(self) -> Mapping[str, float]:
        """Give the notice, wait for the end, take it back."""
        began = _CLOCK.monotonic()
        self._do("preempt")
        until(self._settled)
        flushed = _CLOCK.monotonic()
        until(lambda: len(self._patches(began)) >= 2)
        cordon, taint = self._patches(began)[:2]
        self._do("clear")
        until(lambda: "unschedulable" not in self._cluster_node()["spec"])
        return {
            "cordon_ms": (cordon - began) * 1e3,
            "taint_ms": (taint - began) * 1e3,
            "flush_ms": (flushed - began) * 1e3,
        }

    def _patches(self, since: float) -> list[float]:
        asked = self._cluster.tell("asked")
        path = f"/api/v1/nodes/{NODE}"
        like = [each for each in asked if (each["method"], each["path"]) == ("PATCH", path)]
        return [each["at"] for each in like if each["at"] >= since]

    def _cluster_node(self) -> Any:
        return self._cluster.tell("find", kind="Node", name=NODE)

    def _do(self, what: str) -> None:
        request = urllib.request.Request(f"{self._control}/{what}", method="POST")
        with urllib.request.urlopen(request, timeout=5) as answer:
            answer.read()

    def _settled(self) -> bool:
        order = (status(self._socket) or {}).get("order")
        return bool(order and order["settled"])


def run() -> int:
    """One scene for all rounds."""
    made: list[Scene] = []
    with ExitStack() as ends:
        folder = Path(
            ends.enter_context(
                tempfile.TemporaryDirectory(dir=os.environ.get("EVAC_BENCH_DIR", "/var/tmp"))
            )
        )

        def variants(size: int) -> list[Variant]:
            made.append(Scene(folder, size, ends))
            return [
                Variant("evacd, flushing", made[0].flushing),
                Variant("evacd, nothing to flush", made[0].idle),
            ]

        return main(
            "cordon",
            variants,
            [
                Ratio("in_time", "cordon_ms", "evacd, flushing", None, 1000.0, at_least=False),
                Ratio("tainted", "taint_ms", "evacd, flushing", None, 1000.0, at_least=False),
            ],
            size=2 * 2**30,
            rounds=7,
            warmup=1,
        )


if __name__ == "__main__":
    sys.exit(run())
