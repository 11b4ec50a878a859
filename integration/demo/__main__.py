"""The main job, end to end, with real parts only.

A training run on two ranks loses its machine in mid-step and goes on from the store; its
losses are then compared, bit for bit, with those of a run that was never interrupted.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen
from typing import Any

from evac import incident
from evac.admin import read_status
from integration.demo.stage import (
    Failed,
    Processes,
    bar,
    stop,
    transient,
    wait_until,
    webhook,
)

STEPS = 60
EVERY = 5
NOTICE_AFTER = 23
WORLD = 2


def main() -> int:
    """Show it; 0 if the proof holds."""
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="keep the working folder")
    args = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="evac-demo-"))
    processes = Processes(directory)
    try:
        with webhook() as (url, told):
            held = Demo(directory, processes, url, told).run()
    except Failed as failure:
        transient("")
        print(f"\nThe demo failed: {failure}\nLogs are in {directory}")
        return 1
    finally:
        processes.kill_all()
    if held and not args.keep:
        shutil.rmtree(directory)
    return 0 if held else 1


class Demo:
    """Its acts, in order."""

    def __init__(
        self, directory: Path, processes: Processes, url: str, told: list[dict[str, Any]]
    ) -> None:
        self.directory = directory
        self.processes = processes
        self.webhook_url = url
        self.told = told
        self.store = directory / "store"
        self.began = time.monotonic()  # noqa: TID251 - a person watches in real time

    def run(self) -> bool:
        """All acts; whether the proof holds."""
        print(__doc__.strip().splitlines()[0] + "\n")
        self.say("A run that is never interrupted, and has never heard of evac, for comparison")
        whole = self.uninterrupted()

        self.say("Starting evacd, a metadata service with GCP's protocol, and two workloads")
        metadata = self.start_metadata()
        daemon = self.start_daemon("first", metadata["url"])
        ranks = self.start_training("interrupted", "first", every=EVERY)
        self.start_index("first")
        self.train_until("interrupted", NOTICE_AFTER, ranks)
        self.freeze(ranks)
        self.say("The notice: preempted, 30 s left")
        post(metadata["control"] + "/preempt")
        self.evacuated("first", daemon)
        for rank in ranks:
            rank.kill()
        daemon.kill()
        self.say("SIGKILL to both ranks and to evacd: the machine is gone")
        print("\n" + incident.render(*incident.load(self.journal("first"))) + "\n")

        self.say("What the store holds (evac ls)")
        print(self.evac("ls", f"file://{self.store}"))
        self.say("A new machine: a fresh evacd on the same store; the run resumes")
        metadata = self.start_metadata()
        self.start_daemon("second", metadata["url"])
        ranks = self.start_training("resumed", "second", every=EVERY)
        self.train_until("resumed", STEPS, ranks)
        wait_until(
            "the resumed run ends",
            lambda: all(rank.poll() is not None for rank in ranks),
            seconds=30,
        )
        return self.prove(whole)

    # --- acts ----------------------------------------------------------------------------

    def uninterrupted(self) -> dict[tuple[int, int], str]:
        """Losses of a run without evac, by (rank, step)."""
        ranks = self.start_training("whole", socket_of=None, every=0)
        self.train_until("whole", STEPS, ranks)
        return self.losses("whole")[1]

    def freeze(self, ranks: list[Popen[bytes]]) -> None:
        """Stop rank 1 anywhere, and rank 0 in the collective that then waits for it."""
        stop(ranks[1])
        before = self.steps_done("interrupted")
        wait_until("rank 0 hangs in a collective", hung(ranks[0].pid), seconds=10)
        stop(ranks[0])
        frozen = self.steps_done("interrupted")
        self.say(
            f"SIGSTOP to both ranks at step {frozen} (rank 0 inside an all-reduce, "
            f"{frozen - before} steps after rank 1): no line of the trainer runs any more"
        )

    def evacuated(self, name: str, daemon: Popen[bytes]) -> None:
        """Wait until the order has run its course on every seam, and that is on record."""
        expected = {
            ("report.written", None),
            ("cordon.closed", None),
            *(("departure.announced", word) for word in ("leaving", "durable")),
        }

        def settled() -> bool:
            events = incident.load(self.journal(name))[0].events if self.begun(name) else ()
            return expected <= {(event.name, event.data.get("word")) for event in events}

        wait_until("the evacuation", settled, seconds=30, alive=[daemon])

    def begun(self, name: str) -> bool:
        """Whether the daemon has an incident on record."""
        return bool(incident.load(self.journal(name)))

    def prove(self, whole: dict[tuple[int, int], str]) -> bool:
        """Compare what was trained after the resume with the run that was never cut off."""
        first, resumed = self.losses("resumed")
        _, interrupted = self.losses("interrupted")
        done = int(first.removeprefix("resumed "))
        same = [key for key, loss in resumed.items() if whole.get(key) == loss]
        expected = WORLD * (STEPS - done)
        lost = max(step for _, step in interrupted) - done
        print("  step   rank   loss uninterrupted               loss resumed")
        for key in [(0, done + 1), (1, done + 1), (0, STEPS), (1, STEPS)]:
            rank, step = key
            print(
                f"  {step:>4}   {rank:>4}   {shown(whole.get(key)):<30}  {shown(resumed.get(key))}"
            )
        held = len(same) == len(resumed) == expected
        print(
            f"\n  {'PROVEN' if held else 'NOT PROVEN'}: {len(same)} of {expected} losses after the "
            f"resume at step {done} equal, bit for bit.\n"
            f"  Work repeated: {lost} steps (staged every {EVERY}). Departures told: "
            f"{', '.join(sorted({one['word'] for one in self.told}))}; cordoned: {self.cordoned()}.\n"
            f"  The index wrote itself in its turn: "
            f"{(self.directory / 'index.bin').stat().st_size:,} bytes.\n"
        )
        print(
            "Read next: README.md (install it on a VM; the client in 15 lines),\n"
            "integration/demo/train.py (what a training script needs), evacd run --help."
        )
        return held

    # --- parts ---------------------------------------------------------------------------

    def start_metadata(self) -> dict[str, str]:
        """The simulator; the URLs that it prints first."""
        log = self.directory / "metadata.log"
        log.unlink(missing_ok=True)
        process = self.processes.start("metadata", ["-m", "evacd", "simulate", "gcp", "--json"])

        def first_line() -> str:
            lines = log.read_text().splitlines() if log.exists() else []
            return next((line for line in lines if line.startswith("{")), "")

        line = wait_until("the metadata service starts", first_line, seconds=15, alive=[process])
        urls: dict[str, str] = json.loads(line)
        return urls

    def start_daemon(self, name: str, metadata_url: str) -> Popen[bytes]:
        """An evacd with its own sockets and state, on the demo's store."""
        home = self.directory / name
        home.mkdir()
        cordon = Path(__file__).parent / "cordon.py"
        process = self.processes.start(
            f"evacd-{name}",
            [
                "-m", "evacd", "run",
                "--store", f"file://{self.store}",
                "--cloud", "gcp",
                "--metadata-url", metadata_url,
                "--no-http",
                "--socket", f"{home}/evacd.sock",
                "--admin-socket", f"{home}/admin.sock",
                "--state-dir", f"{home}/state",
                "--cordon-command", f"{sys.executable} {cordon} {self.directory}/cordoned.json",
                "--departure-webhook-url", self.webhook_url,
            ],
        )  # fmt: skip
        wait_until("evacd listens", (home / "evacd.sock").exists, seconds=15, alive=[process])
        return process

    def start_training(self, name: str, socket_of: str | None, *, every: int) -> list[Popen[bytes]]:
        """Two ranks; their losses go to ``<name>/rank<r>.txt``."""
        losses = self.directory / f"losses-{name}"
        losses.mkdir()
        environment = {
            "WORLD_SIZE": str(WORLD),
            "EVAC_JOB": "gpt",
            "EVAC_PRIORITY": "100",
            "EVAC_SOCKET": str(self.directory / (socket_of or "none") / "evacd.sock"),
            "TORCHELASTIC_RUN_ID": "demo",
        }
        command = [
            "-m", "integration.demo.train",
            "--steps", str(STEPS),
            "--every", str(every),
            "--losses", str(losses),
            "--meet", str(self.directory / f"meet-{name}"),
        ]  # fmt: skip
        return [
            self.processes.start(f"{name}-rank{rank}", command, {**environment, "RANK": str(rank)})
            for rank in range(WORLD)
        ]

    def start_index(self, socket_of: str) -> None:
        """The callback workload."""
        socket = self.directory / socket_of / "evacd.sock"
        self.processes.start(
            "index",
            ["-m", "integration.demo.index", "--into", str(self.directory / "index.bin")],
            {"EVAC_SOCKET": str(socket)},
        )
        wait_until(
            "the index registers",
            lambda: any(
                one["job"] == "index" for one in read_status(socket, timeout=5.0)["workloads"]
            ),
            seconds=15,
        )

    def train_until(self, name: str, step: int, ranks: list[Popen[bytes]]) -> None:
        """Show progress until both ranks have done *step*."""
        wait_until(
            f"training reaches step {step}",
            lambda: self.steps_done(name) >= step,
            seconds=60,
            alive=ranks,
            progress=lambda: f"           {name:<12} {bar(self.steps_done(name), STEPS)}",
        )
        self.say(f"{name:<12} {bar(self.steps_done(name), STEPS)} steps on {WORLD} ranks")

    def losses(self, name: str) -> tuple[str, dict[tuple[int, int], str]]:
        """How the run began, and its losses by (rank, step), as exact hexadecimal floats."""
        found: dict[tuple[int, int], str] = {}
        first = ""
        for rank in range(WORLD):
            path = self.directory / f"losses-{name}" / f"rank{rank}.txt"
            lines = path.read_text().splitlines(keepends=True) if path.exists() else []
            first = lines[0].strip() if lines else first
            for line in lines[1:]:
                if line.endswith("\n"):
                    step, loss = line.split()
                    found[rank, int(step)] = loss
        return first, found

    def steps_done(self, name: str) -> int:
        """The last step that all ranks have done."""
        _, losses = self.losses(name)
        last = [max((s for r, s in losses if r == rank), default=0) for rank in range(WORLD)]
        return min(last)

    def evac(self, *arguments: str) -> str:
        """What the `evac` command prints."""
        command = [sys.executable, "-m", "evac", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def cordoned(self) -> str:
        """Which order the cordon command was given."""
        order = json.loads((self.directory / "cordoned.json").read_text())["order"]
        return f"{order['source']} {order['kind']}"

    def journal(self, name: str) -> Path:
        """Where the daemon of that name keeps its incidents."""
        return self.directory / name / "state" / "incidents.sqlite"

    def say(self, line: str) -> None:
        """One line of the story, with the seconds since the demo began."""
        transient("")
        elapsed = time.monotonic() - self.began  # noqa: TID251
        print(f"[{elapsed:5.1f} s]  {line}", flush=True)


def shown(loss: str | None) -> str:
    """A loss as people read it, and exactly."""
    return f"{float.fromhex(loss):.4f} = {loss}" if loss else "-"


def hung(pid: int) -> Callable[[], bool]:
    """A probe for a process that waits in the kernel and gets nowhere, as in a collective."""
    seen: list[tuple[str, ...]] = []

    def probe() -> bool:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        state, user, system = fields[0], fields[11], fields[12]
        seen.append((state, user, system))
        return len(seen) > 20 and len(set(seen[-20:])) == 1 and state == "S"

    return probe


def post(url: str) -> None:
    """An empty POST to the simulator's control."""
    request = urllib.request.Request(url, method="POST")
    with urllib.request.urlopen(request, timeout=5) as answer:
        answer.read()


if __name__ == "__main__":
    sys.exit(main())
