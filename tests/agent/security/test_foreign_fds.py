"""A file whose last close takes an hour, sent to the daemon: whoever waits for that is not the daemon's loop."""

import os
import socket
import struct
from array import array
from collections.abc import Callable
from contextlib import suppress

import pytest

from evac.wire import AskStatus, HandBack, encode
from tests.agent.daemon.nodes import until
from tests.agent.security.attack import NOBODY, Line, as_user
from tests.agent.security.conftest import Scene

HOUR = 3600


def slow_to_close() -> tuple[socket.socket, socket.socket]:
    """A connection of which not all was taken, and its other end: close(2) waits for that, see SO_LINGER in socket(7)."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        slow.connect(listener.getsockname())
        other, _ = listener.accept()
    slow.setblocking(False)
    try:
        while True:
            slow.send(bytes(65536))
    except BlockingIOError:
        lingers(slow, HOUR)
        return slow, other


def lingers(sock: socket.socket, seconds: int) -> None:
    """Whoever closes it last waits for so long at most."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", seconds > 0, seconds))


# They stay open for as long as the attacker lives.
others: list[socket.socket] = []


def send(line: Line, packet: bytes, count: int = 1) -> None:
    """*packet* with fds that only whoever gets them has."""
    made = [slow_to_close() for _ in range(count)]
    others.extend(other for _, other in made)
    rights = array("i", [slow.fileno() for slow, _ in made])
    try:
        line.sock.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    except OSError:
        for slow, _ in made:
            lingers(slow, 0)
        raise
    finally:
        for slow, _ in made:
            slow.close()


def with_a_word_that_carries_none(line: Line) -> None:
    send(line, encode(AskStatus(), id=9))


def with_a_word_that_carries_one(line: Line) -> None:
    line.aboard("foreign", resume=True)
    send(line, encode(HandBack(slot=0, held=False, last=False), id=9))


def several_at_once(line: Line) -> None:
    send(line, encode(AskStatus(), id=9), count=3)


def behind_what_it_is_dropped_for(line: Line) -> None:
    with suppress(BrokenPipeError):  # the daemon was quicker
        line.sock.send(b"no message")
        for _ in range(3):
            send(line, encode(AskStatus(), id=9))


def until_it_is_dropped_for_not_reading(line: Line) -> None:
    line.sock.settimeout(1.0)
    with suppress(OSError):  # it was dropped, or nobody takes any more
        for number in range(1000):
            line.sock.send(encode(AskStatus(), id=number + 1))
            if number % 50 == 0:
                send(line, encode(AskStatus(), id=9))


@pytest.mark.parametrize(
    "attack",
    [
        with_a_word_that_carries_none,
        with_a_word_that_carries_one,
        several_at_once,
        behind_what_it_is_dropped_for,
        until_it_is_dropped_for_not_reading,
    ],
    ids=lambda one: one.__name__,
)
def test_a_file_that_is_slow_to_close_costs_nobody_else_a_moment(
    scene: Scene, attack: Callable[[Line], None]
) -> None:
    assert scene.node.process
    folder = f"/proc/{scene.node.process.pid}/fd"
    before = len(os.listdir(folder))

    def attacker() -> bool:
        attack(Line(scene.socket))
        # While the attacker lives, nothing takes what these connections still have to say.
        for _ in range(3):
            Line(scene.socket)
        return True

    assert as_user(NOBODY, attacker)
    scene.goes_on()
    until("all of them are closed", lambda: len(os.listdir(folder)) <= before + 2)
