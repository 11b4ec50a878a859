"""A notice that a user's program tells on its standard output.

The program is started directly, never through a shell, in a process group of its own, which
is killed as a whole when it has ended, takes too long or says too much: nothing outlives its
question. It and the folders above it must be in safe hands (`evacd.trust`, which tells the
limits), for it runs as the daemon's user. It
prints one document and exits with 0; anything else is no answer, explained by the last line
of its standard error. Its environment is `INHERITED` and nothing else, because the daemon's
own may hold the keys of a store.
"""

import asyncio
import os
import random
import shlex
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from subprocess import DEVNULL, Popen
from typing import NoReturn

from evacd.apart import begun_apart
from evacd.clock import Clock
from evacd.facts import Probe, Unknown
from evacd.notice.polled import Polled
from evacd.notice.user.heard import Heard
from evacd.notice.user.pipe import Pipe
from evacd.notice.user.schema import MOST_BYTES, printable
from evacd.notice.when import Sight
from evacd.trust import Doubt, program_of

INHERITED = ("HOME", "KUBECONFIG", "LANG", "LC_ALL", "LOGNAME", "PATH", "TZ", "USER")
_GRACE_SECONDS = 0.5
_ONE_DOCUMENT = f"let it print one document of at most {MOST_BYTES} bytes, and end"


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

    @property
    def patience(self) -> float:
        """See `evacd.notice.patience_of`."""
        return self._polled.patience

    async def probe(self) -> Probe:
        """See `Source`."""
        return await self._polled.probe()

    async def watch(self, tell: Callable[[Probe], None]) -> NoReturn:
        """See `Source`."""
        await self._polled.watch(tell)

    async def _ask(self) -> tuple[Probe, ...]:
        said = await self._run()
        if isinstance(said, Doubt):
            return (Unknown(self._name, f"{self._command[0]}: {said.reason}", said.cure),)
        return self._heard.hear(said, Sight(self._clock.monotonic(), self._clock.utc()))

    async def _run(self) -> bytes | Doubt:
        """What it printed, or why that is no answer."""
        with Pipe() as out, Pipe() as complaint:
            try:
                process = await self._started(out.write_end, complaint.write_end)
            except (OSError, ValueError) as error:
                why = getattr(error, "strerror", None) or str(error)
                return Doubt(why, "give its absolute path, and chmod +x it")
            if isinstance(process, Doubt):
                return process
            out.started()
            complaint.started()
            in_time = await _end_of(process, self._timeout, (out.overflowed, complaint.overflowed))
            said, last = out.head(), printable(complaint.last_line())
            loud = complaint.overflowed.is_set()
        if len(said) > MOST_BYTES:
            return Doubt(f"printed more than {MOST_BYTES} bytes, killed", _ONE_DOCUMENT)
        if loud:
            what = f"wrote more than {MOST_BYTES} bytes to standard error, killed"
            return Doubt(what, "let it explain a failure in one line")
        if not in_time:
            what = f"did not end within {self._timeout:g} s, killed"
            return Doubt(what, f"let it answer within {self._timeout:g} s")
        if process.returncode != 0:
            code = process.returncode
            what = f"exit code {code}" if code > 0 else f"ended by signal {-code}"
            return Doubt(f"{what}: {last}" if last else what, self._by_hand())
        return said

    def _by_hand(self) -> str:
        """How a person sees what the daemon saw."""
        command = printable(shlex.join(self._command), 120)
        return f"run it by hand as evacd's user, with evacd's few variables: env -i {command}"

    async def _started(self, out: int, complaint: int) -> Popen[bytes] | Doubt:
        # Not asyncio's own way to start one: cancelled while it starts, that kills the program
        # and leaves what the program has started.
        def start() -> Popen[bytes] | Doubt:
            program = program_of(self._command, self._environ)
            if isinstance(program, Doubt):
                return program
            return Popen(
                self._command,
                # What was looked at, and not what a second look at PATH would find.
                executable=program,
                stdin=DEVNULL,
                stdout=out,
                stderr=complaint,
                env=self._environ,
                start_new_session=True,
            )

        starting = begun_apart(start)
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            # A thread cannot be cancelled, so the program comes, and has to go again.
            with suppress(OSError, ValueError):
                process = await starting
                if not isinstance(process, Doubt):
                    await _end_of(process, 0.0)
            raise


async def _end_of(
    process: Popen[bytes], seconds: float, enough: Iterable[asyncio.Event] = ()
) -> bool:
    """Wait for its end, then end all that it started; False where it took too long.

    Args:
        enough: Ends it at once.
    """
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        _kill(process)
        process.wait()
        raise
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as tasks:
            watching = [tasks.create_task(each.wait()) for each in (ended, *enough)]
            await asyncio.wait(watching, return_when=asyncio.FIRST_COMPLETED)
            for each in watching:
                each.cancel()
    except TimeoutError:
        return False
    else:
        return True
    finally:
        # Before it is reaped: until then nobody else can have its group's number.
        _kill(process)
        try:
            # A process may be beyond even SIGKILL, in a system call that does not end.
            with suppress(TimeoutError):
                async with asyncio.timeout(_GRACE_SECONDS):
                    await ended.wait()
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)
            process.poll()


def _kill(process: Popen[bytes]) -> None:
    """The program and all that it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
