"""The `command` cordon: any program, told as JSON on its standard input.

For schedulers that evac does not know. The program is started directly, never through a
shell, and reads one document::

    {"action": "close", "node": "gpu-7", "reason": "gcp: preempted",
     "order": {"id": "…", "deadline_seconds_left": 29.8, "confidence": "certain",
               "source": "gcp", "kind": "preempted"}}

``action`` is ``close`` or ``reopen``; on ``reopen`` there is no ``deadline_seconds_left``.
Exit code 0 is success. Its standard output is discarded; the last line that it writes to
standard error explains a failure. Its environment is `INHERITED` and nothing else, because
the daemon's own may hold the keys of a store. It runs as the daemon's user, so it and the
folders above it must be in safe hands: `evacd.trust`.
"""

import asyncio
import json
import os
import signal
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from evacd.apart import apart
from evacd.facts import Order
from evacd.trust import Doubt, program_of

INHERITED = (
    "HOME",
    "KUBECONFIG",
    "KUBERNETES_SERVICE_HOST",
    "KUBERNETES_SERVICE_PORT",
    "LANG",
    "LC_ALL",
    "LOGNAME",
    "PATH",
    "SLURM_CONF",
    "TZ",
    "USER",
)
# From SIGTERM to SIGKILL, and from there to giving up on a process that even that does not end.
_GRACE_SECONDS = 0.5
# The last line of what it complained of; and a reason that always fits in a pipe's buffer.
_MOST_COMPLAINT = 4096
_MOST_TEXT = 200


class CommandCordon:
    """A program that closes the node to new work, and maybe one that opens it again."""

    name = "command"

    def __init__(
        self,
        command: Sequence[str],
        undo: Sequence[str] = (),
        *,
        timeout_seconds: float,
        node: str,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """Say what to run.

        Args:
            command: Program and arguments.
            undo: The same for `reopen`; where it is empty, `reopen` does nothing.
            timeout_seconds: After it the program and its children get SIGTERM, then SIGKILL;
                a call ends within a second of it.
            environ: Where `INHERITED` is taken from.

        Raises:
            ValueError: There is no command, or the time limit is not positive.
        """
        if not command:
            raise ValueError("the cordon's command is empty")
        if not timeout_seconds > 0:
            raise ValueError(f"timeout_seconds is {timeout_seconds}, expected more than 0")
        self._command = tuple(command)
        self._undo = tuple(undo)
        self._timeout_seconds = timeout_seconds
        self._node = node
        self._environ = {key: environ[key] for key in INHERITED if key in environ}

    async def close(self, order: Order, *, seconds_left: float) -> str | None:
        """See `Cordon`."""
        facts = {**_facts(order), "deadline_seconds_left": round(seconds_left, 3)}
        reason = f"{order.source}: {order.kind}"
        return await self._run(self._command, "close", facts, reason)

    async def reopen(self, order: Order, *, reason: str) -> str | None:
        """See `Cordon`."""
        if not self._undo:
            return None
        return await self._run(self._undo, "reopen", _facts(order), reason)

    async def _run(
        self, command: Sequence[str], action: str, order: Mapping[str, Any], reason: str
    ) -> str | None:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                program = await apart(partial(program_of, command, self._environ))
        except TimeoutError:
            return f"{command[0]}: not found out within {self._timeout_seconds:g} s whose it is"
        except (OSError, ValueError) as error:
            return f"{command[0]}: {getattr(error, 'strerror', None) or error}"
        if isinstance(program, Doubt):
            return f"{command[0]}: not run: {program.reason}; {program.cure}"
        document = {"action": action, "node": self._node, "reason": reason[:1024], "order": order}
        told = _pipe_holding(json.dumps(document).encode())
        complaint = _Complaint()
        try:
            try:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    # What was looked at, and not what a second look at PATH would find.
                    executable=program,
                    stdin=told,
                    stdout=DEVNULL,
                    stderr=complaint.write_end,
                    env=self._environ,
                    # Its own session, and so its own process group, which is killed as a whole.
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:
                return f"{command[0]}: {getattr(error, 'strerror', None) or error}"
            finally:
                os.close(told)
                complaint.started()
            return await self._wait(process, complaint, command[0])
        finally:
            complaint.close()

    async def _wait(self, process: Process, complaint: "_Complaint", program: str) -> str | None:
        try:
            try:
                async with asyncio.timeout(self._timeout_seconds):
                    code = await process.wait()
            except TimeoutError:
                await _end(process)
                return f"{program}: did not end within {self._timeout_seconds:g} s, killed"
        except asyncio.CancelledError:
            _signal(process, signal.SIGKILL)
            await _reap(process)
            raise
        if code == 0:
            return None
        what = f"exit code {code}" if code > 0 else f"ended by {_signal_name(-code)}"
        last = complaint.last_line()
        return f"{program}: {what}: {last}" if last else f"{program}: {what}"


class _Complaint:
    """The end of what a program writes to its standard error, however much that is.

    Not an asyncio pipe: those are read to their end, which a child that outlives the program
    may put off for ever.
    """

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._tail = b""
        self._open = True
        asyncio.get_running_loop().add_reader(self._read_end, self._read)

    def started(self) -> None:
        """The program has its copy of the write end, or will never need one."""
        os.close(self.write_end)

    def last_line(self) -> str:
        """What it said last, printable and short."""
        # A pipe's buffer is one read; more would only follow a child that never stops.
        for _ in range(2):
            if self._open:
                self._read()
        lines = self._tail.decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return "".join(c if c.isprintable() else "?" for c in last)[:_MOST_TEXT]

    def close(self) -> None:
        """Forget the pipe; a program that still writes gets SIGPIPE."""
        self._stop()
        os.close(self._read_end)

    def _read(self) -> None:
        try:
            piece = os.read(self._read_end, 65536)
        except BlockingIOError:
            return
        if not piece:
            self._stop()
        self._tail = (self._tail + piece)[-_MOST_COMPLAINT:]

    def _stop(self) -> None:
        if self._open:
            self._open = False
            asyncio.get_running_loop().remove_reader(self._read_end)


def _pipe_holding(data: bytes) -> int:
    """The read end of a pipe with *data* and an end in it; less than a pipe's buffer."""
    read_end, write_end = os.pipe()
    try:
        os.set_blocking(write_end, False)
        os.write(write_end, data)
    finally:
        os.close(write_end)
    return read_end


def _facts(order: Order) -> dict[str, Any]:
    return {
        "id": order.id,
        "confidence": order.confidence.word,
        "source": order.source,
        "kind": order.kind,
    }


async def _end(process: Process) -> None:
    """SIGTERM, then SIGKILL, to the program and all that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        _signal(process, number)
        # It may go at SIGTERM and leave children that do not: the group gets both.
        with suppress(TimeoutError):
            async with asyncio.timeout(_GRACE_SECONDS):
                await process.wait()


async def _reap(process: Process) -> None:
    """Wait for the end of a killed process, whoever cancels us meanwhile.

    Left to itself it would be a zombie until the daemon ends, and its transport is never closed.
    """
    loop = asyncio.get_running_loop()
    ends = loop.time() + _GRACE_SECONDS
    reaping = asyncio.ensure_future(process.wait())
    # A process that waits in the kernel, for a dead NFS server say, is not ended by SIGKILL.
    while not reaping.done() and (left := ends - loop.time()) > 0:
        with suppress(asyncio.CancelledError):
            await asyncio.wait([reaping], timeout=left)
    reaping.cancel()


def _signal(process: Process, number: signal.Signals) -> None:
    # A group's number is not given to another process while anyone is in the group.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
