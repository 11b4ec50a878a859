"""ExecSource on real programs."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from evacd.facts import Cancelled, Noticed, Quiet, Unknown
from evacd.notice.user import ExecSource
from tests.agent.busy import no_thread_left
from tests.agent.notice.hearing import LIMIT, MovedClock, watching
from tests.agent.notice.user.conftest import document, entry
from tests.open_files import open_files

Make = Callable[..., ExecSource]


@pytest.fixture
def make(clock: MovedClock) -> Make:
    def make(*command: str, timeout: float = 10.0, **environ: str) -> ExecSource:
        return ExecSource(
            command,
            clock,
            period=0.02,
            timeout=timeout,
            environ={**os.environ, **environ},
            jitter=lambda: 0.0,
        )

    return make


def shell(script: str) -> tuple[str, ...]:
    return "/bin/sh", "-c", script


def printing(raw: bytes) -> tuple[str, ...]:
    return "/bin/echo", raw.decode()


@dataclass(frozen=True)
class Alive:
    """A FIFO that a program holds open, and all that it started with it."""

    end: int

    async def begun(self) -> None:
        """Something was written into it."""
        while not self._read():  # noqa: ASYNC110 - one way of waiting for both
            await asyncio.sleep(0.005)

    async def gone(self) -> None:
        """Nobody holds it open for writing."""
        while self._read() != b"":  # noqa: ASYNC110 - never opened is no event
            await asyncio.sleep(0.005)

    def _read(self) -> bytes | None:
        with contextlib.suppress(BlockingIOError):
            return os.read(self.end, 100)
        return None


@contextlib.asynccontextmanager
async def alive_by(path: Path) -> AsyncIterator[Alive]:
    os.mkfifo(path)
    end = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        async with asyncio.timeout(LIMIT):
            yield Alive(end)
    finally:
        os.close(end)


async def test_an_empty_list_is_quiet(make: Make) -> None:
    assert await make(*printing(document())).probe() == Quiet("exec")


async def test_a_notice_is_heard_and_cancelled(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "says"
    path.write_bytes(document(entry()))
    async with watching(make("/bin/cat", str(path))) as hearing:
        await hearing.until(Noticed)
        aside = tmp_path / "new"
        aside.write_bytes(document())
        aside.rename(path)
        await hearing.until(Cancelled)

    noticed = hearing.told[0]
    assert isinstance(noticed, Noticed)
    assert (noticed.notice.source, noticed.notice.id) == ("exec", "block-7")


async def test_it_is_run_where_all_threads_are_busy(make: Make) -> None:
    async with no_thread_left():
        assert await make(*printing(document())).probe() == Quiet("exec")


async def test_there_is_no_shell(make: Make) -> None:
    said = document(entry(detail="$HOME; `id` > x")).decode()

    probe = await make("/bin/echo", said).probe()

    assert isinstance(probe, Noticed)
    assert probe.notice.detail == "$HOME; `id` > x"


async def test_of_the_daemons_environment_it_gets_only_what_is_harmless(make: Make) -> None:
    script = "import os, sys; sys.exit(' '.join(sorted(os.environ)))"
    source = make(sys.executable, "-I", "-c", script, AWS_SECRET_ACCESS_KEY="x", TZ="UTC")

    probe = await source.probe()

    assert isinstance(probe, Unknown)
    assert "TZ" in probe.reason
    assert "AWS" not in probe.reason


FAULTS = [
    pytest.param(("/no/such/program",), "No such file or directory", id="missing"),
    pytest.param(("/etc/passwd",), "Permission denied", id="not executable"),
    pytest.param(("/bin/echo", "a\0b"), "embedded null byte", id="null byte"),
    pytest.param(("/bin/true",), "line 1, column 1: expected JSON", id="silent"),
    pytest.param(("/bin/false",), "/bin/false: exit code 1", id="exit code"),
    pytest.param(
        shell("echo first >&2; echo the queue is away >&2; exit 3"),
        "/bin/sh: exit code 3: the queue is away",
        id="complaint",
    ),
    pytest.param(shell("kill -9 $$"), "/bin/sh: ended by signal 9", id="signal"),
    pytest.param(printing(b"no notices"), "expected JSON", id="text"),
    pytest.param(printing(b'{"notices": ['), "expected JSON", id="cut"),
    pytest.param(printing(b"[]"), "expected an object", id="foreign"),
    pytest.param(printing(document({})), "notices[0].id: expected", id="field"),
    pytest.param(
        shell(f"echo '{document(entry()).decode()}'; exit 1"), "exit code 1", id="notice, exit 1"
    ),
    pytest.param(
        (sys.executable, "-I", "-c", "print('x' * 200_000)"),
        "printed more than 65536 bytes",
        id="too much",
    ),
    pytest.param(
        (sys.executable, "-I", "-c", "print(chr(10) * 100_000)"),
        "printed more than 65536 bytes",
        id="too many lines",
    ),
]


@pytest.mark.parametrize(("command", "reason"), FAULTS)
async def test_a_fault_is_unknown_and_says_what_it_is(
    make: Make, command: tuple[str, ...], reason: str
) -> None:
    probe = await make(*command).probe()

    assert isinstance(probe, Unknown)
    assert reason in probe.reason
    assert probe.cure


@pytest.mark.parametrize(
    ("command", "cure"),
    [
        (("/no/such/program",), "give its absolute path, and chmod +x it"),
        (shell("exit 3"), "run it by hand as evacd's user, "),
        (shell("yes"), "let it print one document "),
    ],
)
async def test_a_cure_says_what_a_person_can_do(
    make: Make, command: tuple[str, ...], cure: str
) -> None:
    probe = await make(*command).probe()

    assert isinstance(probe, Unknown)
    assert probe.cure.startswith(cure)


async def test_a_fault_clears_no_notice(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "says"
    path.write_bytes(document(entry()))
    source = make("/bin/cat", str(path))
    first = await source.probe()
    path.unlink()
    assert isinstance(await source.probe(), Unknown)
    path.write_bytes(document(entry()))

    assert await source.probe() == first


async def test_a_program_that_takes_too_long_is_killed_with_all_that_it_started(
    make: Make, tmp_path: Path
) -> None:
    async with alive_by(tmp_path / "alive") as alive:
        script = f"exec 3>{tmp_path}/alive; echo x >&3; (trap '' TERM; sleep 60) & sleep 60"
        probe = await make(*shell(script), timeout=1.0).probe()
        await alive.gone()

    assert probe == Unknown(
        "exec", "/bin/sh: did not end within 1 s, killed", "let it answer within 1 s"
    )


async def test_a_child_that_outlives_its_program_holds_nothing_up_and_ends(
    make: Make, tmp_path: Path
) -> None:
    async with alive_by(tmp_path / "alive") as alive:
        said = document(entry()).decode()
        script = f"exec 3>{tmp_path}/alive; echo x >&3; sleep 60 & echo '{said}'"
        probe = await make(*shell(script)).probe()
        await alive.gone()

    assert isinstance(probe, Noticed)


@pytest.mark.parametrize("turns", [1, 2, 3, 5, 8, None])
async def test_a_source_that_is_stopped_leaves_no_program_behind(
    make: Make, tmp_path: Path, turns: int | None
) -> None:
    async with alive_by(tmp_path / "alive") as alive, asyncio.TaskGroup() as tasks:
        script = f"exec 3>{tmp_path}/alive; echo x >&3; (sleep 60) & sleep 60"
        probing = tasks.create_task(make(*shell(script), timeout=60.0).probe())
        if turns is None:
            await alive.begun()
        else:  # while it is being started
            for _ in range(turns):
                await asyncio.sleep(0)
        probing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await probing
        await alive.gone()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("yes", "printed more than 65536 bytes, killed"),
        ("yes >&2", "wrote more than 65536 bytes to standard error, killed"),
        ("yes & sleep 60", "printed more than 65536 bytes, killed"),
    ],
)
async def test_a_program_that_floods_is_killed_at_once_with_all_that_it_started(
    make: Make, tmp_path: Path, script: str, reason: str
) -> None:
    async with alive_by(tmp_path / "alive") as alive:
        # Without being killed it would go on beyond the limit of this test.
        source = make(*shell(f"exec 3>{tmp_path}/alive; echo x >&3; {script}"), timeout=3600.0)
        probe = await source.probe()
        await alive.gone()

    assert isinstance(probe, Unknown)
    assert probe.reason == f"/bin/sh: {reason}"
    assert probe.cure


@pytest.mark.parametrize("wrong", ["program", "folder", "script"])
async def test_what_anybody_may_change_is_not_run(make: Make, tmp_path: Path, wrong: str) -> None:
    folder, ran = tmp_path / "folder", tmp_path / "ran"
    folder.mkdir()
    program = folder / "says"
    program.write_text(f"#!/bin/sh\ntouch {ran}\necho '{document().decode()}'\n")
    program.chmod(0o755)
    command = ("/bin/sh", str(program)) if wrong == "script" else (str(program),)
    source = make(*command)
    assert await source.probe() == Quiet("exec")
    ran.unlink()
    (folder if wrong == "folder" else program).chmod(0o777)

    probe = await source.probe()

    assert isinstance(probe, Unknown)
    assert "is world-writable: anybody may change it" in probe.reason
    assert probe.cure.startswith("chmod o-w ")
    assert not ran.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
async def test_a_strangers_program_is_not_run_by_root(make: Make, tmp_path: Path) -> None:
    program = tmp_path / "says"
    program.write_text(f"#!/bin/sh\necho '{document(entry()).decode()}'\n")
    program.chmod(0o755)
    os.chown(program, 12345, -1)

    probe = await make(str(program)).probe()

    assert isinstance(probe, Unknown)
    assert f"{program} belongs to user 12345, not to root" in probe.reason


async def test_no_descriptor_is_left_open(make: Make) -> None:
    source, missing = make(*printing(document())), make("/no/such/program")
    await source.probe()
    before = open_files()
    for _ in range(5):
        await source.probe()
        await missing.probe()

    assert open_files() <= before


@pytest.mark.parametrize(
    ("command", "timeout"), [((), 1.0), (("/bin/true",), 0.0), (("/bin/true",), float("nan"))]
)
def test_what_cannot_be_run_is_refused(
    clock: MovedClock, command: tuple[str, ...], timeout: float
) -> None:
    with pytest.raises(ValueError, match=r"expected more than 0|is empty"):
        ExecSource(command, clock, timeout=timeout)
