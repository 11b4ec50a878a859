import asyncio
import os
import socket

import pytest

from evac.wire import Accepted, Refuse, decode, encode
from evacd.workloads.closing import Closing
from evacd.workloads.link import OUTBOX, Link
from tests.open_files import open_files


class Ear:
    def __init__(self) -> None:
        self.packets: list[bytes] = []
        self.ends: list[str] = []

    def received(self, packet: bytes, fd: int | None) -> None:
        self.packets.append(packet)

    def ended(self, reason: str) -> None:
        self.ends.append(reason)


def linked() -> tuple[Link, Ear, socket.socket]:
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.setblocking(False)
    link, ear = Link(mine, asyncio.get_running_loop(), Closing()), Ear()
    link.receiver = ear
    return link, ear, theirs


async def until(true: object) -> None:
    for _ in range(12000):
        if callable(true) and true():
            return
        await asyncio.sleep(0.005)
    pytest.fail("waited in vain")


async def test_what_waits_for_a_slow_reader_comes_in_order_and_complete() -> None:
    link, _, theirs = linked()
    sent = 0
    while not link._outbox:
        link.send(b"%d" % sent)
        sent += 1
    for _ in range(OUTBOX // 2):
        link.send(b"%d" % sent)
        sent += 1
    got: list[int] = []

    def all_there() -> bool:
        while True:
            try:
                got.append(int(theirs.recv(100)))
            except BlockingIOError:
                return len(got) == sent

    await until(all_there)
    assert got == list(range(sent))
    link.hang_up("bye")
    theirs.close()


async def test_fds_that_wait_outlive_their_owner_and_are_closed_after() -> None:
    link, _, theirs = linked()
    before = open_files()
    while not link._outbox:
        link.send(b"filler")
    fd = os.memfd_create("answer")
    os.write(fd, b"answer")
    link.send(b"with fd", fd)
    os.close(fd)
    found: list[int] = []

    def there() -> bool:
        while not found:
            try:
                packet, fds, _, _ = socket.recv_fds(theirs, 100, 1)
            except BlockingIOError:
                return False
            if packet == b"with fd":
                found.extend(fds)
        return True

    await until(there)
    assert os.pread(found[0], 10, 0) == b"answer"
    os.close(found[0])
    await until(lambda: open_files() <= before)
    link.hang_up("bye")
    theirs.close()


async def test_a_dropped_peer_hears_why_although_it_had_more_to_say() -> None:
    link, ear, theirs = linked()
    link.pause()
    for _ in range(20):
        theirs.send(b"more to say")
    link.drop("enough")

    assert decode(theirs.recv(1000)).message == Refuse("enough", fatal=True)
    assert theirs.recv(1000) == b""
    assert ear.ends == ["enough"]
    link.drop("twice")
    assert ear.ends == ["enough"]
    theirs.close()


async def test_what_is_waiting_is_closed_with_the_link() -> None:
    before = open_files()
    link, ear, theirs = linked()
    fd = os.memfd_create("answer")
    for _ in range(2000):
        link.send(encode(Accepted()), fd)
        if link.closed:
            break
    assert link.closed
    assert "does not read" in ear.ends[0]
    # Theirs and ours: the link's own socket is gone, and every copy of the fd that waited.
    await until(lambda: len(open_files() - before) == 2)
    os.close(fd)
    theirs.close()


@pytest.mark.parametrize("told", ["before its end", "after its end", "both"])
async def test_a_peer_that_went_without_reading_is_heard_to_its_end(told: str) -> None:
    link, ear, theirs = linked()
    link.pause()
    if told != "after its end":
        link.send(b"unread")
    for number in range(40):
        theirs.send(b"%d" % number)
    theirs.close()
    if told != "before its end":
        for _ in range(3):
            link.send(b"in vain")
        assert not link.hears
    assert not link.closed
    link.resume()
    await until(lambda: ear.ends == [""])
    assert ear.packets == [b"%d" % number for number in range(40)]


async def test_what_waits_for_a_peer_that_went_is_let_go_before_it_is_heard() -> None:
    before = open_files()
    link, ear, theirs = linked()
    fd = os.memfd_create("answer")
    while not link._outbox:
        link.send(b"filler")
    link.send(b"with fd", fd)
    os.close(fd)
    link.pause()
    theirs.send(b"last")
    theirs.close()
    await until(lambda: not link.hears)
    # Not theirs, and no waiting copy; ours is open, for it has not been read.
    await until(lambda: len(open_files() - before) == 1)
    link.resume()
    await until(lambda: ear.ends == [""])
    assert ear.packets == [b"last"]


async def test_hearing_says_whether_there_may_be_more() -> None:
    link, ear, theirs = linked()
    assert not link.hear()
    theirs.send(b"one")
    assert not link.hear()
    link.pause()
    theirs.send(b"two")
    assert link.hear()
    assert ear.packets == [b"one"]
    link.resume()
    for _ in range(20):
        theirs.send(b"more")
    # A peer that talks much does not keep the others waiting.
    assert link.hear()
    assert not link.hear()
    theirs.close()
    assert not link.hear()
    assert (len(ear.packets), ear.ends) == (22, [""])
    assert not link.hear()


async def test_a_paused_link_hears_nothing_until_it_is_resumed() -> None:
    link, ear, theirs = linked()
    link.pause()
    theirs.send(b"early")
    for _ in range(5):
        await asyncio.sleep(0)
    assert ear.packets == []
    link.resume()
    await until(lambda: ear.packets == [b"early"])
    theirs.close()
    await until(lambda: ear.ends == [""])


async def test_what_a_dropped_peer_had_sent_is_closed_by_nobody_whom_that_could_hold_up() -> None:
    before = open_files()
    link, ear, theirs = linked()
    link.pause()
    reader, writer = os.pipe()
    for number in range(40):
        packet = b"" if number % 2 else b"more to say"
        socket.send_fds(theirs, [packet], [writer] * (number % 5))
    os.close(writer)
    link.drop("enough")

    assert ear.ends == ["enough"]
    assert decode(theirs.recv(1000)).message == Refuse("enough", fatal=True)
    assert theirs.recv(1000) == b""
    # The writing end is nowhere open any more.
    assert await asyncio.to_thread(os.read, reader, 1) == b""
    await until(lambda: len(open_files() - before) == 2)
    os.close(reader)
    theirs.close()
