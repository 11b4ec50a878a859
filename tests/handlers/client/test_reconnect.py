"""Without a daemon a workload runs on, and is on board again when one appears."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import evac
from evac._settings import read_settings
from evac.segment import PAGE, Header, SlotState
from evac.wire import Accepted, OrderGiven, Register
from tests.handlers.client.honest import LIMIT, Daemon

Connect = Callable[..., evac.Client]


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


def test_no_daemon_is_one_warning_and_no_harm(
    connect: Connect, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = connect()
    # Long enough for two tries.
    assert not client.wait_connected(1.5)
    assert client.acquire() is None
    assert "no such socket" in client.last_refusal
    with pytest.raises(evac.NotConnected, match="no such socket"):
        client.reserve(nbytes=PAGE, body="a.bin")
    with pytest.raises(evac.NotConnected):
        client.status()
    client.leave()
    assert _warnings(caplog) == [
        f"no evacd at {path}: running without evacuation; no such socket; is evacd running, "
        "and its directory mounted in this container?"
    ]


def test_a_daemon_that_appears_later_is_found(
    connect: Connect, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="evac")
    client = connect()
    assert not client.wait_connected(0.1)
    daemon = Daemon(path)
    try:
        assert client.wait_connected(LIMIT)
        client.close()  # the thread is through with its log line
        assert "on board with evacd on node-1 as me/job" in caplog.text
    finally:
        daemon.stop()


def test_after_a_restart_it_registers_again_and_old_memory_stays_memory(
    connect: Connect, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = Daemon(path)
    client = connect()
    assert client.wait_connected(LIMIT)
    client.reserve(nbytes=4 * PAGE, body="a.bin", slots=2)
    old = client.acquire(LIMIT)
    assert old is not None
    first.stop()
    path.unlink()
    second = Daemon(path)
    try:
        second.wait(Register)
        assert client.wait_connected(LIMIT)
        assert client.connection == 2
        old.memory[PAGE] = 1
        old.complete(Header(SlotState.COMPLETE, 0, 1, 1))
        client.staged(old, 1)
        assert client.refusals == 1
        assert "belongs to a connection that is gone" in client.last_refusal
        client.release(old)
        assert client.acquire(LIMIT) is None
        client.reserve(nbytes=4 * PAGE, body="a.bin", slots=1)
        assert client.acquire(LIMIT) is not None
    finally:
        second.stop()
        client.close()  # the thread is through with its log lines
    lost, found = _warnings(caplog)[:2]
    assert lost.startswith(f"lost evacd at {path}: running without evacuation")
    # Who has read that it runs without has to read that it does no more.
    assert found == "on board with evacd on node-1 as me/job"


def test_callers_that_wait_are_told_at_once_when_the_daemon_dies(
    connect: Connect, path: Path
) -> None:
    daemon = Daemon(path)
    client = connect()
    assert client.wait_connected(LIMIT)
    daemon.hold = {"reserve", "acquire"}
    done = []

    def wait() -> None:
        done.append(client.acquire(timeout=3600))

    waiting = threading.Thread(target=wait)
    waiting.start()
    daemon.wait_until(lambda: daemon.heard and daemon.heard[-1].type == "acquire")
    daemon.stop()
    waiting.join(LIMIT)
    assert done == [None]


def test_an_order_outlives_the_daemons_crash_until_the_next_one_speaks(
    connect: Connect, path: Path
) -> None:
    first = Daemon(path)
    first.running = OrderGiven(order="o1", seconds_left=1e6, confidence="certain")
    client = connect()
    assert client.wait_connected(LIMIT)
    client.reserve(nbytes=PAGE, body="a.bin")  # answered after the order
    assert client.order is not None
    first.stop()
    path.unlink()
    assert client.order.id == "o1"
    second = Daemon(path)
    try:
        second.wait(Register)
        assert client.wait_connected(LIMIT)
        assert client.order is None
    finally:
        second.stop()


def test_a_refused_workload_runs_on_with_the_reason(
    daemon: Daemon, connect: Connect, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    daemon.refuse_job = "job"
    client = connect()
    daemon.wait(Register, 2)  # it asks again, and is quiet about it
    assert not client.connected
    client.close()
    assert _warnings(caplog) == [
        f"no evacd at {path}: running without evacuation; evacd refused: not on this node"
    ]


@pytest.mark.parametrize(
    "packet", [b"garbage", b'{"type":"x"}', b"[]", b'{"type":"order"}', b'{"type":"slot"}']
)
def test_a_daemon_that_talks_nonsense_is_dropped_and_tried_again(
    daemon: Daemon, client: evac.Client, packet: bytes
) -> None:
    daemon.tell_raw(packet)
    daemon.wait_until(lambda: daemon.ended == 1)
    daemon.wait(Register, 2)
    assert client.wait_connected(LIMIT)


def test_an_answer_to_nothing_is_passed_over(daemon: Daemon, client: evac.Client) -> None:
    daemon.tell(Accepted())
    assert client.status(LIMIT)["workloads"] == 1
    assert client.connection == 1


def test_a_quiet_client_tells_of_a_daemon_it_lost_and_when(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with evac.Client(read_settings({}, job="job", socket=path), quiet=True) as client:
        assert "no such socket" in client.absence
        client.start()
        assert not client.wait_connected(0.1)
        assert client.lost is None
        daemon = Daemon(path)
        assert client.wait_connected(LIMIT)
        daemon.stop()
        while client.connected:
            client.wait_connected(0.01)
        assert client.lost is not None
        path.unlink()
        daemon = Daemon(path)
        assert client.wait_connected(LIMIT)
        assert client.lost is None
        daemon.stop()
    assert _warnings(caplog)[0].startswith(f"lost evacd at {path}")
