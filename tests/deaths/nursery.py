"""Daemons and workloads by the hundred: each a real process, forked off one that has imported all.

A fresh interpreter takes most of a second for its imports, which is more than a whole life here. The
nursery is one process without threads; a child of it is a process like any other, with its own pid,
memory, fds and end, and with a new process group, so that nothing of the test's reaches it.
"""

import array
import ctypes
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

_FIRST = 3
# linux/sched.h and linux/prctl.h
_NEWPID, _PR_SET_PDEATHSIG = 0x20000000, 1
_OUT_OF_THE_WAY = 600
_MOST = 200
# Those too that the daemon imports only when it needs them.
_NEEDED = (
    *("evac", "evac.store.local", "evacd.cli", "evacd.daemon"),
    *("tests.agent.daemon.worker", "tests.deaths.doom"),
)


class Child:
    """A process of the nursery's, as the test sees it; like a `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """None while it lives."""
        return 0 if self._ended(0.0) else None

    def wait(self, timeout: float | None = None) -> int:
        """Until it has ended."""
        assert self._ended(30.0 if timeout is None else timeout), f"{self.pid} goes on and on"
        return 0

    def send_signal(self, number: int) -> None:
        """To no other process, whatever its number means by now."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """Gone."""
        self.kill()
        self.wait()
        os.close(self._pidfd)

    def _ended(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(1000 * seconds))


class Nursery:
    """Started once for a run; `close` ends it, and nothing that it bore."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "tests.deaths.nursery", str(theirs.fileno())]
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )

    def bear(
        self,
        what: str,
        arguments: Sequence[str],
        *,
        fds: Sequence[int],
        std: tuple[int, int, int],
        environ: Mapping[str, str] | None = None,
        **more: Any,
    ) -> Child:
        """A new process.

        Args:
            what: ``daemon``, ``worker`` or ``contained``: a worker in a pid namespace, of which
                the process that is returned is the parent.
            arguments: Of its command line.
            fds: That it gets as 3, 4 and so on.
            std: Its standard input, output and error.
            more: For `Doom`, where it is to die by its own hand.
        """
        document = {"what": what, "arguments": [*arguments], "environ": dict(environ or {}), **more}
        rights = array.array("i", [*std, *fds])
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
        with self._lock:
            self._ours.sendmsg([json.dumps(document).encode()], control)
            return Child(int(self._ours.recv(64)))

    def close(self) -> None:
        """It ends when its socket does, also where a process that was forked here holds it still."""
        self._ours.shutdown(socket.SHUT_RDWR)
        self._ours.close()
        self._process.wait()


def _raise(what: str, request: dict[str, Any], fds: list[int]) -> None:
    """In the child: never returns."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        moved = [os.dup2(fd, _OUT_OF_THE_WAY + at) for at, fd in enumerate(fds)]
        os.closerange(_FIRST, _OUT_OF_THE_WAY)
        for at, fd in enumerate(moved):
            os.dup2(fd, at)
        os.closerange(_OUT_OF_THE_WAY, _OUT_OF_THE_WAY + len(moved))
        os.environ.update(request["environ"])
        if len(fds) > _FIRST:
            os.environ["LISTEN_PID"] = str(os.getpid())
            os.environ["LISTEN_FDS"] = str(len(fds) - _FIRST)
        sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
        sys.stderr = os.fdopen(2, "w", buffering=1)
        if what == "daemon":
            from evacd.cli import main
            from tests.deaths.doom import Doom

            if request.get("doom") is not None:
                Doom(**request["doom"]).begin()
            code = main(request["arguments"])
        else:
            if what == "contained":
                _contain()
            from tests.agent.daemon import worker

            sys.argv = ["worker", *request["arguments"]]
            worker.main()
            code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _contain() -> None:
    """Go on as a process of a pid namespace, which goes with the process that this one was."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEWPID) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    for _ in range(2):
        if (child := os.fork()) != 0:
            os.closerange(0, _OUT_OF_THE_WAY)
            os.waitpid(child, 0)
            os._exit(0)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def main(door: socket.socket) -> None:
    """Bear whoever is asked for, until nobody can ask any more."""
    for name in _NEEDED:
        importlib.import_module(name)
    # Nobody waits for its children here: their ends are seen by pidfd.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        data, fds, _, _ = socket.recv_fds(door, 1 << 16, _MOST)
        if not data:
            return
        request = json.loads(data)
        pid = os.fork()
        if pid == 0:
            door.close()
            _raise(request["what"], request, fds)
        for fd in fds:
            os.close(fd)
        door.send(str(pid).encode())


def logs_to(path: Path) -> int:
    """An fd that appends; the caller's."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as opened:
        main(opened)
