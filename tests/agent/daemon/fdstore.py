"""A service manager's fd store, as systemd has it: what it is given, the next daemon gets.

It keeps fds by name as sd_notify(3) says, drops a second fd of the same file, removes by name, closes a
barrier's fd, and starts a daemon with what it has as sd_listen_fds(3) says.
"""

import array
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Condition, Thread

from tests.agent.daemon.nodes import Node, until

_LAUNCH = """
import os, sys
given = [int(one) for one in sys.argv[1].split(",") if one]
# First away from where they shall be.
moved = [os.dup2(one, 10000 + at) for at, one in enumerate(given)]
for one in given:
    os.close(one)
for at, one in enumerate(moved):
    os.dup2(one, 3 + at)
    os.close(one)
if given:
    os.environ["LISTEN_PID"] = str(os.getpid())
    os.environ["LISTEN_FDS"] = str(len(given))
os.execv(sys.argv[2], sys.argv[2:])
"""


class Manager:
    """Hears one daemon after the other; closed at the end."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "notify"
        self.kept: dict[str, list[int]] = {}
        self.words: list[str] = []
        self.changed = Condition()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.path))
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def start(self, node: Node, *flags: str) -> None:
        """Start the node's daemon with all that is kept."""
        with self.changed:
            given = [(name, fd) for name, fds in self.kept.items() for fd in fds]
        fds = [fd for _, fd in given]
        environ = {
            **os.environ,
            "NOTIFY_SOCKET": str(self.path),
            "LISTEN_FDNAMES": ":".join(name for name, _ in given),
        }
        command = [sys.executable, "-c", _LAUNCH, ",".join(map(str, fds)), *node.command(*flags)]
        with node.log.open("ab") as log:
            node.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environ, pass_fds=fds
            )
        until("evacd listens", lambda: node.listens())

    def names(self) -> Sequence[str]:
        """Of all that is kept, one for each fd."""
        with self.changed:
            return [name for name, fds in self.kept.items() for _ in fds]

    def lose(self) -> None:
        """As a stopped service loses what it had."""
        with self.changed:
            for fds in self.kept.values():
                for fd in fds:
                    os.close(fd)
            self.kept.clear()

    def close(self) -> None:
        """Gone, with what it kept."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"X-END", str(self.path))
        self._thread.join()
        self._socket.close()
        self.lose()

    def _run(self) -> None:
        while True:
            data, rights, _, _ = self._socket.recvmsg(4096, socket.CMSG_SPACE(16 * 4))
            fds = array.array("i")
            for _, _, raw in rights:
                fds.frombytes(raw)
            if data == b"X-END":
                return
            with self.changed:
                self._take(data.decode(), fds.tolist())
                self.changed.notify_all()

    def _take(self, text: str, fds: list[int]) -> None:
        self.words.append(text)
        said = dict(line.split("=", 1) for line in text.splitlines())
        name = said.get("FDNAME", "stored")
        if said.get("FDSTOREREMOVE") == "1":
            for fd in self.kept.pop(name, []):
                os.close(fd)
        for fd in fds:
            if said.get("FDSTORE") != "1" or self._has(fd):
                os.close(fd)
            else:
                self.kept.setdefault(name, []).append(fd)

    def _has(self, fd: int) -> bool:
        return any(os.path.sameopenfile(fd, one) for fds in self.kept.values() for one in fds)
