"""FileSource on real files."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from evacd.facts import Cancelled, Noticed, Quiet, Unknown
from evacd.notice.user import FileSource
from tests.agent.busy import no_thread_left
from tests.agent.notice.hearing import MovedClock, watching
from tests.agent.notice.user.conftest import document, entry


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "notice.json"


@pytest.fixture
def source(path: Path, clock: MovedClock) -> FileSource:
    return FileSource(path, clock, period=0.02, jitter=lambda: 0.0)


def put(path: Path, *, mode: int = 0o644) -> None:
    """As `SCHEMA.md` asks for: aside, then renamed."""
    aside = path.with_suffix(".new")
    aside.write_bytes(document(entry()))
    aside.chmod(mode)
    aside.rename(path)


def remove(path: Path) -> None:
    path.unlink()


def put_right(path: Path) -> None:
    """Undo any of the faults."""
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    path.parent.mkdir(exist_ok=True)
    os.chown(path.parent, os.geteuid(), -1)
    path.parent.chmod(0o755)
    put(path)


async def test_no_file_is_quiet(source: FileSource) -> None:
    assert await source.probe() == Quiet("file")


async def test_a_notice_is_heard_and_taken_back_with_its_file(
    source: FileSource, path: Path
) -> None:
    async with watching(source) as hearing:
        await hearing.until(Quiet)
        put(path)
        noticed = await hearing.until(Noticed)
        remove(path)
        cancelled = await hearing.until(Cancelled, after=noticed)
        await hearing.until(Quiet, after=cancelled)

    assert hearing.told[cancelled] == Cancelled(
        "file", "block-7", "it is no longer in the document"
    )
    assert sum(isinstance(probe, Cancelled) for probe in hearing.told) == 1


async def test_it_is_read_where_all_threads_are_busy(source: FileSource, path: Path) -> None:
    put(path)

    async with no_thread_left():
        assert isinstance(await source.probe(), Noticed)


async def test_its_name_is_what_it_was_given(path: Path, clock: MovedClock) -> None:
    put(path)

    probe = await FileSource(path, clock, name="calendar").probe()

    assert isinstance(probe, Noticed)
    assert probe.notice.source == "calendar"


def write(raw: bytes) -> Callable[[Path], None]:
    def fault(path: Path) -> None:
        path.write_bytes(raw)

    return fault


def open_to_all(path: Path) -> None:
    path.write_bytes(document(entry()))
    path.chmod(0o666)


def folder_open_to_all(path: Path) -> None:
    path.write_bytes(document(entry()))
    path.parent.chmod(0o777)


def somebody_elses(path: Path) -> None:
    path.write_bytes(document(entry()))
    os.chown(path, 12345, -1)


def folder_of_a_stranger(path: Path) -> None:
    path.write_bytes(document(entry()))
    os.chown(path.parent, 12345, -1)


def open_to_a_group(path: Path) -> None:
    path.write_bytes(document(entry()))
    os.chown(path, -1, 12345)
    path.chmod(0o664)


def no_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


def fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def loop(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(path)


def folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


FAULTS = [
    pytest.param(write(b""), "line 1, column 1: expected JSON", id="empty"),
    pytest.param(write(b'{"notices": [{"id"'), "line 1, column 19: expected JSON", id="torn"),
    pytest.param(write(b"<html>"), "expected JSON", id="html"),
    pytest.param(write(b"\x00\xff"), "expected UTF-8", id="garbage"),
    pytest.param(write(b"[]"), "expected an object", id="foreign"),
    pytest.param(write(document({})), "notices[0].id: expected", id="field"),
    pytest.param(write(b"x" * 100_000), "at most 65536 bytes", id="too-large"),
    pytest.param(open_to_all, "notice.json is world-writable", id="world-writable"),
    pytest.param(folder_open_to_all, " is world-writable: anybody", id="folder world-writable"),
    pytest.param(
        folder_of_a_stranger,
        "belongs to user 12345",
        id="a stranger's folder",
        marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away"),
    ),
    pytest.param(
        open_to_a_group,
        "notice.json may be changed by group 12345",
        id="group-writable",
        marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away"),
    ),
    pytest.param(fifo, "it is no regular file", id="fifo"),
    pytest.param(folder, "it is no regular file", id="folder"),
    pytest.param(loop, "Too many levels of symbolic links", id="symlink loop"),
    pytest.param(no_folder, "its folder does not exist", id="no folder"),
    pytest.param(
        somebody_elses,
        "notice.json belongs to user 12345",
        id="somebody else's",
        marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away"),
    ),
]


@pytest.mark.parametrize(("fault", "reason"), FAULTS)
async def test_a_fault_is_unknown_and_says_what_it_is(
    source: FileSource, path: Path, fault: Callable[[Path], None], reason: str
) -> None:
    fault(path)

    probe = await source.probe()

    assert isinstance(probe, Unknown)
    assert reason in probe.reason
    assert probe.cure


@pytest.mark.parametrize(("fault", "reason"), FAULTS)
async def test_a_fault_clears_no_notice(
    source: FileSource, path: Path, fault: Callable[[Path], None], reason: str
) -> None:
    put(path)
    first = await source.probe()
    fault(path)
    assert isinstance(await source.probe(), Unknown)

    put_right(path)

    assert await source.probe() == first


async def test_a_sticky_folder_that_all_may_write_is_believed(
    source: FileSource, path: Path
) -> None:
    put(path)
    path.parent.chmod(0o1777)

    assert isinstance(await source.probe(), Noticed)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
async def test_a_file_that_may_not_be_read_is_unknown(source: FileSource, path: Path) -> None:
    put(path, mode=0)

    probe = await source.probe()

    assert isinstance(probe, Unknown)
    assert "Permission denied" in probe.reason
