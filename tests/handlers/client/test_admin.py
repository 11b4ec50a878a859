"""One question, one answer, and a plain reason where there is none."""

import fcntl
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

import pytest

import evac
from evac.admin import read_status, request
from evac.wire import (
    Accepted,
    Advice,
    AskStatus,
    Drain,
    Hello,
    Message,
    Refuse,
    Status,
    Welcome,
    decode,
    encode,
)
from tests.handlers.client.honest import LIMIT, Daemon, sealed

Answer = Callable[[socket.socket, int | None, Message], None]


@contextmanager
def listening(path: Path, answer: Answer | None) -> Iterator[None]:
    """One connection: says welcome, then gives each request to *answer*."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        with closing(listener.accept()[0]) as line:
            while data := line.recv(70_000):
                packet = decode(data)
                if isinstance(packet.message, Hello):
                    line.send(encode(Welcome(version=1), re=packet.id))
                elif answer is not None:
                    answer(line, packet.id, packet.message)

    thread = Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join(LIMIT)
        listener.close()


def test_the_answer_is_found_between_other_news(path: Path) -> None:
    heard: list[Message] = []

    def answer(line: socket.socket, re: int | None, message: Message) -> None:
        heard.append(message)
        line.send(encode(Advice(source="gcp", kind="rebalance")))
        line.send(encode(Accepted(), re=99))
        line.send(encode(Accepted(), re=re))

    with listening(path, answer):
        drain = Drain(seconds=30, reason="by hand")
        assert request(path, drain, timeout=LIMIT) == Accepted()
    assert heard == [drain]


def test_a_refusal_is_an_answer(path: Path) -> None:
    def answer(line: socket.socket, re: int | None, message: Message) -> None:
        line.send(encode(Refuse(reason="no order runs"), re=re))

    with listening(path, answer):
        assert request(path, Drain(seconds=1), timeout=LIMIT) == Refuse(reason="no order runs")


def test_status_is_read_from_its_memory(daemon: Daemon) -> None:
    assert read_status(daemon.path, timeout=LIMIT) == {"node": "node-1", "workloads": 1}


@pytest.mark.parametrize(
    ("make", "nbytes", "said"),
    [
        (lambda: sealed(2, b"{}", seals=0), 2, "seals"),
        (lambda: sealed(2, b"{}", seals=fcntl.F_SEAL_GROW), 2, "seals"),
        (lambda: sealed(2, b"{}"), 3, "were announced"),
        (lambda: sealed(2, b"[]"), 2, "not a JSON object"),
        (lambda: sealed(2, b"{{"), 2, "cannot be read"),
        (lambda: sealed(2, b"{}"), 2**40, "at most"),
        (lambda: os.open("/dev/null", os.O_RDONLY), 2, "not a memfd"),
    ],
)
def test_memory_that_is_no_sealed_answer_is_not_believed(
    path: Path, make: Callable[[], int], nbytes: int, said: str
) -> None:
    def answer(line: socket.socket, re: int | None, message: Message) -> None:
        fd = make()
        socket.send_fds(line, [encode(Status(nbytes=nbytes), re=re)], [fd])
        os.close(fd)

    with listening(path, answer), pytest.raises(evac.ProtocolError, match=said):
        read_status(path, timeout=LIMIT)


def test_a_status_without_memory_is_not_believed(path: Path) -> None:
    def answer(line: socket.socket, re: int | None, message: Message) -> None:
        assert isinstance(message, AskStatus)
        line.send(encode(Status(nbytes=2), re=re))

    with listening(path, answer), pytest.raises(evac.ProtocolError, match="0 fds"):
        read_status(path, timeout=LIMIT)


def test_no_fd_of_an_answer_stays_open(daemon: Daemon) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        read_status(daemon.path, timeout=LIMIT)
    daemon.wait_until(lambda: daemon.ended == 5)
    assert len(os.listdir("/proc/self/fd")) <= before


def test_no_socket_says_so(path: Path) -> None:
    with pytest.raises(evac.NotConnected, match="no such socket"):
        request(path, AskStatus(), timeout=1)


def test_a_socket_that_nobody_serves_says_so(path: Path) -> None:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as left:
        left.bind(str(path))
    with pytest.raises(evac.NotConnected, match="nobody listens"):
        request(path, AskStatus(), timeout=1)


def test_a_daemon_that_is_silent_says_so(path: Path) -> None:
    with listening(path, None), pytest.raises(evac.NotConnected, match=r"no answer in 0\.05 s"):
        request(path, AskStatus(), timeout=0.05)


def test_a_daemon_that_hangs_up_says_so(path: Path) -> None:
    def answer(line: socket.socket, re: int | None, message: Message) -> None:
        line.shutdown(socket.SHUT_RDWR)

    with listening(path, answer), pytest.raises(evac.NotConnected, match="hung up"):
        request(path, AskStatus(), timeout=LIMIT)


def test_a_fatal_refusal_need_not_be_an_answer(path: Path) -> None:
    def answer(line: socket.socket, re: int | None, message: Message) -> None:
        line.send(encode(Refuse(reason="not the protocol", fatal=True)))

    with listening(path, answer), pytest.raises(evac.Refused, match="not the protocol"):
        request(path, AskStatus(), timeout=LIMIT)


def test_who_talks_something_else_is_not_evacd(path: Path) -> None:
    def answer(line: socket.socket, re: int | None, message: Message) -> None:
        line.send(b"HTTP/1.1 400 Bad Request")

    with listening(path, answer), pytest.raises(evac.ProtocolError, match="not JSON"):
        request(path, AskStatus(), timeout=LIMIT)


_AS_NOBODY = """
import json, os, sys
sys.path.append(sys.argv[1])
import evac
from evac.admin import request
from evac.wire import AskStatus
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    request(sys.argv[2], AskStatus(), timeout=5)
except evac.NotConnected as error:
    print(json.dumps(error.reason))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_no_permission_says_who_has_it() -> None:
    root = str(Path(evac.__file__).parent.parent)

    def said(path: Path) -> str:
        done = subprocess.run(
            [sys.executable, "-c", _AS_NOBODY, root, str(path)],
            capture_output=True,
            text=True,
            check=True,
        )
        return str(json.loads(done.stdout))

    # Not below tmp_path, where nobody else may enter.
    with TemporaryDirectory() as name:
        folder, path = Path(name), Path(name) / "admin.sock"
        with closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as listener:
            listener.bind(str(path))
            folder.chmod(0o755)
            path.chmod(0o660)
            assert said(path) == "permission denied; user root and group root may"
            path.chmod(0o600)
            assert said(path) == "permission denied; user root may"
            folder.chmod(0o700)
            assert said(path) == f"permission denied; only who may enter {folder} can"
