"""A forked child is inert; the parent never notices."""

import mmap
import os
import threading
import traceback
from collections.abc import Callable

import evac
from evac.segment import PAGE, Header, SlotState
from tests.handlers.client.honest import LIMIT, Daemon


def in_child(check: Callable[[], None]) -> None:
    """Run *check* in a forked child; fail where it fails."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            check()
            status = 0
        except BaseException:  # noqa: BLE001 - it ends in the child's exit status
            traceback.print_exc()
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert status == 0


def _slot(client: evac.Client) -> evac.SlotMemory:
    slot = client.acquire(LIMIT)
    assert slot is not None
    return slot


def test_the_child_is_inert_and_the_parent_goes_on(daemon: Daemon, client: evac.Client) -> None:
    client.reserve(nbytes=4 * PAGE, body="a.bin", slots=2)
    slot = _slot(client)

    def check() -> None:
        assert not client.connected
        assert not client.wait_connected(0)
        assert client.acquire() is None
        assert client.last_refusal == "this is a forked child"
        client.staged(slot, 5)
        client.release(slot)
        client.on_order(print)
        for ask in (client.status, lambda: client.reserve(nbytes=PAGE, body="a.bin")):
            try:
                ask()
            except evac.NotConnected:
                continue
            raise AssertionError("answered")
        client.leave()
        client.close()

    in_child(check)
    assert client.connected
    slot.complete(Header(SlotState.COMPLETE, 0, 8, 1))
    client.staged(slot, 8)
    daemon.wait_until(lambda: daemon.staged)
    assert [header.step for _, header, _ in daemon.staged] == [8]


def test_a_child_that_lives_on_does_not_hold_the_line(daemon: Daemon, client: evac.Client) -> None:
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(theirs)
        os.read(ours, 1)  # until the parent is done
        os._exit(0)
    try:
        client.close()
        daemon.wait_until(lambda: daemon.ended == 1)
    finally:
        os.close(ours)
        os.close(theirs)
        os.waitpid(child, 0)


def test_the_child_holds_no_memory_of_the_daemon(daemon: Daemon, client: evac.Client) -> None:
    client.reserve(nbytes=4 * PAGE, body="a.bin", slots=1)
    slot = _slot(client)
    slot.memory[PAGE:] = b"\x01" * (3 * PAGE)
    view = slot.memory[PAGE:]

    def check() -> None:
        with open("/proc/self/maps") as maps:
            assert "evac-test" not in maps.read()
        # Plain zeros, and nobody else's addresses.
        assert not any(view)
        view[0] = 5

    in_child(check)
    assert view[0] == 1


def test_memory_let_go_of_in_a_child_unmaps_nobody_elses(
    daemon: Daemon, client: evac.Client
) -> None:
    client.reserve(nbytes=64 * PAGE, body="a.bin", slots=1)
    held = [_slot(client).memory]
    # Only the view is left: the slot's own object is gone before the fork.
    client.reserve(nbytes=PAGE, body="a.bin", slots=1)

    def check() -> None:
        mine = [mmap.mmap(-1, 64 * PAGE) for _ in range(8)]
        held.clear()
        for one in mine:
            one[:] = b"\x02" * len(one)

    in_child(check)


def test_forks_during_a_reservation_leave_no_fd_behind(daemon: Daemon, client: evac.Client) -> None:
    def check() -> None:
        kept = {fd for peer in daemon.peers for fd in peer.memory.values()}
        links = [
            os.readlink(f"/proc/self/fd/{fd}")
            for fd in map(int, os.listdir("/proc/self/fd"))
            if fd not in kept and os.path.lexists(f"/proc/self/fd/{fd}")
        ]
        # Two at most are the honest daemon's own, between making a slot and sending it.
        assert sum("evac-test" in link for link in links) <= 2, links

    for _ in range(10):
        client.reserve(nbytes=64 * PAGE, body="a.bin", slots=16)
        in_child(check)


def test_a_grandchild_closes_nothing_that_is_not_its_own(
    daemon: Daemon, client: evac.Client
) -> None:
    def check() -> None:
        # Takes the numbers that the client gave up in this child.
        ends = [os.pipe() for _ in range(8)]

        def again() -> None:
            for ours, theirs in ends:
                os.write(theirs, b"x")
                assert os.read(ours, 1) == b"x"

        in_child(again)

    in_child(check)
    assert client.status(LIMIT)["workloads"] == 1


def test_a_fork_in_the_middle_of_everything_never_hangs(
    daemon: Daemon, client: evac.Client
) -> None:
    client.reserve(nbytes=4 * PAGE, body="a.bin", slots=2)
    over = threading.Event()

    def work() -> None:
        step = 0
        while not over.is_set():
            step += 1
            if (slot := client.acquire(LIMIT)) is not None:
                slot.complete(Header(SlotState.COMPLETE, 0, step, 1))
                client.staged(slot, step)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for _ in range(20):
            in_child(lambda: client.close())
    finally:
        over.set()
        worker.join(LIMIT)
    assert client.connection == 1
    assert client.refusals == 0
