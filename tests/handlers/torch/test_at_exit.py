"""A program that ends without close(): what is under way is committed first."""

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.handlers.torch import ranks
from tests.handlers.torch.training import Run, committed

_LIMIT = 120.0
# One ends at its last line, the other by an exception that nobody catches.
PROGRAM = """
from tests.handlers.torch.test_at_exit import go_on
saver = go_on({store!r}, {last!r})
"""


def go_on(store: str, last: str) -> object:
    """Stage faster than it is committed; say which was staged last."""
    run, staged = Run(), 0
    saver = run.saver(store=store)
    for step in range(1, 40):
        run.train()
        if saver.step(step):
            staged = step
    # As a data loader's worker: it inherits what waits here, and ends before.
    child = multiprocessing.get_context("fork").Process(target=os.getpid)
    child.start()
    child.join(_LIMIT)
    assert child.exitcode == 0
    Path(last).write_text(str(staged))
    return saver


@pytest.mark.parametrize(("end", "code"), [("", 0), ("raise KeyError", 1)])
def test_a_program_that_ends_commits_what_is_under_way(
    store: str, tmp_path: Path, end: str, code: int
) -> None:
    last = tmp_path / "last"
    program = PROGRAM.format(store=store, last=str(last)) + end
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=_LIMIT, check=False
    )
    assert ended.returncode == code, ended.stderr
    assert committed(store, int(last.read_text()))
    assert "Traceback" not in ended.stderr.replace("Traceback", "", code), ended.stderr


def leave(store: str, last: str) -> None:
    saver = go_on(store, last)
    assert saver
    sys.exit(3)


def test_a_process_that_leaves_early_does_so_too(store: str, tmp_path: Path) -> None:
    last = tmp_path / "last"
    left = ranks.process(leave, store, str(last))
    left.join(_LIMIT)
    assert left.exitcode == 3
    assert committed(store, int(last.read_text()))


def leave_together(rank: int, store: str, last: str) -> None:
    """Two ranks that agree on what to commit after their last line."""
    run = Run(rank=rank, ddp=True)
    saver = run.saver(store=store)
    for step in range(1, 20):
        run.train()
        while not saver.step(step):
            pass
    Path(last).write_text("19")


def test_ranks_that_end_together_commit_the_same_newest_generation(
    store: str, tmp_path: Path
) -> None:
    last = tmp_path / "last"
    ranks.run(2, leave_together, store, str(last))
    assert committed(store, int(last.read_text()))
