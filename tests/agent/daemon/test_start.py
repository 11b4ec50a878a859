"""What a start says, and to whom: to the person at the terminal, and to the service manager."""

import json
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.daemon.nodes import Node, until

HAPPEN = {"workload", "session", "peer"}


def refused(node: Node, *flags: str) -> "subprocess.CompletedProcess[str]":
    """A start that fails by itself."""
    return subprocess.run(node.command(*flags), capture_output=True, text=True, timeout=30)


@pytest.mark.parametrize(
    "url",
    ["ftp://host/folder", "s3://bucket/../a", "gs://bucket/a?key=hunter2", "s3://My_Bucket/a"],
)
def test_a_store_that_cannot_be_used_is_refused_before_anything_starts(
    node: Node, url: str
) -> None:
    # The good one first: it is not enough that some store can be opened.
    run = refused(node, "--store", f"file://{node.store}", "--store", url)

    assert run.returncode == 2
    assert "store.targets" in run.stderr
    assert "--store" in run.stderr
    assert f"(for {url.partition(':')[0]}:" in run.stderr
    assert "hunter2" not in run.stderr
    assert "Traceback" not in run.stderr
    assert not node.socket.exists()


@pytest.mark.parametrize("content", [None, "", " \n"])
def test_a_secret_that_is_not_there_is_a_clear_error(node: Node, content: str | None) -> None:
    secret = node.home / "secret"
    if content is not None:
        secret.write_text(content)

    run = refused(
        node, "--departure-webhook-url", "http://127.0.0.1:9/", "--departure-secret-file",
        str(secret),
    )  # fmt: skip

    assert run.returncode == 2
    assert "departure.secret_file" in run.stderr
    assert str(secret) in run.stderr
    assert "Traceback" not in run.stderr


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A service manager's notify socket."""
    name = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(name)
        heard.settimeout(30)
        yield heard, name


def words(heard: socket.socket, wanted: int) -> list[bytes]:
    """The first words that are told."""
    return [heard.recv(4096).split(b"\n")[0] for _ in range(wanted)]


def test_a_watchdog_is_fed_for_as_long_as_the_daemon_is_well(
    node: Node, manager: tuple[socket.socket, str]
) -> None:
    heard, name = manager
    node.start(environ={"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "200000"})

    told = words(heard, 4)

    assert told.count(b"READY=1") == 1
    assert told.count(b"WATCHDOG=1") == 3
    assert node.terminate() == 0


def test_without_a_watchdog_nothing_is_fed(node: Node, manager: tuple[socket.socket, str]) -> None:
    heard, name = manager
    node.start(environ={"NOTIFY_SOCKET": name})
    node.terminate()

    assert words(heard, 2) == [b"READY=1", b"STOPPING=1"]


def test_status_names_the_journal(node: Node) -> None:
    node.start("--state-dir", str(node.home / "elsewhere"))

    journal = Path(node.status()["journal"])

    assert journal == node.home / "elsewhere" / "incidents.sqlite"
    assert journal.exists()


def test_what_happens_to_a_workload_is_logged_once(node: Node) -> None:
    node.start()
    node.staged(5).do("leave")
    node.staged(5, job="other").kill()
    hostile = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with hostile:
        hostile.connect(str(node.socket))
        hostile.send(b"garbage")
        until("the daemon hangs up", lambda: hostile.recv(4096) == b"")
    until("both are gone", lambda: all(not one["alive"] for one in node.status()["workloads"]))
    node.terminate()

    events = Counter(json.loads(line)["event"] for line in node.log.read_text().splitlines())

    happened = {name: n for name, n in events.items() if name.split(".")[0] in HAPPEN}
    assert happened == {
        "workload.joined": 2, "workload.left": 1, "workload.died": 1, "workload.dropped": 1,
    }  # fmt: skip


def test_a_stop_needs_no_d_bus_library(node: Node) -> None:
    run, *flags = node.command("--shutdown-watch", "auto")[2:]
    assert run == "evacd"
    script = (
        "import sys; sys.modules['dbus_fast'] = None  # as if it were not installed\n"
        "from evacd.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    with node.log.open("ab") as log:
        node.process = subprocess.Popen(
            [sys.executable, "-c", script, *flags], stdout=log, stderr=log
        )
    until("it has started", lambda: "daemon.started" in node.log.read_text())

    assert node.terminate() == 0
    said = [json.loads(line) for line in node.log.read_text().splitlines() if line.startswith("{")]
    (told,) = (line for line in said if line["event"] == "daemon.told_to_stop")
    assert "dbus_fast is not installed" in told["reason"]
    assert "pip install" in told["cure"]
