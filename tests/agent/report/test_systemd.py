"""sd_notify, heard by a real socket."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from evacd.report import systemd
from evacd.report.service import Service
from evacd.report.systemd import notify, watchdog_seconds


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    name = str(tmp_path / "notify") if request.param == "path" else f"@evac-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(name.replace("@", "\0", 1) if request.param == "abstract" else name)
        heard.settimeout(10)
        yield heard, name


def test_the_manager_hears_each_word(manager: tuple[socket.socket, str]) -> None:
    heard, name = manager
    shown = systemd.status("saving 3 of\n5")
    words = (
        f"{systemd.READY}\n{shown}",
        systemd.WATCHDOG,
        systemd.STOPPING,
    )
    for word in words:
        assert notify(word, environ={"NOTIFY_SOCKET": name})

    assert heard.recv(4096) == b"READY=1\nSTATUS=saving 3 of 5"
    assert heard.recv(4096) == b"WATCHDOG=1"
    assert heard.recv(4096) == b"STOPPING=1"


@pytest.mark.parametrize("address", ["", "relative/path", "vsock:2:1234", "/nobody/listens/here"])
def test_without_a_manager_nothing_happens(address: str) -> None:
    assert not notify("READY=1", environ={"NOTIFY_SOCKET": address} if address else {})


def test_a_manager_that_does_not_read_holds_nobody_up(tmp_path: Path) -> None:
    name = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf:
        deaf.bind(name)
        while notify("WATCHDOG=1" * 100, environ={"NOTIFY_SOCKET": name}):
            pass


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
    ],
)
def test_the_watchdogs_time_is_ours_only_if_meant_for_us(
    environ: dict[str, str], seconds: float | None
) -> None:
    assert watchdog_seconds(environ=environ) == seconds


def test_a_watched_service_is_heard_while_it_lives(manager: tuple[socket.socket, str]) -> None:
    heard, name = manager
    service = Service(environ={"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "600000"})
    assert service.pause(0.5) == 0.3

    service.beat(dead=[], stuck=[], stopping=False, busy=True)

    assert heard.recv(4096) == b"WATCHDOG=1"


@pytest.mark.parametrize(("dead", "stuck"), [(["flush"], []), ([], ["aws/spot"])])
def test_a_service_whose_task_ended_or_whose_source_is_stuck_is_not_heard(
    manager: tuple[socket.socket, str], dead: list[str], stuck: list[str]
) -> None:
    heard, name = manager
    service = Service(environ={"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "600000"})

    service.beat(dead=dead, stuck=stuck, stopping=False, busy=False)
    # And once it was told to stop, its tasks end as they should.
    service.beat(dead=dead, stuck=stuck, stopping=True, busy=False)

    assert heard.recv(4096) == b"WATCHDOG=1"
    heard.setblocking(False)
    with pytest.raises(BlockingIOError):
        heard.recv(4096)


def test_a_stop_that_still_saves_asks_for_more_time(manager: tuple[socket.socket, str]) -> None:
    heard, name = manager
    service = Service(environ={"NOTIFY_SOCKET": name})

    service.beat(dead=[], stuck=[], stopping=True, busy=True)

    assert heard.recv(4096) == b"EXTEND_TIMEOUT_USEC=60000000"
