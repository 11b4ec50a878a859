"""The demo's stage hands: processes that never outlive it, waits that say what they wait for."""

import ctypes
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BAR = 30
# linux/prctl.h
_PR_SET_PDEATHSIG = 1
# Tells whoever a demo starts, and whoever these start, whose they are.
_DEMO = "EVAC_DEMO_PID"
_libc = ctypes.CDLL(None)


class Failed(Exception):
    """The demo did not show what it promises; the message says where to look."""


def end_with_parent() -> None:
    """Have this process killed when its parent ends, however it does.

    torchrun's workers are sessions of their own: who kills the agent leaves them to train for ever.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # Of a parent that ended before (torch takes seconds to import) no signal comes any more.
    demo = int(os.environ.get(_DEMO, "0"))
    if demo and demo not in _ancestors():
        os.kill(os.getpid(), signal.SIGKILL)


def _ancestors() -> Iterator[int]:
    pid = os.getppid()
    while pid > 1:
        yield pid
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return


class Processes:
    """Starts programs, keeps their output, and kills all that is left at the end."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._running: list[subprocess.Popen[bytes]] = []

    def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Run *command* with this interpreter; its output goes to ``<name>.log``."""
        log = (self.directory / f"{name}.log").open("ab")
        process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            preexec_fn=end_with_parent,
            env={
                **os.environ,
                "GLOO_SOCKET_IFNAME": "lo",
                _DEMO: str(os.getpid()),
                **(environment or {}),
            },
        )
        log.close()
        self._running.append(process)
        return process

    def kill_all(self) -> None:
        """SIGKILL everything that was started; stopped processes die as well."""
        for process in self._running:
            process.kill()
        for process in self._running:
            process.wait()
        self._running.clear()


def stop(process: subprocess.Popen[bytes]) -> None:
    """Freeze it, as a hung node or a wedged driver would."""
    process.send_signal(signal.SIGSTOP)


def wait_until(
    what: str,
    ready: Callable[[], Any],
    *,
    seconds: float,
    alive: Sequence[subprocess.Popen[bytes]] = (),
    progress: Callable[[], str] | None = None,
) -> Any:
    """Poll until *ready* gives something true, and return it.

    Raises:
        Failed: It took longer than *seconds*, or one of *alive* ended before.
    """
    ends = time.monotonic() + seconds  # noqa: TID251 - a person watches in real time
    while not (found := ready()):
        for process in alive:
            if process.poll() not in (None, 0):
                raise Failed(f"{what}: {process.args!r} exited with {process.returncode}")
        if time.monotonic() > ends:  # noqa: TID251
            raise Failed(f"{what}: not within {seconds:.0f} s")
        if progress:
            transient(progress())
        time.sleep(0.02)
    if progress:
        transient("")
    return found


def transient(line: str) -> None:
    """A progress line that the next one replaces; only on a terminal."""
    if sys.stdout.isatty():
        sys.stdout.write(f"\r\x1b[K{line}")
        sys.stdout.flush()


def bar(done: int, total: int) -> str:
    """``████████······ 25/60``."""
    filled = round(BAR * min(done, total) / total)
    return "█" * filled + "·" * (BAR - filled) + f" {done}/{total}"


@contextmanager
def webhook() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A rendezvous that is told of departures: its URL, and what it was told so far."""
    told: list[dict[str, Any]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            told.append(json.loads(body))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """The demo prints what was told; the server itself is silent."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/departures", told
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
