"""Real directories: what works, what lies on the wrong disk, what cannot be written."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from evacd.check import Finding, Verdict
from evacd.check.stores import check_store
from evacd.clock import SystemClock


async def check(url: str, *, durable_anyway: bool = False) -> Finding:
    return await check_store(url, durable_anyway=durable_anyway, seconds=60, clock=SystemClock())


@pytest.fixture
def in_memory() -> Iterator[Path]:
    path = Path("/dev/shm") / f"evac-test-{uuid4().hex}"
    yield path
    if path.exists():
        path.rmdir()


async def test_a_store_that_works_shows_its_rates_and_is_left_empty(tmp_path: Path) -> None:
    finding = await check(f"file://{tmp_path}/store", durable_anyway=True)

    assert finding.verdict is Verdict.OK
    assert finding.detail.count("MB/s") == 2
    assert finding.cure == ""
    assert list((tmp_path / "store").iterdir()) == []


@pytest.mark.skipif(not os.path.ismount("/dev/shm"), reason="no tmpfs here")
async def test_a_store_in_memory_fails_unless_it_is_meant(in_memory: Path) -> None:
    finding = await check(f"file://{in_memory}")

    assert finding.verdict is Verdict.FAIL
    assert "in memory" in finding.detail
    assert "--store-is-durable" in finding.cure
    assert (await check(f"file://{in_memory}", durable_anyway=True)).verdict is Verdict.OK


async def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    finding = await check(f"file://{tmp_path}/file", durable_anyway=True)

    assert finding.verdict is Verdict.FAIL
    assert "Not a directory" in finding.detail


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no read-only file system at hand")
async def test_a_store_that_cannot_be_written_fails_with_the_reason() -> None:
    finding = await check("file:///proc/evac", durable_anyway=True)

    assert finding.verdict is Verdict.FAIL
    assert finding.detail.startswith("file:///proc/evac: ")
    assert finding.cure


async def test_an_unknown_kind_of_store_fails_without_its_password() -> None:
    finding = await check("ftp://me:hunter2@host/path")

    assert finding.verdict is Verdict.FAIL
    assert "hunter2" not in repr(finding)


async def test_a_store_too_slow_for_its_time_fails(tmp_path: Path) -> None:
    finding = await check_store(
        f"file://{tmp_path}", durable_anyway=True, seconds=0, clock=SystemClock()
    )

    assert finding.verdict is Verdict.FAIL
    assert "took more than 0 s" in finding.detail


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("strace") is None, reason="needs root and strace"
)
def test_a_file_system_that_gives_no_file_to_its_user_is_found_before_the_day(
    tmp_path: Path,
) -> None:
    """As root, over NFS with root_squash: the kernel refuses, here by strace's hand."""
    program = (
        "import asyncio, sys\n"
        "from evacd.check.stores import check_store\n"
        "from evacd.clock import SystemClock\n"
        "found = check_store(sys.argv[1], durable_anyway=True, seconds=60, clock=SystemClock())\n"
        "found = asyncio.run(found)\n"
        "print(found.verdict.name, found.detail, found.cure)\n"
    )
    strace = ["strace", "-f", "-qq", "--seccomp-bpf", "-o", "/dev/null", "-e", "trace=fchown"]
    strace += ["-e", "inject=fchown:error=EPERM"]
    done = subprocess.run(
        [*strace, sys.executable, "-c", program, f"file://{tmp_path}/store"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if "PTRACE" in done.stderr:
        pytest.skip(f"cannot trace: {done.stderr.strip()}")

    assert done.stdout.startswith("FAIL "), done.stdout + done.stderr
    assert (
        "its files cannot be given to uid 1 (an NFS export with root_squash?) let root give files"
        in done.stdout
    )
    assert "(NFS: export it with no_root_squash), or give another --store" in done.stdout
    assert "writable for this user" not in done.stdout
