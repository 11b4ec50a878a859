"""Whoever listens on the socket is the daemon, or nothing is handed to it."""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from evac._channel import Channel, ChannelError
from evac._trust import impostor

LISTEN = """
import os, socket, sys
os.setuid(4242)
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.bind(sys.argv[1])
sock.listen()
print("listening", flush=True)
sys.stdin.read()
"""


def test_one_s_own_daemon_is_trusted(tmp_path: Path) -> None:
    path = str(tmp_path / "sock")
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line,
    ):
        listener.bind(path)
        listener.listen()
        line.connect(path)

        assert impostor(line, {}) == ""


@pytest.fixture
def anybody_s() -> Iterator[Path]:
    """A folder that all may write to; pytest's own are for one user."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


@pytest.mark.skipif(os.getuid() != 0, reason="listens as another user")
def test_another_user_s_socket_in_the_daemon_s_place_is_not(anybody_s: Path) -> None:
    path = str(anybody_s / "sock")
    wake = os.eventfd(0)
    process = subprocess.Popen(
        [sys.executable, "-c", LISTEN, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout
        assert process.stdout.readline() == "listening\n"
        with pytest.raises(ChannelError, match="uid 4242 listens there and not evacd"):
            Channel(path, wake)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
            line.connect(path)
            assert "4242" in impostor(line, {"EVAC_DAEMON_UID": "1"})
            assert impostor(line, {"EVAC_DAEMON_UID": "4242"}) == ""
    finally:
        process.kill()
        process.communicate()
        os.close(wake)
