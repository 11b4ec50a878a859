"""A socket that never blocks its senders, whatever the other end does."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from evac._channel import MAX_OUTBOX, Channel, ChannelError
from evac.wire import MAX_PACKET
from tests.open_files import open_files


@pytest.fixture
def wake() -> Iterator[int]:
    fd = os.eventfd(0, os.EFD_NONBLOCK)
    yield fd
    os.close(fd)


@pytest.fixture
def ends(path: Path, wake: int) -> Iterator[tuple[Channel, socket.socket]]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()
        channel = Channel(str(path), wake)
        with listener.accept()[0] as other:
            yield channel, other
        channel.close()


def test_what_the_socket_does_not_take_waits_and_keeps_its_order(
    ends: tuple[Channel, socket.socket], wake: int
) -> None:
    channel, other = ends
    count = 0
    while not channel.behind:
        channel.send(b"%d" % count)
        count += 1
    assert os.eventfd_read(wake)
    for more in range(count, count + 10):
        channel.send(b"%d" % more)
    seen = []
    for number in range(count + 10):
        if channel.behind:
            channel.flush()
        seen.append(int(other.recv(100)))
        assert seen[-1] == number
    assert not channel.behind


def test_who_never_reads_is_given_up_without_blocking(
    ends: tuple[Channel, socket.socket],
) -> None:
    channel, _ = ends
    while not channel.behind:
        channel.send(b"x")
    for _ in range(MAX_OUTBOX):
        channel.send(b"x")
    assert not channel.behind
    with pytest.raises(ChannelError, match=f"left {MAX_OUTBOX} packets unread"):
        channel.receive()


def test_nothing_waiting_is_none(ends: tuple[Channel, socket.socket]) -> None:
    assert ends[0].receive() is None


def test_the_end_is_told(ends: tuple[Channel, socket.socket]) -> None:
    channel, other = ends
    other.close()
    with pytest.raises(ChannelError, match="closed the connection"):
        channel.receive()
    channel.send(b"x")  # harmless


def test_too_long_a_packet_ends_it(ends: tuple[Channel, socket.socket]) -> None:
    channel, other = ends
    other.send(b"x" * (MAX_PACKET + 2))
    with pytest.raises(ChannelError, match="too long"):
        channel.receive()


def test_too_many_fds_end_it_and_none_stays(ends: tuple[Channel, socket.socket]) -> None:
    channel, other = ends
    before = open_files()
    socket.send_fds(other, [b"x"], [0] * 200)
    with pytest.raises(ChannelError, match="too many fds"):
        channel.receive()
    assert open_files() <= before


def test_sending_after_the_close_is_harmless(ends: tuple[Channel, socket.socket]) -> None:
    channel, _ = ends
    channel.close()
    channel.send(b"x")
    channel.flush()
    channel.close()


def test_a_forked_childs_copy_holds_none_of_the_fds_that_wait(
    ends: tuple[Channel, socket.socket],
) -> None:
    channel, _ = ends
    while not channel.behind:
        channel.send(b"x")
    before = open_files()
    fd = os.open("/dev/null", os.O_RDONLY)
    channel.send(b"x", fd)
    os.close(fd)
    held = open_files()

    channel.forget()

    # Its copy of that fd, and the socket.
    assert len(held - before) == 1
    assert not (held - before) & open_files()
    assert before - open_files()
