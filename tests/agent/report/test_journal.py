"""The journal, with real files, a real disk limit and a process that is really killed."""

import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from structlog.testing import capture_logs

from evac.incident import load
from evacd.errors import StateError
from evacd.facts import Confidence, Notice, Order
from evacd.report.journal import KEPT, Journal
from tests.agent.daemon.nodes import until


class HandClock:
    """Moves when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def utc(self) -> datetime:
        return datetime(2026, 11, 29, 16, 40, 12, tzinfo=UTC)


def order(id: str = "ab12-1", deadline: float = 1030.0) -> Order:
    return Order(id, deadline, Confidence.CERTAIN, "gcp", "preempted", given=1000.0)


NOTICE = Notice("gcp", "preempted", "gcp:preempted", Confidence.CERTAIN, 1030.0, seen=1000.0)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "incidents.sqlite"


@pytest.fixture
def journal(path: Path, clock: HandClock) -> Iterator[Journal]:
    journal = Journal(path, clock)
    yield journal
    journal.stop()


class TestRecording:
    async def test_what_was_recorded_is_read_back_in_order(
        self, journal: Journal, path: Path, clock: HandClock
    ) -> None:
        clock.now = 1000.5
        journal.open(order(), NOTICE, node="gpu-7", boot="b1")
        journal.record("ab12-1", "flush.started", {"unit": "alice/gpt", "nbytes": 7})
        clock.now = 1002.25
        journal.record("ab12-1", "flush.finished", {"unit": "alice/gpt"})
        journal.close("ab12-1")
        clock.now = 1003.0
        journal.record("ab12-1", "cordon.reopened", {"name": "command"})
        await journal.settled()

        (found,) = load(path)
        assert (found.id, found.node, found.boot) == ("ab12-1", "gpu-7", "b1")
        assert (found.source, found.kind, found.confidence) == ("gcp", "preempted", "certain")
        assert found.began == "2026-11-29T16:40:11.500+00:00"
        assert found.window_seconds == 30.0
        assert found.ended == 2.25
        assert [(e.at, e.name) for e in found.events] == [
            (0.5, "flush.started"),
            (2.25, "flush.finished"),
            (3.0, "cordon.reopened"),
        ]
        assert found.events[0].data == {"unit": "alice/gpt", "nbytes": 7}

    async def test_an_order_that_was_opened_twice_is_one_incident_again_open(
        self, journal: Journal, path: Path
    ) -> None:
        for _ in range(2):
            journal.open(order(), NOTICE, node="gpu-7", boot="b1")
            journal.record("ab12-1", "order.given", {})
            journal.close("ab12-1")
        journal.open(order(), NOTICE, node="gpu-7", boot="b1")
        await journal.settled()

        (found,) = load(path, last=9)
        assert found.ended is None
        assert len(found.events) == 2

    async def test_the_last_event_and_the_end_are_both_on_the_disk_or_neither(
        self, journal: Journal, path: Path
    ) -> None:
        journal.open(order(), NOTICE, node="gpu-7", boot="b1")
        await journal.settled()
        with closing(sqlite3.connect(path)) as connection, connection:
            no = "CREATE TRIGGER no BEFORE UPDATE ON incident BEGIN SELECT RAISE(ABORT, 'no'); END"
            connection.execute(no)

        journal.finish("ab12-1", "report.written", {"verdict": "1 saved, 0 lost"})
        await journal.settled()
        (before,) = load(path)
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("DROP TRIGGER no")
        journal.stop()

        (found,) = load(path)
        assert (before.ended, before.events) == (None, ())
        assert found.ended == 0.0
        assert [event.name for event in found.events] == ["report.written"]

    async def test_a_restart_goes_on_with_the_same_file(
        self, journal: Journal, path: Path, clock: HandClock
    ) -> None:
        journal.open(order("first"), NOTICE, node="gpu-7", boot="b1")
        journal.stop()
        second = Journal(path, clock)
        second.open(order("second"), NOTICE, node="gpu-7", boot="b1")
        await second.settled()
        second.stop()

        assert [found.id for found in load(path, last=9)] == ["first", "second"]

    async def test_a_value_that_is_no_json_is_written_as_its_text_and_holds_nothing_up(
        self, journal: Journal, path: Path
    ) -> None:
        journal.open(order(), NOTICE, node="gpu-7", boot="b1")
        journal.record("ab12-1", "odd.path", {"path": Path("/x")})
        journal.record("ab12-1", "odd.key", {(1, 2): "x"})  # type: ignore[dict-item]  # on purpose
        journal.record("ab12-1", "bad\udc80name", {})
        journal.record("ab12-1", "last", {})
        await journal.settled()

        (found,) = load(path)
        assert [event.name for event in found.events] == ["odd.path", "odd.key", "last"]
        assert found.events[0].data == {"path": "/x"}

    async def test_an_event_of_an_unknown_incident_is_logged_and_dropped(
        self, journal: Journal, path: Path
    ) -> None:
        with capture_logs() as logs:
            journal.record("nobody", "flush.started", {})
        await journal.settled()

        assert [entry["event"] for entry in logs] == ["journal.ignored"]
        assert load(path) == ()

    async def test_stop_writes_what_is_left_and_ends_the_thread(
        self, path: Path, clock: HandClock
    ) -> None:
        journal = Journal(path, clock)
        journal.open(order(), NOTICE, node="gpu-7", boot="b1")
        for i in range(2000):
            journal.record("ab12-1", "tick", {"i": i})
        journal.stop()

        assert len(load(path)[0].events) == 2000
        assert "journal" not in {thread.name for thread in threading.enumerate()}
        await journal.settled()

    async def test_a_writer_elsewhere_holds_up_the_disk_and_not_the_caller(
        self, journal: Journal, path: Path
    ) -> None:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        journal.open(order(), NOTICE, node="gpu-7", boot="b1")
        for i in range(100):
            journal.record("ab12-1", "tick", {"i": i})
        assert load(path) == ()

        other.execute("COMMIT")
        other.close()
        await journal.settled()
        assert len(load(path)[0].events) == 100


def test_only_the_last_incidents_are_kept_with_their_events(path: Path, clock: HandClock) -> None:
    journal = Journal(path, clock)
    for number in range(KEPT + 3):
        journal.open(order(f"order-{number}"), NOTICE, node="gpu-7", boot="b1")
        journal.record(f"order-{number}", "order.given", {})
    journal.stop()
    Journal(path, clock).stop()

    found = load(path, last=2 * KEPT)
    assert [one.id for one in found] == [f"order-{n}" for n in range(3, KEPT + 3)]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM event").fetchone() == (KEPT,)


async def test_orders_of_jobs_push_out_none_of_the_nodes(
    journal: Journal, path: Path, clock: HandClock
) -> None:
    journal.open(order("node"), NOTICE, node="n", boot="b")
    journal.close("node")
    own = Notice("workload", "leave", "w", Confidence.CERTAIN, 1030.0, seen=1000.0)
    for number in range(KEPT + 3):
        journal.open(order(f"w{number}"), own, node="n", boot="b")
        journal.finish(f"w{number}", "report.written", {})
    await journal.settled()

    found = load(path, last=2 * KEPT)
    assert [one.id for one in found] == ["node", *(f"w{n}" for n in range(3, KEPT + 3))]


WRITES_AND_IS_KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from evacd.clock import SystemClock
from evacd.facts import Confidence, Notice, Order
from evacd.report.journal import Journal

async def main():
    clock = SystemClock()
    now = clock.monotonic()
    journal = Journal(Path(sys.argv[1]), clock)
    journal.open(
        Order("killed", now + 30, Confidence.CERTAIN, "gcp", "preempted", now),
        Notice("gcp", "preempted", "x", Confidence.CERTAIN, now + 30, now), node="n", boot="b",
    )
    for i in range(500):
        journal.record("killed", "tick", {"i": i})
    await journal.settled()
    journal.record("killed", "maybe", {})
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


class TestTheWorst:
    def test_what_was_settled_outlives_a_sigkill(self, path: Path, clock: HandClock) -> None:
        done = subprocess.run(
            [sys.executable, "-c", WRITES_AND_IS_KILLED, str(path)], check=False, timeout=60
        )
        assert done.returncode == -signal.SIGKILL

        events = load(path)[0].events
        assert [event.data.get("i") for event in events[:500]] == list(range(500))

        # And the next daemon goes on with the file.
        with capture_logs() as logs:
            Journal(path, clock).stop()
        assert logs == []
        assert load(path)[0].events == events

    @pytest.mark.parametrize(
        "content",
        [b"not a database, but a letter to one\n" * 100, b"SQLite format 3\0" + b"\7" * 5000],
    )
    def test_a_foreign_or_damaged_file_is_moved_aside(
        self, path: Path, clock: HandClock, content: bytes
    ) -> None:
        path.parent.mkdir()
        path.write_bytes(content)
        with capture_logs() as logs:
            journal = Journal(path, clock)
        journal.open(order(), NOTICE, node="gpu-7", boot="b1")
        journal.stop()

        assert len(load(path)) == 1
        assert [entry["event"] for entry in logs] == ["journal.moved_aside"]
        aside = path.with_name("incidents.sqlite.aside-20261129T164012")
        assert aside.read_bytes() == content

    @pytest.mark.parametrize("change", ["application_id = 7", "user_version = 99"])
    def test_another_programs_or_a_newer_database_is_moved_aside_whole(
        self, path: Path, clock: HandClock, change: str
    ) -> None:
        Journal(path, clock).stop()
        other = sqlite3.connect(path)
        other.execute(f"PRAGMA {change}")
        other.close()
        with capture_logs() as logs:
            Journal(path, clock).stop()

        assert [entry["event"] for entry in logs] == ["journal.moved_aside"]
        assert load(path) == ()
        assert len(list(path.parent.glob("*.aside-*"))) == 1

    def test_an_empty_file_is_used(self, path: Path, clock: HandClock) -> None:
        path.parent.mkdir()
        path.touch()
        Journal(path, clock).stop()

        assert load(path) == ()

    def test_a_directory_that_cannot_be_made_is_a_clear_error(
        self, tmp_path: Path, clock: HandClock
    ) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(StateError, match=r"Not a directory|File exists"):
            Journal(tmp_path / "file" / "incidents.sqlite", clock)

    def test_a_place_that_cannot_be_written_is_a_clear_error(self, clock: HandClock) -> None:
        with pytest.raises(StateError, match=r"/proc/incidents\.sqlite"):
            Journal(Path("/proc/incidents.sqlite"), clock)

    def test_a_directory_in_the_files_place_is_a_clear_error(
        self, path: Path, clock: HandClock
    ) -> None:
        path.mkdir(parents=True)
        with pytest.raises(StateError, match=r"incidents\.sqlite"):
            Journal(path, clock)

    def test_a_full_disk_is_logged_once_and_stops_nothing(self, path: Path) -> None:
        done = subprocess.run(
            [sys.executable, "-c", FILLS_THE_DISK, str(path)],
            check=False,
            timeout=60,
            capture_output=True,
            text=True,
        )

        assert done.returncode == 0, done.stderr
        assert done.stdout.count("journal.failed") == 1
        assert done.stdout.count("journal.recovered") == 1
        names = [event.name for event in load(path)[0].events]
        assert names == ["before", *["big"] * 20, "after"]

    def test_what_a_full_disk_refused_is_written_once_there_is_room_though_nothing_follows(
        self, path: Path
    ) -> None:
        with subprocess.Popen(
            [sys.executable, "-c", FILLS_THE_DISK, str(path), "nothing follows"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as filling:  # fmt: skip
            assert filling.stdout
            assert filling.stdin
            while filling.stdout.readline() != "there is room\n":
                assert filling.poll() is None

            until("all of it is there", lambda: len(load(path)[0].events) == 21)

            filling.stdin.close()
            assert filling.wait(60) == 0


# A limit on file size is what a full disk looks like to one process: the write fails.
FILLS_THE_DISK = """
import asyncio, resource, signal, sys
from pathlib import Path
from evacd.clock import SystemClock
from evacd.facts import Confidence, Notice, Order
from evacd.report.journal import Journal

async def main():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    clock = SystemClock()
    now = clock.monotonic()
    journal = Journal(Path(sys.argv[1]), clock)
    journal.open(
        Order("full", now + 30, Confidence.CERTAIN, "gcp", "preempted", now),
        Notice("gcp", "preempted", "x", Confidence.CERTAIN, now + 30, now), node="n", boot="b",
    )
    journal.record("full", "before", {})
    await journal.settled()
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, hard))
    for _ in range(20):
        journal.record("full", "big", {"text": "x" * 20_000})
        await journal.settled()
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    if "nothing follows" in sys.argv:
        print("there is room", flush=True)
        sys.stdin.read()
    journal.record("full", "after", {})
    await journal.settled()
    journal.stop()

asyncio.run(main())
"""


class TestReaders:
    def test_who_may_only_read_can_still_report(self, clock: HandClock) -> None:
        # Not below tmp_path, which nobody but its owner may enter.
        with TemporaryDirectory() as name:
            directory = Path(name)
            Journal(directory / "incidents.sqlite", clock).stop()
            # No -wal is left after an orderly end, and the reader can make nothing here.
            directory.chmod(0o555)
            done = subprocess.run(
                [sys.executable, "-c", READS_AS_NOBODY, str(directory / "incidents.sqlite")],
                check=False,
                timeout=60,
                capture_output=True,
                text=True,
            )
            directory.chmod(0o755)

        assert done.stdout.strip() == "()", done.stderr


READS_AS_NOBODY = """
import os, sys
from pathlib import Path
from evac.incident import load
if os.getuid() == 0:
    os.setuid(65534)
print(load(Path(sys.argv[1])))
"""


async def test_a_daemon_that_runs_for_ever_keeps_no_more_incidents_than_one_that_starts_anew(
    path: Path, clock: HandClock
) -> None:
    journal = Journal(path, clock)
    for number in range(KEPT + 20):
        journal.open(order(f"o-{number}"), NOTICE, node="n", boot="b")
        journal.close(f"o-{number}")
    journal.record(f"o-{KEPT + 19}", "flush.finished", {})
    with capture_logs() as logs:
        journal.record("o-0", "flush.finished", {})
    await journal.settled()
    journal.stop()

    found = load(path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM incident").fetchone() == (KEPT,)
    assert found[-1].events[-1].name == "flush.finished", "what comes late is still written"
    assert [one["event"] for one in logs] == ["journal.ignored"]


async def test_what_a_daemon_leaves_open_is_found_by_the_next_one(
    path: Path, clock: HandClock
) -> None:
    journal = Journal(path, clock)
    own = Notice("workload", "leave", "w1", Confidence.CERTAIN, 1030.0, seen=1000.0)
    journal.open(order("w1"), own, node="n", boot="b")
    clock.now = 1003.0
    journal.record("w1", "flush.started", {})
    journal.open(order("node"), NOTICE, node="n", boot="b")
    await journal.settled()
    journal.stop()

    Journal(path, clock).stop()

    assert {one.id: one.ended for one in load(path, last=2)} == {"w1": None, "node": None}
    assert [one.id for one in load(path, last=2, source="workload")] == ["w1"]
