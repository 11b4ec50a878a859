"""Staged mode against an honest daemon: memory, grants, receipts, and the end."""

import fcntl
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import evac
from evac._settings import read_settings
from evac.segment import PAGE, Header, SlotState
from evac.wire import Acquire, AskStatus, Leave, Register, Reserve, Staged
from tests.agent.daemon.nodes import until
from tests.handlers.client.honest import LIMIT, Daemon, sealed
from tests.open_files import open_files

SLOT = 4 * PAGE
_ROOT = str(Path(evac.__file__).parent.parent)
Connect = Callable[..., evac.Client]


def stage(client: evac.Client, step: int, body: bytes) -> None:
    slot = client.acquire(LIMIT)
    assert slot is not None, client.last_refusal
    slot.begin(incarnation=0)
    slot.memory[PAGE : PAGE + len(body)] = body
    slot.complete(Header(SlotState.COMPLETE, 0, step, len(body)))
    client.staged(slot, step)


def test_the_daemon_reads_what_was_staged(daemon: Daemon, client: evac.Client) -> None:
    client.reserve(nbytes=SLOT, body="__0_0.distcp", layout="abc", incarnation=3)
    stage(client, 7, b"state")
    daemon.wait_until(lambda: daemon.staged)
    register, header, body = daemon.staged[0]
    assert (register.job, header.step, body) == ("job", 7, b"state")
    assert daemon.wait(Reserve) == [
        Reserve(nbytes=SLOT, body="__0_0.distcp", layout="abc", incarnation=3)
    ]


def test_each_start_of_a_lone_rank_reserves_with_a_higher_incarnation(
    daemon: Daemon, path: Path
) -> None:
    for second in (1_700_000_000.9, 1_700_000_007.1):
        settings = read_settings({}, job="job", socket=path)
        with evac.Client(settings, clock=lambda second=second: second) as client:  # type: ignore[misc] # binds the loop's variable
            client.start()
            assert client.wait_connected(LIMIT)
            first = client.reserve(nbytes=SLOT, body="a.bin")
            assert client.reserve(nbytes=SLOT, body="a.bin") == first
    asked = [one.incarnation for one in daemon.wait(Reserve, 4)]
    assert asked == [1_700_000_000] * 2 + [1_700_000_007] * 2


def test_many_ranks_are_told_to_agree_on_an_incarnation(connect: Connect) -> None:
    client = connect(rank=1, world=2)
    with pytest.raises(ValueError, match="all 2 ranks must agree"):
        client.reserve(nbytes=SLOT, body="a.bin")


def test_it_knows_where_it_is_on_board(client: evac.Client) -> None:
    assert client.connected
    assert client.connection == 1
    assert (client.node, client.prefix, client.stores) == ("node-1", "me/job", ("file:///s",))


def test_registers_with_all_that_connect_was_told(daemon: Daemon, connect: Connect) -> None:
    connect("b", rank=1, world=2, priority=100, run="r", mode="callback", need_seconds=3)
    assert daemon.wait(Register) == [
        Register(job="b", rank=1, world=2, priority=100, run="r", mode="callback", need_seconds=3.0)
    ]


def test_reserve_returns_after_the_first_slot_and_the_others_follow(
    daemon: Daemon, client: evac.Client
) -> None:
    client.reserve(nbytes=SLOT, body="a.bin", slots=3)
    for step in range(3):
        stage(client, step, b"x")
    assert len({message.slot for message in daemon.wait(Staged, 3)}) == 3


def test_without_a_free_slot_the_stage_is_skipped(daemon: Daemon, client: evac.Client) -> None:
    client.reserve(nbytes=SLOT, body="a.bin")
    daemon.busy = True
    assert client.acquire(LIMIT) is None
    assert client.last_refusal == "no slot is free"


def test_a_slot_is_one_threads_alone(client: evac.Client) -> None:
    client.reserve(nbytes=SLOT, body="a.bin", slots=2)
    held = client.acquire(LIMIT)
    assert held is not None
    assert client.acquire(LIMIT) is None
    assert "is being written by another thread" in client.last_refusal


def test_a_released_slot_is_granted_again(client: evac.Client) -> None:
    client.reserve(nbytes=SLOT, body="a.bin", slots=1)
    first = client.acquire(LIMIT)
    assert first is not None
    client.release(first)
    assert client.acquire(LIMIT) is first


def test_fewer_slots_than_asked_are_still_slots(daemon: Daemon, client: evac.Client) -> None:
    daemon.slots_at_most = 1
    client.reserve(nbytes=SLOT, body="a.bin", slots=3)
    assert client.acquire(LIMIT) is not None


def test_a_refused_reservation_tells_the_numbers(daemon: Daemon, client: evac.Client) -> None:
    daemon.slots_at_most = 0
    with pytest.raises(evac.Refused, match="the budget is 0 bytes"):
        client.reserve(nbytes=SLOT, body="a.bin")
    assert client.connected


@pytest.mark.parametrize(
    "wrong",
    [
        {"nbytes": -1},
        {"nbytes": 100},
        {"body": "../x.bin"},
        {"body": "x"},
        {"slots": 0},
        {"incarnation": -1},
        {"layout": "x" * 129},
    ],
)
def test_what_the_protocol_cannot_say_is_a_value_error(
    client: evac.Client, wrong: dict[str, object]
) -> None:
    with pytest.raises(ValueError, match="reserve"):
        client.reserve(**{"nbytes": SLOT, "body": "a.bin", **wrong})  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda nbytes: [sealed(nbytes, seals=0)], "seals"),
        (lambda nbytes: [sealed(nbytes, seals=fcntl.F_SEAL_SHRINK)], "seals"),
        (lambda nbytes: [sealed(nbytes - PAGE)], "were announced"),
        (lambda nbytes: [os.open("/dev/zero", os.O_RDWR)], "memfd"),
    ],
)
def test_memory_that_is_not_a_sealed_slot_is_not_used(
    daemon: Daemon, client: evac.Client, make: Callable[[int], list[int]], said: str
) -> None:
    daemon.make_slot = make
    with pytest.raises(evac.SegmentError, match=said):
        client.reserve(nbytes=SLOT, body="a.bin")


@pytest.mark.parametrize("count", [0, 2])
def test_a_slot_comes_with_exactly_one_fd(daemon: Daemon, client: evac.Client, count: int) -> None:
    before = len(os.listdir("/proc/self/fd"))
    daemon.make_slot = lambda nbytes: [sealed(nbytes) for _ in range(count)]
    with pytest.raises(evac.NotConnected, match=r"slot came with 0 fds|too many fds"):
        client.reserve(nbytes=SLOT, body="a.bin", slots=1)
    daemon.wait_until(lambda: daemon.ended == 1)
    assert len(os.listdir("/proc/self/fd")) <= before


def test_of_each_slot_one_fd_stays_open_until_it_is_no_more_ours(
    daemon: Daemon, client: evac.Client
) -> None:
    client.reserve(nbytes=SLOT, body="a.bin", slots=2)
    for step in range(2):
        stage(client, step, b"x")
    # The daemon of this test lives in this process: one fd per slot is its own. A third is there
    # until whoever received it has closed it.
    until("of each slot two are open", lambda: _slot_fds() == 4)
    client.close()
    until("none is", lambda: _slot_fds() == 0)


def _slot_fds() -> int:
    return sum("evac-test" in one for one in open_files())


def test_a_grant_that_comes_too_late_is_the_next_ones(daemon: Daemon, client: evac.Client) -> None:
    client.reserve(nbytes=SLOT, body="a.bin", slots=1)
    daemon.hold = {Acquire.type}
    assert client.acquire(timeout=0.01) is None
    assert "no answer to acquire" in client.last_refusal
    before = client.openings
    daemon.answer_held()
    client.status(LIMIT)  # answered after the grant
    assert client.openings == before + 1
    daemon.hold = {Acquire.type}  # it need not ask again
    assert client.acquire(LIMIT) is not None
    assert len(daemon.wait(Acquire)) == 1


def test_a_refused_stage_is_a_warning_and_counted(
    daemon: Daemon, client: evac.Client, caplog: pytest.LogCaptureFixture
) -> None:
    client.reserve(nbytes=SLOT, body="a.bin")
    daemon.refuse_staged = "step 3 is not newer than step 4"
    stage(client, 3, b"x")
    client.status(LIMIT)  # answered after the refusal
    assert client.refusals == 1
    assert client.last_refusal == "step 3 is not newer than step 4"
    assert [one.message for one in caplog.records if one.levelno >= logging.WARNING] == [
        "step 3 was staged but is not kept: step 3 is not newer than step 4"
    ]


def test_a_second_reservation_replaces_the_first(daemon: Daemon, client: evac.Client) -> None:
    client.reserve(nbytes=SLOT, body="a.bin", slots=1)
    old = client.acquire(LIMIT)
    assert old is not None
    client.reserve(nbytes=2 * SLOT, body="a.bin", slots=1)
    new = client.acquire(LIMIT)
    assert new is not None
    assert (new.nbytes, old.nbytes) == (2 * SLOT, SLOT)
    old.memory[PAGE] = 1  # still memory


def test_complete_refuses_a_header_that_leaves_the_slot(client: evac.Client) -> None:
    client.reserve(nbytes=SLOT, body="a.bin", slots=1)
    slot = client.acquire(LIMIT)
    assert slot is not None
    with pytest.raises(evac.SegmentError, match="leaves a slot"):
        slot.complete(Header(SlotState.COMPLETE, 0, 1, body_nbytes=SLOT))
    with pytest.raises(ValueError, match="COMPLETE"):
        slot.complete(Header(SlotState.WRITING, 0, 1, body_nbytes=1))
    slot.begin(incarnation=3)
    assert Header.unpack(bytes(slot.memory[:PAGE]), slot_nbytes=SLOT) == Header(
        SlotState.WRITING, 3, 0, 0
    )


def test_status_is_the_daemons_own_account(client: evac.Client) -> None:
    assert client.status(LIMIT) == {"node": "node-1", "workloads": 1}


def test_a_daemon_that_gives_no_status_in_time_says_so(daemon: Daemon, client: evac.Client) -> None:
    daemon.hold = {AskStatus.type}
    with pytest.raises(evac.NotConnected, match=r"no answer to status in 0\.01 s"):
        client.status(timeout=0.01)
    daemon.answer_held()
    assert client.status(LIMIT)["node"] == "node-1"


def test_leave_says_so_and_hangs_up(daemon: Daemon, client: evac.Client) -> None:
    client.leave()
    assert daemon.wait(Leave)
    assert not client.connected
    daemon.wait_until(lambda: daemon.ended == 1)
    assert client.acquire() is None
    assert client.last_refusal == "the client is closed"


def test_close_waits_for_the_daemons_word_on_what_was_staged(
    daemon: Daemon, client: evac.Client
) -> None:
    client.reserve(nbytes=SLOT, body="a.bin")
    daemon.hold, daemon.refuse_staged = {"staged"}, "too late"
    stage(client, 1, b"x")
    daemon.wait(Staged)
    closing = threading.Thread(target=client.close)
    closing.start()
    closing.join(0.3)
    assert closing.is_alive()
    daemon.answer_held()
    closing.join(LIMIT)
    assert client.refusals == 1


def test_close_ends_every_thread_and_fd(daemon: Daemon, connect: Connect) -> None:
    before, fds = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    client = connect()
    assert client.wait_connected(LIMIT)
    client.reserve(nbytes=SLOT, body="a.bin", slots=1)
    client.on_order(print)
    workers = set(threading.enumerate()) - before
    assert workers
    client.close()
    client.close()
    for worker in workers:
        worker.join(LIMIT)
    daemon.wait_until(lambda: daemon.ended == 1)
    assert not any(worker.is_alive() for worker in workers)
    assert len(os.listdir("/proc/self/fd")) <= fds


def test_many_threads_share_one_client(daemon: Daemon, client: evac.Client) -> None:
    client.reserve(nbytes=SLOT, body="a.bin", slots=4)
    staged: list[int] = []

    def work(first: int) -> None:
        for step in range(first, first + 25):
            if (slot := client.acquire(LIMIT)) is not None:
                slot.complete(Header(SlotState.COMPLETE, 0, step, 1))
                staged.append(step)
                client.staged(slot, step)

    threads = [threading.Thread(target=work, args=(100 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    client.status(LIMIT)  # answered after all receipts
    assert sorted(one.step for one in daemon.wait(Staged, len(staged))) == sorted(staged)
    assert len(staged) >= 25
    assert client.refusals == 0


_STOPPED = """
import os, signal, sys, evac
from evac.segment import Header, SlotState
client = evac.connect("job", socket=sys.argv[1])
assert client.wait_connected(20)
client.reserve(nbytes=16384, body="a.bin", slots=1)
slot = client.acquire(20)
slot.memory[4096:4101] = b"state"
slot.complete(Header(SlotState.COMPLETE, 0, 9, 5))
client.staged(slot, 9)
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_process_stopped_right_after_staging_was_heard(daemon: Daemon, path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", _STOPPED, str(path)]) as process:
        try:
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            daemon.wait_until(lambda: daemon.staged)
        finally:
            process.send_signal(signal.SIGKILL)
    assert [(header.step, body) for _, header, body in daemon.staged] == [(9, b"state")]


def test_import_needs_the_standard_library_only() -> None:
    code = (
        "import sys, evac\n"
        "names = {name.partition('.')[0] for name in sys.modules} - {'evac', '__main__'}\n"
        "print(sorted(n for n in names if n not in sys.stdlib_module_names))"
    )
    # -S -E: no site-packages, so that anything else fails to import.
    done = subprocess.run(
        [sys.executable, "-S", "-E", "-c", f"import sys; sys.path.append({_ROOT!r}); {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
