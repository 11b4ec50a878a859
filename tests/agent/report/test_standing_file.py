"""The file of what stands, on a real disk, and in a process that is really killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from evacd.clock import SystemClock
from evacd.report.standing import Standing, decode, encode
from evacd.report.standing_file import StandingFile
from tests.agent.daemon.nodes import until

CLOSED = Standing("b1", closed=("command",))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "standing.json"


@pytest.fixture
def file(path: Path) -> Iterator[StandingFile]:
    file = StandingFile(path, SystemClock())
    yield file
    file.stop()


def test_where_nothing_lies_nothing_stands(file: StandingFile) -> None:
    assert file.load() is None


async def test_what_was_put_is_on_the_disk(file: StandingFile, path: Path) -> None:
    file.put(Standing("b1"))
    file.put(CLOSED)
    await file.written(within=30.0)

    assert file.load() == CLOSED
    assert os.listdir(path.parent) == [path.name]


def test_the_last_is_written_before_the_end(path: Path) -> None:
    file = StandingFile(path, SystemClock())
    file.put(CLOSED)
    file.stop()

    assert StandingFile(path, SystemClock()).load() == CLOSED


@pytest.mark.parametrize("bad", [b"", b"\xff{", b"{}", b"[1]", encode(CLOSED)[:-9]])
def test_a_corrupt_file_is_told_once_ignored_and_moved_aside(
    file: StandingFile, path: Path, bad: bytes
) -> None:
    path.write_bytes(bad)
    with capture_logs() as logs:
        assert file.load() is None
        assert file.load() is None

    assert [log["event"] for log in logs] == ["standing.unreadable"]
    (aside,) = path.parent.iterdir()
    assert aside.name.startswith("standing.json.aside-")
    assert aside.read_bytes() == bad


def test_a_directory_in_its_place_is_told_of(file: StandingFile, path: Path) -> None:
    path.mkdir()
    with capture_logs() as logs:
        assert file.load() is None

    assert logs[0]["event"] == "standing.unreadable"


async def test_a_disk_that_refuses_is_told_once_and_waited_for_no_longer(tmp_path: Path) -> None:
    home = tmp_path / "gone"
    file = StandingFile(home / "standing.json", SystemClock())
    with capture_logs() as logs:
        for _ in range(3):
            file.put(CLOSED)
            await file.written(within=30.0)
        home.mkdir()
        file.put(CLOSED)
        await file.written(within=30.0)
    file.stop()

    assert [log["event"] for log in logs] == ["standing.failed", "standing.recovered"]
    assert decode((home / "standing.json").read_bytes()) == CLOSED


async def test_what_a_disk_refused_is_written_once_it_can_be_though_nothing_follows(
    tmp_path: Path,
) -> None:
    home = tmp_path / "gone"
    file = StandingFile(home / "standing.json", SystemClock())
    file.put(Standing("b1"))
    file.put(CLOSED)
    await file.written(within=30.0)
    home.mkdir()

    until("it is written", (home / "standing.json").exists)

    assert file.load() == CLOSED
    file.stop()


async def test_a_disk_that_hangs_is_waited_for_no_longer_than_said(path: Path) -> None:
    # A pipe that nobody reads: opening it for writing never comes back.
    os.mkfifo(path.with_name("standing.json.new"))
    file = StandingFile(path, SystemClock())
    file.put(CLOSED)

    await file.written(within=0.01)

    assert file.load() is None
    # Whoever reads it lets the thread go.
    os.close(os.open(path.with_name("standing.json.new"), os.O_RDONLY | os.O_NONBLOCK))


WRITES_FOR_EVER = """
import asyncio, sys
from pathlib import Path
from evacd.clock import SystemClock
from evacd.report.standing import Standing
from evacd.report.standing_file import StandingFile

async def main():
    file = StandingFile(Path(sys.argv[1]), SystemClock())
    number = 0
    while True:
        number += 1
        file.put(Standing("b1", closed=tuple(str(each) for each in range(number % 500))))
        await file.written(within=30.0)
        print(number, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("lines", [1, 7, 40])
def test_killed_at_any_time_it_leaves_a_whole_one(
    file: StandingFile, path: Path, lines: int
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITES_FOR_EVER, str(path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        for _ in range(lines):
            assert process.stdout.readline()
        process.send_signal(signal.SIGKILL)

    found = file.load()
    assert found is not None
    assert found.boot == "b1"
