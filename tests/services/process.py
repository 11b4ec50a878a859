"""One real server for a test run: started on a free loopback port, waited for, killed by its pid."""

import os
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

HOST = "127.0.0.1"
# A machine that runs everything else at the same time is slow to start things.
PATIENCE_SECONDS = 180.0


class Unavailable(Exception):
    """This machine cannot run the server; says what is missing and what would bring it."""


def free_port() -> int:
    """A port that nobody listens at right now."""
    with socket.socket() as asked:
        asked.bind((HOST, 0))
        return int(asked.getsockname()[1])


def script(name: str, *, cure: str) -> str:
    """The path of a program that a package has put beside this Python.

    Raises:
        Unavailable: It is not installed.
    """
    path = Path(sysconfig.get_path("scripts")) / name
    if not path.exists():
        path = Path(sys.executable).parent / name
    if not path.exists():
        raise Unavailable(f"{name} is not installed: {cure}")
    return str(path)


@contextmanager
def process(
    command: Sequence[str],
    *,
    folder: Path,
    ready: Callable[[], bool],
    env: Mapping[str, str] | None = None,
) -> Iterator["subprocess.Popen[bytes]"]:
    """A server until the block ends; then its whole process group is killed.

    Args:
        folder: Its working directory; ``server.log`` there has what it printed.
        ready: Asked again and again until it says yes.

    Raises:
        Unavailable: It cannot be executed here.
        RuntimeError: It ended at once.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "server.log"
    with log.open("wb") as output:
        try:
            server = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise Unavailable(f"{command[0]}: {error}") from error
    try:
        started = time.perf_counter()
        while not ready():
            if server.poll() is not None:
                tail = log.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{command[0]} ended with {server.returncode}: {tail}")
            if time.perf_counter() - started > PATIENCE_SECONDS:
                tail = log.read_text(errors="replace")[-2000:]
                raise TimeoutError(f"{command[0]} does not answer: {tail}")
            time.sleep(0.05)
        yield server
    finally:
        # Its own group, which start_new_session made: whatever it has started goes with it.
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def answers(port: int) -> Callable[[], bool]:
    """Whether something accepts connections at *port*."""

    def ask() -> bool:
        try:
            with socket.create_connection((HOST, port), timeout=1):
                return True
        except OSError:
            return False

    return ask
