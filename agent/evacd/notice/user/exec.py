"""A notice that a user's program tells on its standard output.

The program is started directly, never through a shell, in a process group of its own, which
is killed as a whole when it has ended or takes too long: nothing outlives its question. It
prints one document and exits with 0; anything else is no answer, explained by the last line
of its standard error. Its environment is `INHERITED` and nothing else, because the daemon's
own may hold the keys of a store.
"""

import asyncio
import os
import random
import signal
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

from evacd.clock import Clock
from evacd.facts import Probe, Unknown
from evacd.notice.polled import Polled
from evacd.notice.user.heard import Heard
from evacd.notice.user.pipe import Pipe
from evacd.notice.user.schema import MOST_BYTES, printable
from evacd.notice.when import Sight

INHERITED = ("HOME", "KUBECONFIG", "LANG", "LC_ALL", "LOGNAME", "PATH", "TZ", "USER")
_GRACE_SECONDS = 0.5


class ExecSource:
    """Runs one program for ever, one at a time."""

    def __init__(
        self,
        command: Sequence[str],
        clock: Clock,
        *,
        period: float = 5.0,
        timeout: float = 5.0,
        name: str = "exec",
        environ: Mapping[str, str] = os.environ,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Make it ready; it runs nothing yet.

        Args:
            command: Program and arguments.
            period: Seconds between two starts.
            timeout: Seconds that one run may take.
            name: The source's; notices carry it.
            environ: Where `INHERITED` is taken from.
            jitter: Uniform in [0, 1), for the back-off.

        Raises:
            ValueError: There is no command, or a time is not positive.
        """
        if not command:
            raise ValueError("the command is empty")
        if not timeout > 0:
            raise ValueError(f"the timeout is {timeout} s, expected more than 0")
        self._command = tuple(command)
        self._clock = clock
        self._timeout = timeout
        self._name = name
        self._environ = {key: environ[key] for key in INHERITED if key in environ}
        self._heard = Heard(name)
        self._polled = Polled(self._ask, period=period, clock=clock, jitter=jitter)

    @property
    def name(self) -> str:
        """See `Source`."""
        return self._name

    async def probe(self) -> Probe:
        """See `Source`."""
        return await self._polled.probe()

    async def watch(self, tell: Callable[[Probe], None]) -> NoReturn:
        """See `Source`."""
        await self._polled.watch(tell)

    async def _ask(self) -> tuple[Probe, ...]:
        said = await self._run()
        if isinstance(said, str):
            return (Unknown(self._name, f"{self._command[0]}: {said}", "run it by hand"),)
        return self._heard.hear(said, Sight(self._clock.monotonic(), self._clock.utc()))

    async def _run(self) -> bytes | str:
        """What it printed, or why that is no answer."""
        with Pipe() as out, Pipe() as complaint:
            try:
                process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=DEVNULL,
                    stdout=out.write_end,
                    stderr=complaint.write_end,
                    env=self._environ,
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:
                return getattr(error, "strerror", None) or str(error)
            out.started()
            complaint.started()
            try:
                async with asyncio.timeout(self._timeout):
                    code = await process.wait()
            except TimeoutError:
                _kill(process)
                # A process may be beyond even that, in a system call that does not end.
                with suppress(TimeoutError):
                    async with asyncio.timeout(_GRACE_SECONDS):
                        await process.wait()
                return f"did not end within {self._timeout:g} s, killed"
            except asyncio.CancelledError:
                _kill(process)
                raise
            _kill(process)
            said, last = out.head(), printable(complaint.last_line())
        if code != 0:
            what = f"exit code {code}" if code > 0 else f"ended by signal {-code}"
            return f"{what}: {last}" if last else what
        if len(said) > MOST_BYTES:
            return f"printed more than {MOST_BYTES} bytes"
        return said


def _kill(process: Process) -> None:
    """The program and all that it started."""
    # A group's number is not given to another process while anyone is in the group.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
