"""Real torchrun agents on loopback, each a node of its own, and what their workers did."""

import json
import os
import signal
import subprocess
import sysconfig
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from evac.rendezvous.address import TCPSTORE, Address, parse
from tests.services.process import HOST, PATIENCE_SECONDS, free_port

T = TypeVar("T")
SCRIPT = Path(__file__).parent / "train.py"


@dataclass(frozen=True)
class Machine:
    """Where a node's agent runs; by default, this one.

    Attributes:
        enter: What to put before a command.
        address: For the others.
        interface: That it has this address.
    """

    enter: tuple[str, ...] = ()
    address: str = HOST
    interface: str = "lo"


class Job:
    """A run of torchrun on several nodes."""

    def __init__(
        self,
        folder: Path,
        *,
        nnodes: str = "2:3",
        backend: str = "evac",
        conf: Mapping[str, object] | None = None,
        max_restarts: int = 0,
        pause: float = 0.05,
        port: int | None = None,
        run: str = "run",
        env: Mapping[str, str] | None = None,
        script: Path = SCRIPT,
        machines: Mapping[str, Machine] | None = None,
        scheme: str = TCPSTORE,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.run, self.script = folder, run, script
        self.port = port or free_port()
        self.endpoint = f"{HOST}:{self.port}"
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        self._nnodes, self._backend, self._max_restarts = nnodes, backend, max_restarts
        self._conf, self.pause = dict(conf or {}), pause
        self._env = dict(env or {})
        self._machines = dict(machines or {})
        self._scheme = scheme

    # --- nodes -----------------------------------------------------------------------------

    def start(self, node: str, *, boot: str = "boot", endpoint: str = "", **conf: object) -> None:
        """Start the agent of a node."""
        options, machine = {**self._conf, **conf}, self._machines.get(node, Machine())
        if self._backend == "evac":
            options = {"store": self._scheme, "node": node, "boot": boot, **options}
        command = [*machine.enter, *self.command(node, machine, endpoint, options)]
        env = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": machine.interface,
            "EVAC_SOCKET": str(self.folder / "no-daemon.sock"),
            **self._env,
        }
        with (self.folder / f"{node}.log").open("ab") as output:
            self.agents[node] = subprocess.Popen(
                command,
                env=env,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def command(
        self, node: str, machine: Machine, endpoint: str, options: Mapping[str, object]
    ) -> list[str]:
        """What is run on a node."""
        return [
            str(Path(sysconfig.get_path("scripts")) / "torchrun"),
            f"--nnodes={self._nnodes}",
            "--nproc-per-node=1",
            f"--rdzv-backend={self._backend}",
            f"--rdzv-endpoint={endpoint or self.endpoint}",
            f"--rdzv-id={self.run}",
            f"--max-restarts={self._max_restarts}",
            f"--local-addr={machine.address}",
            *(
                [f"--rdzv-conf={','.join(f'{k}={v}' for k, v in options.items())}"]
                if options
                else []
            ),
            str(self.script),
            str(self.folder),
            node,
            str(self.pause),
        ]

    def signal(self, node: str, number: signal.Signals) -> None:
        """To the agent and its workers at once, as when a machine ends."""
        for pid in (self.agents[node].pid, *children(self.agents[node].pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def finish(self) -> None:
        """Let the workers end well, all after the same step."""
        (self.folder / "finish").touch()

    def ended(self, node: str, seconds: float = PATIENCE_SECONDS) -> int:
        """Exit code of a node's agent, once it has ended."""
        try:
            return self.agents[node].wait(seconds)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"agent {node} does not end: {self.log_of(node)[-3000:]}") from None

    def close(self) -> None:
        """Kill what still runs."""
        for node, agent in self.agents.items():
            self.signal(node, signal.SIGKILL)
            agent.wait()
        for event in self.events():
            # Workers whose agent was killed before they were known to be its children.
            with suppress(OSError):
                command = Path(f"/proc/{event['pid']}/cmdline").read_bytes()
                if str(self.folder).encode() in command:
                    os.kill(event["pid"], signal.SIGKILL)

    def log_of(self, node: str) -> str:
        """What a node's agent and workers printed."""
        path = self.folder / f"{node}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    # --- what happened ---------------------------------------------------------------------

    def events(self) -> list[dict[str, Any]]:
        """What all workers told so far."""
        path = self.folder / "events.jsonl"
        if not path.exists():
            return []
        return [
            json.loads(line) for line in path.read_text().splitlines(True) if line.endswith("\n")
        ]

    def trains(
        self, nodes: Collection[str], *, after: float = 0.0, seconds: float = PATIENCE_SECONDS
    ) -> float:
        """When all of *nodes*, and nobody else, had done a step together."""

        def probe() -> float | None:
            first: dict[str, float] = {}
            for event in self.events():
                if (
                    event["event"] == "step"
                    and event["at"] > after
                    and event["world"] == len(nodes)
                ):
                    first.setdefault(event["node"], event["at"])
            return max(first.values()) if set(first) == set(nodes) else None

        return self.wait(f"{sorted(nodes)} train", probe, seconds)

    def wait(
        self, what: str, probe: Callable[[], T | None], seconds: float = PATIENCE_SECONDS
    ) -> T:
        """The first answer of *probe* that is not None or False."""
        until = time.perf_counter() + seconds
        while True:
            found = probe()
            if found is not None and found is not False:
                return found
            if time.perf_counter() > until:
                logs = "\n".join(f"--- {node}\n{self.log_of(node)[-2500:]}" for node in self.agents)
                raise TimeoutError(f"{what}: not within {seconds:g} s\n{logs}")
            time.sleep(0.02)

    def address(self) -> Address:
        """Where the job's log lies by now, as its workers were told last."""
        told = [str(event["rendezvous"]) for event in self.events() if event["rendezvous"]]
        return parse(told[-1])

    def node_of_rank(self, rank: int) -> str:
        """The node of that rank in the first world."""
        return next(str(e["node"]) for e in self.events() if e["rank"] == rank)

    def worlds_of(self, node: str) -> list[int]:
        """The size of each world that the node's workers were started for."""
        return [
            int(e["world"]) for e in self.events() if (e["event"], e["node"]) == ("started", node)
        ]

    def worker(self, node: str) -> int:
        """The last that it has started."""
        return int(next(e["pid"] for e in reversed(self.events()) if e["node"] == node))

    def worker_is_dead(self, node: str) -> bool:
        """Whether a node's worker has ended, be it that its agent has not seen that yet."""
        pid = self.worker(node)
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
        except FileNotFoundError:
            return True

    def restarts(self, *, after: float = 0.0) -> int:
        """The most restarts that any agent has counted."""
        return max((e["restarts"] for e in self.events() if e["at"] >= after), default=0)

    def steps_in_order(self) -> list[int]:
        """Steps as the first rank of each world did them."""
        return [e["step"] for e in self.events() if e["event"] == "step" and e["rank"] == 0]


def resources(process: "subprocess.Popen[bytes]") -> tuple[int, int]:
    """Open files and threads of a process."""
    of = Path(f"/proc/{process.pid}")
    return len(list((of / "fd").iterdir())), len(list((of / "task").iterdir()))


def children(pid: int) -> list[int]:
    """Direct children of a process."""
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def now() -> float:
    """On the clock of the events: one for all processes of a machine."""
    return time.perf_counter()
