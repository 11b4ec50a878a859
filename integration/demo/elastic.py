"""Three nodes become two and three again, and the loss curve goes on: `make demo-elastic`.

Each node has an evacd of its own and one torchrun agent; a metadata service tells one of them that its
machine is preempted. The same is then done to stock torchrun, whose time stands beside.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import sysconfig
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

from integration.demo.stage import Failed, Processes, transient, wait_until

STEPS = 100_000
TORCHRUN = str(Path(sysconfig.get_path("scripts")) / "torchrun")
STOCK_LIMIT_SECONDS = 120.0
# Losses of different worlds are sums in different orders.
CLOSE = 2e-2


@dataclass(frozen=True)
class Loss:
    """One step, as the first rank of its world saw it."""

    at: float
    step: int
    world: int
    value: float


def main() -> int:
    """Show it; 0 if the proof holds."""
    parser = argparse.ArgumentParser(prog="demo-elastic", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="keep the working folder")
    parser.add_argument("--no-stock", action="store_true", help="leave stock torchrun out")
    args = parser.parse_args()
    # torch's store asks DNS for the name of each client: let no slow answer decide, for nobody.
    os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
    directory = Path(tempfile.mkdtemp(prefix="evac-elastic-"))
    processes = Processes(directory)
    try:
        held = Elastic(directory, processes).run(stock=not args.no_stock)
    except Failed as failure:
        transient("")
        print(f"\nThe demo failed: {failure}\nLogs are in {directory}")
        return 1
    finally:
        processes.kill_all()
    if held and not args.keep:
        shutil.rmtree(directory)
    return 0 if held else 1


class Elastic:
    """Its acts, in order."""

    def __init__(self, directory: Path, processes: Processes) -> None:
        self.directory = directory
        self.processes = processes
        self.began = now()

    def run(self, *, stock: bool) -> bool:
        """All acts; whether the proof holds."""
        print(__doc__.strip().splitlines()[0] + "\n")
        self.say("Starting a rendezvous store (evac store), and three nodes: evacd and torchrun")
        port = self.start_store("evac")
        preempt = {node: self.start_node(node) for node in ("node-a", "node-b", "node-c")}
        agents = {node: self.start_agent("ours", node, port) for node in preempt}
        self.trains("ours", world=3, after=0.0, steps=15)

        self.say("node-b is preempted: its metadata service says so, 30 s left")
        noticed = now()
        post(preempt["node-b"])
        shrunk = self.trains("ours", world=2, after=noticed)
        wait_until("node-b's agent ends", lambda: agents["node-b"].poll() is not None, seconds=30)
        self.trains("ours", world=2, after=shrunk, steps=15)
        self.say(
            f"Two train on, {shrunk - noticed:.1f} s after the notice; "
            f"node-b's agent ended with {agents['node-b'].returncode}"
        )

        self.say("node-d comes in its place")
        self.start_node("node-d")
        came = now()
        agents["node-d"] = self.start_agent("ours", "node-d", port)
        grown = self.trains("ours", world=3, after=came)
        self.trains("ours", world=3, after=grown, steps=15)
        self.say(f"Three train, {grown - came:.1f} s after its agent was started")
        for node in ("node-a", "node-c", "node-d"):
            agents[node].send_signal(signal.SIGKILL)
        ours = self.losses("ours")

        self.say("The same steps in a run that was never disturbed, for comparison")
        whole = self.undisturbed(max(one.step for one in ours))
        held = self.prove(ours, whole)
        times: list[tuple[str, float | None, float | None]] = [
            ("evac", shrunk - noticed, grown - came)
        ]
        if stock:
            times += self.stock()
        print(
            "\n  until the others train on          two, after one left      three, with one more"
        )
        for name, leave, join in times:
            print(f"  {name:<32} {said(leave):>22} {said(join):>24}")
        return held

    # --- acts ----------------------------------------------------------------------------

    def stock(self) -> list[tuple[str, float | None, float | None]]:
        """Stock torchrun at its default, and with its shared store switched off."""
        found: list[tuple[str, float | None, float | None]] = []
        variants: tuple[tuple[str, dict[str, str]], ...] = (
            ("stock torchrun (c10d)", {}),
            ("... with no shared store", {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}),
        )
        for name, environment in variants:
            run = f"stock-{len(found)}"
            self.say(f"{name}: a SIGTERM to one agent is all that it can be told")
            port = self.start_store(run)
            agents = {
                node: self.start_agent(run, node, port, backend="c10d", environment=environment)
                for node in ("node-a", "node-b", "node-c")
            }
            self.trains(run, world=3, after=0.0, steps=15)
            began = now()
            agents["node-b"].send_signal(signal.SIGTERM)
            leave = self.trains_in_time(run, world=2, after=began)
            join = None
            if leave is not None:
                began = now()
                self.start_agent(run, "node-d", port, backend="c10d", environment=environment)
                join = self.trains_in_time(run, world=3, after=began)
            found.append((name, leave, join))
            self.processes.kill_all()
        return found

    def undisturbed(self, steps: int) -> dict[int, float]:
        """Losses of one rank alone, by step."""
        self.processes.start(
            "whole",
            [
                TORCHRUN, "--standalone", "--nnodes=1", "-m", "integration.demo.elastic_train",
                "--plain", "--pause=0", f"--steps={steps}", f"--losses={self.directory}/whole.txt",
            ],
        )  # fmt: skip
        wait_until(
            "the undisturbed run",
            lambda: any(one.step == steps for one in self.losses("whole")),
            seconds=120,
        )
        return {one.step: one.value for one in self.losses("whole")}

    def prove(self, ours: list[Loss], whole: dict[int, float]) -> bool:
        """No step is missing, and each loss is what it would have been."""
        again = len(ours) - len({one.step for one in ours})
        missing = set(range(1, max(one.step for one in ours) + 1)) - {one.step for one in ours}
        worst = max(abs(one.value - whole[one.step]) for one in ours)
        print("\n  step   nodes   loss       undisturbed")
        for before, one in zip([None, *ours], ours, strict=False):
            if before is None or before.world != one.world or one is ours[-1]:
                if before is not None and one is not ours[-1]:
                    print(
                        f"  {before.step:>4}   {before.world:>5}   {before.value:<8.4f}   {whole[before.step]:.4f}"
                    )
                print(
                    f"  {one.step:>4}   {one.world:>5}   {one.value:<8.4f}   {whole[one.step]:.4f}"
                )
        held = not missing and worst < CLOSE
        print(
            f"\n  {'PROVEN' if held else 'NOT PROVEN'}: {len({one.step for one in ours})} steps, "
            f"{len(missing)} missing, {again} done twice; the largest difference of a loss is {worst:.1e}."
        )
        return held

    # --- parts ---------------------------------------------------------------------------

    def start_store(self, name: str) -> int:
        """`evac store`; its port."""
        log = self.directory / f"store-{name}.log"
        process = self.processes.start(f"store-{name}", ["-m", "evac", "store", "--port", "0"])

        def port() -> int:
            lines = [
                one for one in log.read_text().splitlines() if one.startswith("serving on port")
            ]
            return int(lines[0].split()[-1]) if lines else 0

        found: int = wait_until("the store serves", port, seconds=30, alive=[process])
        return found

    def start_node(self, node: str) -> str:
        """A metadata service and an evacd; the URL that preempts the node."""
        home = self.directory / node
        home.mkdir()
        log = self.directory / f"{node}-metadata.log"
        self.processes.start(f"{node}-metadata", ["-m", "evacd", "simulate", "gcp", "--json"])

        def first_line() -> str:
            lines = log.read_text().splitlines() if log.exists() else []
            return next((line for line in lines if line.startswith("{")), "")

        metadata = json.loads(wait_until("the metadata service", first_line, seconds=30))
        self.processes.start(
            f"{node}-evacd",
            [
                "-m", "evacd", "run",
                "--store", f"file://{self.directory}/store",
                "--cloud", "gcp",
                "--metadata-url", metadata["url"],
                "--no-http",
                "--state-node", node,
                "--socket", f"{home}/evacd.sock",
                "--admin-socket", f"{home}/admin.sock",
                "--state-dir", f"{home}/state",
                # Every step goes to the store as it comes: it is a small model.
                "--quiet-min-interval-seconds", "0",
                "--quiet-bytes-per-second", "100%",
            ],
        )  # fmt: skip
        wait_until(f"evacd of {node} listens", (home / "evacd.sock").exists, seconds=30)
        return str(metadata["control"]) + "/preempt"

    def start_agent(
        self,
        run: str,
        node: str,
        port: int,
        *,
        backend: str = "evac",
        environment: dict[str, str] | None = None,
    ) -> Popen[bytes]:
        """One node's torchrun."""
        command = [
            TORCHRUN,
            "--nnodes=2:3",
            "--nproc-per-node=1",
            f"--rdzv-backend={backend}",
            f"--rdzv-endpoint=127.0.0.1:{port}",
            "--rdzv-conf=is_host=0",
            f"--rdzv-id={run}",
            "--local-addr=127.0.0.1",
            f"--max-restarts={0 if backend == 'evac' else 3}",
            "-m", "integration.demo.elastic_train",
            f"--steps={STEPS}",
            f"--losses={self.directory}/{run}.txt",
        ]  # fmt: skip
        if backend != "evac":
            command.append("--plain")
        return self.processes.start(
            f"{run}-{node}",
            command,
            {
                "EVAC_JOB": "gpt",
                "EVAC_SOCKET": str(self.directory / node / "evacd.sock"),
                "OMP_NUM_THREADS": "1",
                **(environment or {}),
            },
        )

    def trains(
        self, run: str, *, world: int, after: float, steps: int = 1, seconds: float = 90.0
    ) -> float:
        """When so many steps were done in a world of that size."""

        def done() -> float | None:
            found = [one.at for one in self.losses(run) if one.world == world and one.at > after]
            return found[steps - 1] if len(found) >= steps else None

        at: float = wait_until(
            f"{world} nodes train",
            done,
            seconds=seconds,
            progress=lambda: (
                f"           step {max((one.step for one in self.losses(run)), default=0)}"
            ),
        )
        return at

    def trains_in_time(self, run: str, *, world: int, after: float) -> float | None:
        """Seconds until they do; None: not within the limit."""
        try:
            return self.trains(run, world=world, after=after, seconds=STOCK_LIMIT_SECONDS) - after
        except Failed:
            return None

    def losses(self, run: str) -> list[Loss]:
        """What the first rank of each world wrote."""
        path = self.directory / f"{run}.txt"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        words = [line.split() for line in lines if line.endswith("\n")]
        return [Loss(float(at), int(step), int(world), float(v)) for at, step, world, v in words]

    def say(self, line: str) -> None:
        """One line of the story, with the seconds since the demo began."""
        transient("")
        print(f"[{now() - self.began:5.1f} s]  {line}", flush=True)


def said(seconds: float | None) -> str:
    """``2.9 s``, or what it was waited for in vain."""
    return f"{seconds:.1f} s" if seconds is not None else f"not in {STOCK_LIMIT_SECONDS:.0f} s"


def now() -> float:
    """On one clock with the workers."""
    return time.monotonic()  # noqa: TID251 - a person watches in real time


def post(url: str) -> None:
    """An empty POST to the simulator's control."""
    with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=5) as answer:
        answer.read()


if __name__ == "__main__":
    sys.exit(main())
