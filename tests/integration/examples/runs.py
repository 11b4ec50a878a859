"""The proof that every example is put to: killed and resumed, it equals one that was not."""

import json
import os
import signal
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.handlers.torch import ranks

LIMIT = 120.0


VARIABLES = ("EVAC_SOCKET", "HF_HUB_OFFLINE")


def process(act: Callable[..., None], *args: Any) -> BaseProcess:
    """As `ranks.process`, with this test's variables: a forked one has those of the first test."""
    return ranks.process(_enter, {name: os.environ[name] for name in VARIABLES}, act, *args)


def _enter(variables: dict[str, str], act: Callable[..., None], *args: Any) -> None:
    os.environ.update(variables)
    act(*args)


def proven(act: Callable[..., None], folder: Path, *, killed: int, world: int = 1) -> None:
    """Run *act* whole, killed and resumed; compare what the ranks report.

    Args:
        act: ``act(rank, world, folder, kill_after)`` trains to the end and reports to `report`, or
            ends itself with SIGKILL after step *killed*.
    """
    for name in ("whole", "cut"):
        (folder / name).mkdir()
    started = [
        process(act, rank, world, str(folder / name), kill)
        for name, kill in (("whole", 0), ("cut", killed))
        for rank in range(world)
    ]
    for one in started:
        one.join(LIMIT)
    assert [one.exitcode for one in started] == [0] * world + [-signal.SIGKILL] * world
    resumed = [process(act, rank, world, str(folder / "cut"), 0) for rank in range(world)]
    for one in resumed:
        one.join(LIMIT)
    assert [one.exitcode for one in resumed] == [0] * world
    for rank in range(world):
        theirs, ours = (
            json.loads((folder / name / f"{rank}.json").read_text()) for name in ("whole", "cut")
        )
        assert ours["first"] == killed + 1
        assert ours["losses"] == {
            step: loss for step, loss in theirs["losses"].items() if int(step) > killed
        }
        assert ours["digest"] == theirs["digest"]


def report(rank: int, folder: str, losses: dict[int, str], digest: str) -> None:
    """What a run that came to its end leaves."""
    document: dict[str, Any] = {"first": min(losses), "losses": losses, "digest": digest}
    Path(f"{folder}/{rank}.json").write_text(json.dumps(document))


def end_here() -> None:
    """As the kernel would: nothing of Python runs any more."""
    os.kill(os.getpid(), signal.SIGKILL)
