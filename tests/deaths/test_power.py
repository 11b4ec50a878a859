"""The power goes after a commit was told: what was synced by then is a complete generation."""

import asyncio
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from evac.commit import State, finish_all, survey, verify
from evac.store import open_store
from tests.agent.daemon.nodes import Node, until
from tests.deaths.power import CALLS, Disk, calls
from tests.handlers.commit.made import PREFIX

MEBI = 1 << 20
STRACE = ("strace", "-f", "-qq", "--seccomp-bpf", "-y", "-s", "1000", "-e", f"trace={CALLS}", "-o")
LUCK = 3

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


@pytest.fixture
def disk() -> Iterator[Path]:
    """A folder on a real disk: /tmp may be a tmpfs, which takes no O_DIRECT."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


class Traced(Node):
    """A node whose daemon strace looks at."""

    def command(self, *flags: str) -> list[str]:
        return [*STRACE, str(self.home / "trace"), *super().command(*flags)]

    def stop(self) -> None:
        """The daemon itself is told to."""
        assert self.process
        tracer = self.process.pid
        [pid] = Path(f"/proc/{tracer}/task/{tracer}/children").read_text().split()
        os.kill(int(pid), signal.SIGTERM)
        self.process.wait(30.0)


def steps(root: Path, prefix: str) -> set[int]:
    """Complete after the next daemon's start; each bit of them is right."""

    async def look() -> set[int]:
        store = open_store(f"file://{root}")
        await finish_all(store, prefix)
        found = set()
        for one in await survey(store, prefix):
            if one.state is State.COMPLETE:
                assert await verify(store, prefix, one.generation) == ()
                found.add(one.generation.step)
        return found

    return asyncio.run(look())


def lost(
    trace: str, root: Path, prefix: str, told: str, where: Path, archive: Path | None = None
) -> list[str]:
    """Power losses after which the newest that was told of is gone.

    Args:
        told: Matches what is written when a commit is told of; its group is the step.
        where: For what is left each time.
        archive: Has copies of files that were removed later.
    """
    disk, newest, found, number = Disk(root, archive), 0, list[str](), 0
    where.mkdir()
    for call in calls(trace):
        report = re.search(told, call.arguments) if call.name == "write" else None
        if report:
            newest = max(newest, int(report[1]))
        changed = disk.take(call) and f"/{prefix}" in call.arguments
        if not newest or not (report or changed):
            continue
        number += 1
        # What is safe changes by a sync alone; by luck something more is there at any time.
        lucks = [random.Random(number)] if number % LUCK == 0 else []
        for luck in [None, *lucks] if report or "sync" in call.name else lucks:
            left = where / "left"
            disk.rebuild(left, luck)
            if newest not in steps(left, prefix):
                found.append(f"step {newest} after {call.name}({call.arguments[:120]})")
            shutil.rmtree(left)
    assert number, "no commit was told of"
    return found


def test_a_power_loss_at_any_time_after_a_commit_leaves_it_complete(disk: Path) -> None:
    node = Traced(disk / "node")
    try:
        node.start("--store-keep", "2", "--plan-commit-reserve-seconds", "0")
        # Once through the page cache, once past it, and each with a .metadata.
        small = node.workload("small", nbytes=3 * 4096 + 17, metadata="of small").ready()
        large = node.workload("large", nbytes=2 * MEBI + 17, metadata="of large").ready()
        node.drain(600.0)
        for step in (1, 2, 3):
            for job, worker in (("small", small), ("large", large)):
                assert worker.do("stage", step=step) == {}
                node.event("commit.finished", generation={"incarnation": 1, "step": step},
                           unit=f"root/{job}", durable=True)  # fmt: skip
                ours = f"root/{job}/step-{step}.1"
                shutil.copytree(node.store / ours, disk / "archive" / ours)
        for job in ("small", "large"):
            folder = node.store / "root" / job
            until("old ones are gone", lambda folder=folder: len(list(folder.glob("step-*"))) == 2)  # type: ignore[misc] # bound to this turn
        node.stop()
    finally:
        node.close()
    trace = (disk / "node" / "trace").read_text()

    for job in ("small", "large"):
        told = rf'\\"unit\\": \\"root/{job}\\".*\\"step\\": (\d+).*\\"flush\.finished\\"'
        assert lost(trace, node.store, f"root/{job}", told, disk / job, disk / "archive") == []


@pytest.mark.parametrize(("care", "loses"), [("none", True), ("files", True), ("all", False)])
def test_who_does_not_sync_is_caught(disk: Path, care: str, loses: bool) -> None:
    root, trace = disk / "store", disk / "trace"
    root.mkdir()
    done = subprocess.run(
        [*STRACE, str(trace), sys.executable, "-m", "tests.deaths.careless", str(root), care],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=240,
    )
    if "PTRACE" in done.stderr:
        pytest.skip(f"cannot trace: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert steps(root, PREFIX) == {1}

    found = lost(trace.read_text(), root, PREFIX, r"flush\.finished step (\d+)", disk / "left")

    assert bool(found) == loses
