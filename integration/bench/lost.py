"""What is lost at a SIGKILL: steps between the one reached and the one that a new process restores.

Each cell is an experiment. A job trains on CPUs (--size counts the bytes of its state) and takes a
checkpoint every 5 steps, into a folder of its own each time. The one of step 15 meets its end:

- mid-staging: the training process is killed while it copies;
- mid-flush: it is killed once training may go on, and before the checkpoint is whole; what keeps its
  checkpoints in memory is killed as soon as it is there;
- hung: the checkpoint is whole, then one of two ranks does not come to step 18's all-reduce, and
  all of the job is killed;
- frozen: as hung, at step 16: the rank stops, threads and all, once the checkpoint is staged.

In the first two the training process alone is killed: what it started, and DLRover's agent, live on. In the
last two all processes of the job are, as a scheduler would; evac's daemon is the node's, not the job's. Then
its node is drained, and ends: evac resumes elsewhere, from the store, where others may use what the node still has.
Nothing loads: all steps are lost. DLRover is in its memory mode alone. A peer that is not installed
(`pip install --group peers`) is named.
"""

import argparse
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from queue import Empty

from harness import Ratio, Variant, machine, main
from losing import job
from losing.experiment import MIB, Found, experiment
from losing.plan import (
    DCP_PROCESS,
    DCP_THREAD,
    DLROVER,
    EVAC,
    EVAC_ALONE,
    EVERY,
    FLUSH,
    FROZEN,
    HUNG,
    MOMENTS,
    SNAPSHOT,
    STAGING,
)

SIZE = 48 * MIB
NEEDS = {
    EVAC: "evac",
    EVAC_ALONE: "evac",
    DCP_THREAD: "torch",
    DCP_PROCESS: "torch",
    SNAPSHOT: "torchsnapshot",
    DLROVER: "dlrover",
}
GOALS = {
    EVAC: {STAGING: EVERY, FLUSH: 0, HUNG: 2, FROZEN: 0},
    EVAC_ALONE: {STAGING: EVERY, FLUSH: EVERY, HUNG: 2, FROZEN: EVERY},
}


def build(size: int) -> Sequence[Variant]:
    """The rows as the harness wants them."""

    def variant(system: str) -> Variant:
        def run() -> Mapping[str, float]:
            tried = {moment: attempt(system, moment, size) for moment in MOMENTS}
            found = {at: one for at, one in tried.items() if isinstance(one, Found)}
            figures = {figure(moment): float(one.lost) for moment, one in found.items()}
            return {**figures, "torn": float(sum(one.low != one.high for one in found.values()))}

        return Variant(system, run)

    made = []
    for system in NEEDS:
        if installed(system):
            made.append(variant(system))
        else:
            sys.stderr.write(f"{system} is left out: not installed\n")
    return made


def attempt(system: str, moment: str, size: int) -> Found | str:
    """One cell, or that there is none; the other cells are tried all the same."""
    try:
        return experiment(system, moment, size)
    except (RuntimeError, TimeoutError, Empty) as error:
        sys.stderr.write(f"{system}, {moment}: {type(error).__name__}: {error}\n")
        return "did not run"


def figure(moment: str) -> str:
    """Its name in a report."""
    return f"{moment.replace('-', '_')}_lost_steps"


def installed(system: str) -> bool:
    """Whether it can be tried here."""
    return importlib.util.find_spec(NEEDS[system]) is not None


def show(arguments: Sequence[str]) -> int:
    """The table for a person, row by row as they come."""
    parser = argparse.ArgumentParser(prog="lost", description=__doc__)
    parser.add_argument("--size", type=int, default=SIZE // MIB, help="MiB (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="as the harness has it; see there")
    size = parser.parse_args(arguments).size * MIB
    on = machine()
    said = f"lost: state of {size // MIB} MiB, a checkpoint every {EVERY} steps; steps lost"
    sys.stdout.write(f"{said}\n{on['cpu']}, {on['cores']} cores, Linux {on['kernel']}\n\n")
    sys.stdout.write(_row("", MOMENTS))
    for system in NEEDS:
        cells = (
            [str(attempt(system, moment, size)) for moment in MOMENTS]
            if installed(system)
            else ["not installed"]
        )
        sys.stdout.write(_row(system, cells))
        sys.stdout.flush()
    return 0


def _row(name: str, cells: Sequence[str]) -> str:
    return "  ".join([name.ljust(24), *(cell.ljust(18) for cell in cells)]).rstrip() + "\n"


RATIOS = [
    Ratio(f"{system} {moment}", figure(moment), system, None, float(most), at_least=False)
    for system, goals in GOALS.items()
    for moment, most in goals.items()
]

if __name__ == "__main__":
    if sys.argv[1:2] == ["--process"]:
        sys.exit(job.main(sys.argv[2:]))
    if "--json" in sys.argv:
        sys.exit(main("lost", build, RATIOS, size=SIZE, rounds=1))
    sys.exit(show(sys.argv[1:]))
