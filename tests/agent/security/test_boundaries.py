"""What one user may do to another's memory, names and node: nothing."""

import ctypes
import fcntl
import os
import signal
import socket
import stat
import time
from array import array
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from evac.wire import (
    Accepted,
    Adopt,
    Cancel,
    Drain,
    Drill,
    Granted,
    HandBack,
    Leave,
    Message,
    Refuse,
    Registered,
    Release,
    Reserve,
    Save,
    Slot,
    Staged,
    encode,
)
from tests.agent.security.attack import NOBODY, Line, as_user, refused
from tests.agent.security.conftest import Scene


def pids(scene: Scene) -> tuple[int, int]:
    """The daemon's, and the bystander's."""
    assert scene.node.process
    return scene.node.process.pid, scene.bystander.process.pid


def memfds(pid: int) -> list[str]:
    """Where a process's slots lie in /proc, as root sees it."""
    found = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            if "evac-slot" in os.readlink(path):
                found.append(str(path))
    return found


# --- memory -----------------------------------------------------------------------------------


def test_a_slot_cannot_be_opened_through_proc(scene: Scene) -> None:
    daemon, bystander = pids(scene)
    slots = memfds(daemon)
    assert slots
    maps = [str(path) for path in Path(f"/proc/{bystander}/map_files").iterdir()]
    others = [f"/proc/{pid}/mem" for pid in (daemon, bystander)]

    def attack() -> list[str]:
        return [refused(partial(os.open, path, os.O_RDONLY)) for path in [*slots, *maps, *others]]

    assert set(as_user(NOBODY, attack)) == {"PermissionError"}


def test_nor_can_its_fd_be_taken_or_its_process_be_traced(scene: Scene) -> None:
    daemon, bystander = pids(scene)
    [fd, *_] = memfds(daemon)

    def attack() -> list[bool]:
        libc = ctypes.CDLL(None, use_errno=True)
        pidfd = os.pidfd_open(daemon)
        # pidfd_getfd(2) is 438 on all architectures; ptrace(PTRACE_ATTACH) is 16.
        stolen = libc.syscall(438, pidfd, int(Path(fd).name), 0)
        traced = libc.ptrace(16, bystander, 0, 0)
        return [stolen == -1, traced == -1]

    assert as_user(NOBODY, attack) == [True, True]


def test_ones_own_slot_can_neither_shrink_nor_be_opened_anew(scene: Scene) -> None:
    def attack() -> list[str]:
        line = Line(scene.socket).aboard("mine")
        line.sock.send(encode(Reserve(nbytes=8192, body="a.bin", slots=1), id=9))
        _, [fd], _, _ = socket.recv_fds(line.sock, 1 << 16, 1)
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
        return [
            refused(lambda: os.ftruncate(fd, 0)),
            refused(lambda: os.ftruncate(fd, 1 << 20)),
            # The daemon's file: who got an fd cannot make another of it, with other rights.
            refused(lambda: os.open(f"/proc/self/fd/{fd}", os.O_RDWR)),
            oct(mode),
        ]

    assert as_user(NOBODY, attack) == ["PermissionError"] * 3 + ["0o600"]


def test_anothers_slots_have_no_numbers_on_ones_own_connection(scene: Scene) -> None:
    def attack() -> list[str]:
        line = Line(scene.socket).aboard("mine")
        line.sock.send(encode(Release(slot=0)))
        answers = [line.ask(Staged(slot=number, step=999)) for number in range(4)]
        return [type(one).__name__ for one in answers]

    assert as_user(NOBODY, attack) == ["Refuse"] * 4


def test_nobody_adopts_what_another_user_has_staged(scene: Scene) -> None:
    def attack() -> list[object]:
        told = Line(scene.socket).aboard("bystander").ask(Adopt())
        return [told.type, getattr(told, "slots", 0)]

    assert as_user(NOBODY, attack) in (["adopted", 0], ["refused", 0])


def test_memory_that_the_daemon_never_made_is_not_taken_for_a_slot(scene: Scene) -> None:
    """Neither one's own memfd, however sealed, nor a file, nor the socket itself."""

    def attack() -> list[str]:
        own = os.memfd_create("evac-slot", os.MFD_ALLOW_SEALING)
        os.ftruncate(own, 8192)
        fcntl.fcntl(
            own, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        )
        line = Line(scene.socket).aboard("forger", resume=True)
        answers = []
        for number, fd in enumerate((own, os.open("/etc/passwd", os.O_RDONLY), line.sock.fileno())):
            packet = encode(HandBack(slot=number, held=False, last=False), id=50 + number)
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [fd]))]
            line.sock.sendmsg([packet], rights)
            answer = line.receive()
            answers.append(answer.message.type if answer else "")
        return answers

    assert as_user(NOBODY, attack) == ["refused"] * 3


def test_sequential_users_get_memory_without_what_was_there(scene: Scene) -> None:
    """Slots are new memfds: zeros, never another's old pages."""

    def attack() -> bool:
        line = Line(scene.socket).aboard("mine")
        line.sock.send(encode(Reserve(nbytes=1 << 20, body="a.bin", slots=1), id=9))
        _, [fd], _, _ = socket.recv_fds(line.sock, 1 << 16, 1)
        zeros = not any(os.pread(fd, 1 << 20, 0))
        os.pwrite(fd, b"secret" * 1000, 0)
        line.ask(Leave())
        return zeros

    assert [as_user(uid, attack) for uid in (NOBODY, NOBODY - 1, NOBODY - 2)] == [True] * 3


# --- names ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "job", ["bystander", "root", "..", "../root", "root/bystander", "/etc", "a\0b", ".hidden", ""]
)
def test_no_job_name_leads_into_anothers_prefix(scene: Scene, job: str) -> None:
    def attack() -> str:
        answer = Line(scene.socket).register(job)
        return answer.prefix if isinstance(answer, Registered) else "refused"

    prefix = as_user(NOBODY, attack)
    assert prefix in {"refused", f"nobody/{job}"}


def test_nobody_takes_a_rank_of_anothers_job(scene: Scene) -> None:
    before = scene.node.status()["workloads"]
    as_user(NOBODY, lambda: str(Line(scene.socket).register("bystander", rank=0)))
    mine = [one for one in scene.node.status()["workloads"] if one["unit"] == "root/bystander"]
    assert [one["pid"] for one in mine] == [
        one["pid"] for one in before if one["unit"] == "root/bystander"
    ]


def test_the_ceiling_of_priorities_holds(scene: Scene) -> None:
    def attack() -> list[str]:
        answers = [Line(scene.socket).register("mine", priority=p) for p in (101, 1_000_000)]
        return [one.reason for one in answers if isinstance(one, Refuse)]

    reasons = as_user(NOBODY, attack)
    assert len(reasons) == 2
    assert all("is above 100, the highest" in reason for reason in reasons)


def test_a_living_rank_of_the_same_user_is_not_taken_over(scene: Scene) -> None:
    def attack() -> str:
        answer = Line(scene.socket).register("bystander", rank=0)
        return answer.reason if isinstance(answer, Refuse) else "aboard"

    assert "already registered by pid" in as_user(0, attack)


def test_who_is_not_its_user_cannot_have_a_job_saved(scene: Scene) -> None:
    def attack() -> str:
        answer = Line(scene.socket).ask(Save(job="bystander", seconds=0.0))
        return answer.reason if isinstance(answer, Refuse) else answer.type

    # A job of that name may be one of its own, from another test.
    told = as_user(NOBODY, attack)
    assert told == "ordered" or "no job bystander of user nobody" in told
    assert "root/bystander" not in {one["unit"] for one in scene.node.status()["leaving"]}


# --- verbs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("uid", [0, NOBODY])
@pytest.mark.parametrize("message", [Drain(seconds=0.0), Cancel(), Drill(flush=True)])
def test_a_containers_root_drains_nothing_over_the_workload_socket(
    scene: Scene, uid: int, message: Message
) -> None:
    def attack() -> list[str]:
        stranger = Line(scene.socket).ask(message)
        aboard = Line(scene.socket).aboard("mine").ask(message)
        return [getattr(one, "reason", "done") for one in (stranger, aboard)]

    told = as_user(uid, attack)
    assert all("said on the admin socket" in reason for reason in told), told
    status = scene.node.status()
    assert (status["order"], status["drill"]) == (None, None)


def test_the_admin_socket_does_not_open_for_others(scene: Scene) -> None:
    assert as_user(NOBODY, lambda: refused(lambda: Line(str(scene.node.admin)))) == (
        "PermissionError"
    )


def test_the_daemons_own_files_are_not_others_to_write(scene: Scene) -> None:
    paths = [scene.node.journal, scene.node.journal.parent, scene.node.socket.parent]

    def attack() -> list[bool]:
        return [os.access(path, os.W_OK) for path in paths]

    assert as_user(NOBODY, attack) == [False] * 3


def test_what_only_the_daemon_says_ends_the_connection(scene: Scene) -> None:
    def attack() -> list[bool]:
        fatal = []
        for message in (Accepted(), Granted(slot=0), Slot(slot=0, nbytes=1, last=True)):
            answer = Line(scene.socket).ask(message)
            fatal.append(isinstance(answer, Refuse) and answer.fatal)
        return fatal

    assert as_user(NOBODY, attack) == [True] * 3


# --- a process that is not what it was ----------------------------------------------------------


def credentials(scene: Scene, change: Callable[[], None]) -> str:
    """The prefix of a process that connects as one user and registers as another."""

    def attack() -> str:
        line = Line(scene.socket)
        change()
        answer = line.register("mine")
        return answer.prefix if isinstance(answer, Registered) else "refused"

    return str(as_user(0, attack))


def test_who_connected_counts_and_not_who_speaks(scene: Scene) -> None:
    # The kernel keeps the credentials of connect(2): giving up root later takes nothing away,
    # and passing a connection on gives away one's own rights, no more.
    assert credentials(scene, lambda: os.setuid(NOBODY)) == "root/mine"


def test_a_passed_on_connection_does_not_outlive_its_owner(scene: Scene) -> None:
    """A child that holds its dead parent's socket is nobody: the pidfd is the parent's."""

    def attack() -> str:
        line, parent = Line(scene.socket), os.getpid()
        if os.fork():
            os._exit(0)
        while os.getppid() == parent:
            time.sleep(0.001)
        answer = line.register("mine")
        return answer.reason if isinstance(answer, Refuse) else "aboard"

    assert "cannot be watched" in as_user(0, attack)


def test_signals_do_not_reach_the_daemon(scene: Scene) -> None:
    daemon, bystander = pids(scene)

    def attack() -> list[str]:
        return [refused(partial(os.kill, pid, signal.SIGTERM)) for pid in (daemon, bystander)]

    assert as_user(NOBODY, attack) == ["PermissionError"] * 2
