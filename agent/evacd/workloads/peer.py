"""Who is at the other end of a socket, and whether that process still lives.

Sources: unix(7) SO_PEERCRED; SO_PEERPIDFD (Linux 6.5, include/uapi/asm-generic/socket.h: 77);
pidfd_open(2); proc_pid_stat(5), field 22; pidfs (Linux 6.9) gives every process an inode.
"""

import errno
import itertools
import os
import pwd
import select
import socket
import struct
import time
from dataclasses import dataclass, replace
from pathlib import Path

from evacd.workloads.cgroup import Whereabouts
from evacd.workloads.job import Process
from evacd.workloads.pods import own_pod, whereabouts

SO_PEERPIDFD = 77
_CREDENTIALS = struct.Struct("3i")
_FD = struct.Struct("i")
# From the clock on: none is one that a daemon before this one has given.
_UNKNOWN = itertools.count(time.clock_gettime_ns(time.CLOCK_BOOTTIME))


@dataclass(frozen=True)
class Peer:
    """What the kernel says of the process that connected.

    Attributes:
        pid: 0 where it lives outside the daemon's pid namespace.
        user: Name of the uid here; None where it has none.
        accepted: Clock ticks after boot: a process that started later is not this one.
        pod: The pod that it is in; None where it is in none.
    """

    pid: int
    uid: int
    gid: int
    user: str | None
    accepted: int
    pod: Whereabouts = None


class PeerGone(Exception):
    """The process has ended, or cannot be seen from here; the message says which."""


def peer_of(sock: socket.socket, *, pods: Path | None = None) -> Peer:
    """Ask the kernel who connected.

    Args:
        pods: The kubelet's folders of pods; None where nobody is to be looked for in a pod.
    """
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(raw)
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = None
    # Boot time and not the injected clock: it is compared with the kernel's own.
    ticks = time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK")
    peer = Peer(pid, uid, gid, user, int(ticks) + 1)
    return peer if pods is None else replace(peer, pod=_pod_of(sock, peer, pods))


def barred(sock: socket.socket, peer: Peer, pods: Path | None) -> str:
    """Why the other end may give no orders, although it may open their socket; "" where it may.

    The root of a container is uid 0, and the file's mode lets it in wherever it has the file.

    Args:
        pods: As for `peer_of`; where there is none, the file's mode decides alone.
    """
    if pods is None or not pods.is_dir():
        return ""
    try:
        pidfd = _pidfd(sock, peer, SO_PEERPIDFD)
    except PeerGone as error:
        return f"nobody can tell whose order it is: {error}"
    try:
        # Who connects and ends hands its line on, and leaves nobody to be looked at.
        if peer.pid == 0 or not alive(pidfd):
            return "nobody can tell whose order it is: the process that connected cannot be seen"
    finally:
        os.close(pidfd)
    if peer.pod is None or peer.pod.uid == own_pod():
        return ""
    return "a workload's pod gives no orders to its node"


def identify(sock: socket.socket, peer: Peer, *, option: int = SO_PEERPIDFD) -> tuple[Process, int]:
    """The process and a pidfd of it, which the caller closes.

    Args:
        option: The socket option that gives a pidfd; for kernels that have none, pidfd_open
            is used and the start time checked.

    Raises:
        PeerGone: There is no such process to be seen any more.
    """
    pidfd = _pidfd(sock, peer, option)
    try:
        if peer.pid == 0:
            return Process(0, _pidfs_inode(pidfd), peer.uid, peer.gid), pidfd
        started = _started(peer.pid)
        # Alive after the look at /proc: the pid was its own all the time.
        if not alive(pidfd):
            raise PeerGone("the process has ended")
        if started > peer.accepted:
            raise PeerGone("the process has ended, and its pid is another's")
    except BaseException:
        os.close(pidfd)
        raise
    return Process(peer.pid, started, peer.uid, peer.gid), pidfd


def find_again(process: Process) -> int | None:
    """A pidfd of a process that an earlier daemon knew, which the caller closes; None where it ended.

    None as well where it lives outside the daemon's pid namespace: its number here is 0.
    """
    if process.pid == 0:
        return None
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        return None
    # Started when it did, and alive after that look: the pid was its own all the time.
    if lives(process) and alive(pidfd):
        return pidfd
    os.close(pidfd)
    return None


def lives(process: Process) -> bool:
    """Whether its pid is its own still; a process that waits to be reaped counts as living."""
    try:
        return _started(process.pid) == process.started
    except PeerGone:
        return False


def alive(pidfd: int) -> bool:
    """A pidfd becomes readable when its process ends."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return not poll.poll(0)


def _pod_of(sock: socket.socket, peer: Peer, pods: Path) -> Whereabouts:
    """Where it is; None for who has ended meanwhile, and cannot register any more."""
    if peer.pid == 0:
        return None
    try:
        pidfd = _pidfd(sock, peer, SO_PEERPIDFD)
    except PeerGone:
        return None
    try:
        found = whereabouts(peer.pid, pods)
        # Alive after the look at /proc: the pid was its own all the time.
        return found if alive(pidfd) else None
    finally:
        os.close(pidfd)


def _pidfd(sock: socket.socket, peer: Peer, option: int) -> int:
    try:
        return int(_FD.unpack(sock.getsockopt(socket.SOL_SOCKET, option, _FD.size))[0])
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            # The kernel can tell, and this process it cannot: its pid may be another's by now.
            raise PeerGone(f"the process cannot be watched: {error.strerror}") from error
    if peer.pid == 0:
        raise PeerGone("the process is outside evacd's pid namespace: run evacd in the host's")
    try:
        return os.pidfd_open(peer.pid)
    except OSError as error:
        raise PeerGone("the process has ended") from error


def _started(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
        # The name in parentheses may hold anything, parentheses too; field 3 follows it.
        return int(stat.rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError) as error:
        raise PeerGone("the process has ended") from error


def _pidfs_inode(pidfd: int) -> int:
    """A number of the process itself; below Linux 6.9 one that never comes again."""
    event = os.eventfd(0)
    try:
        mine, anonymous = os.fstat(pidfd), os.fstat(event)
        return mine.st_ino if mine.st_dev != anonymous.st_dev else -next(_UNKNOWN)
    finally:
        os.close(event)
