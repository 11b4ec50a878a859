"""A disk that is full, and one that is broken, at each call by which a flush writes or looks.

The kernel itself refuses: strace lets the n-th call of a kind fail, for each kind and each n.
"""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.handlers.store.struck_disk import WASTED

HERE = Path(__file__).parent
WRITES = ("fallocate", "pwrite64", "fsync", "mkdirat", "linkat", "renameat")
LOOKS = ("preadv2", "unlinkat")
FAULTS = (
    ("disk full", "ENOSPC", WRITES, "StoreRejected", "No space left on device"),
    ("EIO", "EIO", (*WRITES, *LOOKS), "StoreUnavailable", "Input/output error"),
)

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


@pytest.fixture
def disk() -> Iterator[Path]:
    """A folder on a real disk: /tmp may be a tmpfs."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


async def flushes(disk: Path, call: str, calls: int, *how: str) -> list[dict[str, object]]:
    """What `struck_disk` tells of as many flushes."""
    program = [sys.executable, str(HERE / "struck_disk.py"), str(disk), call, str(calls)]
    done = await asyncio.to_thread(
        subprocess.run,
        ["strace", "-f", "-qq", "--seccomp-bpf", "-y", *how, *program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if "PTRACE" in done.stderr:
        pytest.skip(f"cannot trace: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


async def counted(disk: Path) -> Counter[str]:
    """How many calls of each kind a flush makes below its root."""
    trace = disk / "trace"
    kinds = ",".join((*WRITES, *LOOKS))
    [clean] = await flushes(disk / "clean", "fsync", 1, "-e", f"trace={kinds}", "-o", str(trace))
    assert clean["error"] == clean["again"] == ""
    first = trace.read_text().partition("evac-job.json.evac-tmp-")[0]
    return Counter(re.findall(r"(?m)^\d+ +(\w+)\(.*/clean/0", first))


@pytest.mark.parametrize("fault", [pytest.param(one, id=one[0]) for one in FAULTS])
async def test_a_call_that_the_kernel_refuses_is_told_tears_nothing_and_heals(
    disk: Path,
    fault: tuple[str, str, tuple[str, ...], str, str],
    record_property: Callable[[str, object], None],
) -> None:
    row, errno, calls, kind, reason = fault
    record_property("faults", (row, "file"))
    record_property("faults", ("fds and threads", "file"))
    there = await counted(disk)
    window = asyncio.Semaphore(os.cpu_count() or 2)

    async def strike(call: str) -> None:
        async with window:
            rule = f"inject={call}:error={errno}:when={WASTED}"
            how = ("-o", "/dev/null", "-e", f"trace={call}", "-e", rule)
            told = await flushes(disk / call, call, there[call], *how)
        assert len(told) == there[call] > 0, call
        for one in told:
            said = one["error"], str(one["reason"])[: len(reason)]
            # What is only in the way of nothing by then costs no generation that is whole.
            spared = call == "unlinkat" and one["was_whole"] and said == ("", "")
            assert spared or said == (kind, reason), (call, one)
            assert one["opened"] == 0, (call, one)
            assert one["left"] == [] or call == "unlinkat", (call, one)
            assert one["again"] == "", (call, one)
            assert one["problems"] == one["still"] == [], (call, one)

    async with asyncio.TaskGroup() as tasks:
        for call in calls:
            tasks.create_task(strike(call))
