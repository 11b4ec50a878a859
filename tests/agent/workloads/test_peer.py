import os
import select
import socket
import subprocess
from dataclasses import replace

import pytest

from evacd.workloads.job import Process
from evacd.workloads.peer import SO_PEERPIDFD, Peer, PeerGone, alive, identify, peer_of

# An option that no kernel has, as SO_PEERPIDFD is for those before 6.5.
NO_OPTION = 9999


@pytest.fixture
def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


@pytest.mark.parametrize("option", [SO_PEERPIDFD, NO_OPTION])
def test_a_process_is_known_again(pair: tuple[socket.socket, socket.socket], option: int) -> None:
    peer = peer_of(pair[0])
    assert (peer.pid, peer.uid, peer.gid) == (os.getpid(), os.getuid(), os.getgid())
    one, fd = identify(pair[0], peer, option=option)
    two, other = identify(pair[0], peer, option=option)
    assert one == two
    assert alive(fd)
    for it in (fd, other):
        os.close(it)
    for end in pair:
        end.close()


@pytest.mark.parametrize("option", [SO_PEERPIDFD, NO_OPTION])
def test_a_pid_that_is_anothers_by_now_is_not_the_peer(
    pair: tuple[socket.socket, socket.socket], option: int
) -> None:
    peer = peer_of(pair[0])
    # As if this process had begun after the connection was made.
    with pytest.raises(PeerGone, match="another's"):
        identify(pair[0], replace(peer, accepted=1), option=option)
    for end in pair:
        end.close()


def test_a_process_that_has_ended_is_gone(pair: tuple[socket.socket, socket.socket]) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    peer = replace(peer_of(pair[0]), pid=ended.pid)
    with pytest.raises(PeerGone, match="has ended"):
        identify(pair[0], peer, option=NO_OPTION)
    for end in pair:
        end.close()


def test_a_peer_that_cannot_be_seen_is_told_what_to_do(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    peer = replace(peer_of(pair[0]), pid=0)
    with pytest.raises(PeerGone, match="pid namespace"):
        identify(pair[0], peer, option=NO_OPTION)
    # Where the kernel gives a pidfd, it is a process like any other.
    process, pidfd = identify(pair[0], peer)
    assert process.pid == 0
    os.close(pidfd)
    for end in pair:
        end.close()


def test_a_pidfd_becomes_readable_at_the_end(pair: tuple[socket.socket, socket.socket]) -> None:
    running = subprocess.Popen(["sleep", "60"])
    peer: Peer = replace(peer_of(pair[0]), pid=running.pid, accepted=2**62)
    _, pidfd = identify(pair[0], peer, option=NO_OPTION)
    assert alive(pidfd)
    running.kill()
    assert select.select([pidfd], [], [], 30)[0]
    assert not alive(pidfd)
    running.wait()
    os.close(pidfd)
    for end in pair:
        end.close()


def test_a_process_that_changes_its_group_is_the_same() -> None:
    assert Process(1, 2, 3, 4) == Process(1, 2, 3, 5) != Process(1, 2, 4, 4)
