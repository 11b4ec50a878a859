"""The command cordon, with real small programs."""

import asyncio
import gc
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from evacd.cordon import Cordon
from evacd.cordon.command import INHERITED, CommandCordon
from evacd.facts import Confidence, Order
from tests.agent.busy import no_thread_left
from tests.open_files import open_files

ORDER = Order("ab12-1", 1030.0, Confidence.CERTAIN, "gcp", "preempted", given=1000.0)
# Long enough that no program here meets it on a busy machine; each test that wants the limit
# to pass brings a short one.
PLENTY = 60.0


def python(source: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", source, *arguments]


def cordon(
    command: list[str], undo: list[str] | None = None, *, timeout_seconds: float = PLENTY
) -> CommandCordon:
    return CommandCordon(command, undo or [], timeout_seconds=timeout_seconds, node="gpu-7")


KEEPS_WHAT_IT_IS_TOLD = "import sys; open(sys.argv[1], 'w').write(sys.stdin.read())"


async def test_it_is_told_the_order_as_json(tmp_path: Path) -> None:
    told = tmp_path / "told"
    node: Cordon = cordon(python(KEEPS_WHAT_IT_IS_TOLD, str(told)))

    assert await node.close(ORDER, seconds_left=29.8) is None
    assert json.loads(told.read_text()) == {
        "action": "close",
        "node": "gpu-7",
        "reason": "gcp: preempted",
        "order": {
            "id": "ab12-1",
            "deadline_seconds_left": 29.8,
            "confidence": "certain",
            "source": "gcp",
            "kind": "preempted",
        },
    }


async def test_it_is_run_where_all_threads_are_busy() -> None:
    async with no_thread_left():
        assert await cordon(python("pass")).close(ORDER, seconds_left=29.8) is None


async def test_the_counterpart_is_told_to_reopen_and_why(tmp_path: Path) -> None:
    told = tmp_path / "told"
    node = cordon(python("raise SystemExit(1)"), python(KEEPS_WHAT_IT_IS_TOLD, str(told)))

    assert await node.reopen(ORDER, reason="cancelled by gcp") is None
    document = json.loads(told.read_text())
    assert (document["action"], document["reason"]) == ("reopen", "cancelled by gcp")
    assert document["order"]["id"] == "ab12-1"
    assert "deadline_seconds_left" not in document["order"]


async def test_without_a_counterpart_reopen_does_nothing(tmp_path: Path) -> None:
    told = tmp_path / "told"

    assert await cordon(python(KEEPS_WHAT_IT_IS_TOLD, str(told))).reopen(ORDER, reason="x") is None
    assert not told.exists()


@pytest.mark.parametrize("wrong", ["program", "folder"])
async def test_what_anybody_may_change_is_not_run(tmp_path: Path, wrong: str) -> None:
    folder, ran = tmp_path / "folder", tmp_path / "ran"
    folder.mkdir()
    program = folder / "close"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    changed = folder if wrong == "folder" else program
    changed.chmod(0o777)
    node = cordon([str(program)], [str(program)])

    for why in (
        await node.close(ORDER, seconds_left=1.0),
        await node.reopen(ORDER, reason="cancelled"),
    ):
        assert why == (
            f"{program}: not run: {changed} is world-writable: anybody may change it; "
            f"chmod o-w {changed}"
        )
    assert not ran.exists()


async def test_a_failure_is_told_by_its_code_and_last_words() -> None:
    node = cordon(python("import sys; sys.exit('trace\\nno such \\x1bnode\\n')"))

    wrong = await node.close(ORDER, seconds_left=1.0)

    assert wrong == f"{sys.executable}: exit code 1: no such ?node"


async def test_a_death_by_signal_is_told_by_its_name() -> None:
    node = cordon(python("import os; os.kill(os.getpid(), 9)"))

    assert await node.close(ORDER, seconds_left=1.0) == f"{sys.executable}: ended by SIGKILL"


async def test_a_missing_program_is_an_answer() -> None:
    wrong = await cordon(["/no/such/program"]).close(ORDER, seconds_left=1.0)

    assert wrong == "/no/such/program: No such file or directory"


async def test_a_file_that_is_no_program_is_an_answer(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("not a program")
    assert (
        await cordon([str(plain)]).close(ORDER, seconds_left=1.0) == f"{plain}: Permission denied"
    )

    plain.chmod(0o755)
    assert (
        await cordon([str(plain)]).close(ORDER, seconds_left=1.0) == f"{plain}: Exec format error"
    )


async def test_a_name_that_no_system_takes_is_an_answer() -> None:
    assert await cordon(["true", "a\0b"]).close(ORDER, seconds_left=1.0) is not None


IGNORES_SIGTERM_AND_HAS_A_CHILD = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
if child:
    open(sys.argv[1], "w").write(f"{os.getpid()} {child}")
time.sleep(600)
"""


IGNORES_SIGTERM_AND_SAYS_SO = """
import os, signal, sys, time
def say(*_):
    with open(sys.argv[1], "w") as pids:
        pids.write(str(os.getpid()))
signal.signal(signal.SIGTERM, say)
say()
while True:
    time.sleep(600)
"""


@pytest.fixture
def pids(tmp_path: Path) -> Path:
    """A pipe on which a program says who it is; who reads it waits for that."""
    os.mkfifo(tmp_path / "pids")
    return tmp_path / "pids"


async def test_a_slow_one_is_killed_with_its_children(pids: Path) -> None:
    node = cordon(python(IGNORES_SIGTERM_AND_HAS_A_CHILD, str(pids)), timeout_seconds=3.0)
    async with asyncio.TaskGroup() as tasks:
        said = tasks.create_task(asyncio.to_thread(pids.read_text))
        closing = tasks.create_task(node.close(ORDER, seconds_left=30.0))

    assert closing.result() == f"{sys.executable}: did not end within 3 s, killed"
    await all_end(said.result())


async def test_when_the_daemon_stops_nothing_of_it_stays(pids: Path) -> None:
    node = cordon(python(IGNORES_SIGTERM_AND_HAS_A_CHILD, str(pids)))
    async with asyncio.TaskGroup() as tasks:
        closing = tasks.create_task(node.close(ORDER, seconds_left=30.0))
        said = await asyncio.to_thread(pids.read_text)
        closing.cancel()

    await all_end(said)


@pytest.mark.parametrize("cancels", [1, 2])
async def test_a_cancelled_call_leaves_no_child_and_no_open_transport(
    pids: Path, cancels: int
) -> None:
    node = cordon(python(IGNORES_SIGTERM_AND_HAS_A_CHILD, str(pids)))
    async with asyncio.TaskGroup() as tasks:
        closing = tasks.create_task(node.close(ORDER, seconds_left=30.0))
        pid = int((await asyncio.to_thread(pids.read_text)).split()[0])
        for _ in range(cancels):
            closing.cancel()
            await asyncio.sleep(0)

    assert closing.cancelled()
    assert reaped(pid)
    # An unclosed transport says so when it is collected, and warnings are errors here.
    gc.collect()


async def test_one_that_is_cancelled_while_it_is_being_ended_is_reaped(pids: Path) -> None:
    node = cordon(python(IGNORES_SIGTERM_AND_SAYS_SO, str(pids)), timeout_seconds=3.0)
    async with asyncio.TaskGroup() as tasks:
        closing = tasks.create_task(node.close(ORDER, seconds_left=30.0))
        pid = int((await asyncio.to_thread(pids.read_text)).split()[0])
        # It writes again when SIGTERM comes.
        await asyncio.to_thread(pids.read_text)
        closing.cancel()

    assert closing.cancelled()
    assert reaped(pid)
    gc.collect()


def reaped(pid: int) -> bool:
    """No child of ours has this number, not even a zombie."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return True
    return False


async def all_end(pids: str) -> None:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(30):
        for pid in map(int, pids.split()):
            try:
                process = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            ended = asyncio.Event()
            loop.add_reader(process, ended.set)
            await ended.wait()
            loop.remove_reader(process)
            os.close(process)


FLOODS = """
import sys
for _ in range(200):
    sys.stdout.write("o" * 100_000)
    sys.stderr.write("e" * 100_000)
sys.stderr.write("\\n" + "last words " * 1000)
sys.exit(3)
"""


async def test_a_flood_neither_hangs_it_nor_fills_the_report() -> None:
    wrong = await cordon(python(FLOODS)).close(ORDER, seconds_left=1.0)

    assert wrong is not None
    assert wrong.startswith(f"{sys.executable}: exit code 3: ")
    assert "words" in wrong
    assert len(wrong) < 300 + len(sys.executable)


LEAVES_A_CHILD_BEHIND = """
import os, sys, time
child = os.fork()
if child:
    open(sys.argv[1], "w").write(str(child))
    sys.exit(0)
time.sleep(600)
"""


async def test_a_child_that_outlives_a_success_is_not_waited_for(tmp_path: Path) -> None:
    pid = tmp_path / "pid"

    assert (
        await cordon(python(LEAVES_A_CHILD_BEHIND, str(pid))).close(ORDER, seconds_left=9) is None
    )
    os.kill(int(pid.read_text()), signal.SIGKILL)


async def test_one_that_reads_nothing_is_no_failure() -> None:
    assert await cordon(python("import os; os.close(0)")).close(ORDER, seconds_left=1.0) is None


async def test_a_reason_of_any_length_is_told(tmp_path: Path) -> None:
    told = tmp_path / "told"
    node = cordon(["true"], python(KEEPS_WHAT_IT_IS_TOLD, str(told)))

    assert await node.reopen(ORDER, reason="\N{SNOWMAN}" * 1_000_000) is None
    assert json.loads(told.read_text())["reason"].startswith("\N{SNOWMAN}")


async def test_the_daemons_secrets_do_not_reach_it(tmp_path: Path) -> None:
    told = tmp_path / "told"
    command = python(
        "import json, os, sys; json.dump(dict(os.environ), open(sys.argv[1], 'w'))", str(told)
    )
    environ = {"PATH": "/usr/bin:/bin", "AWS_SECRET_ACCESS_KEY": "s3cret", "KUBECONFIG": "/k"}
    node = CommandCordon(command, timeout_seconds=PLENTY, node="gpu-7", environ=environ)

    assert await node.close(ORDER, seconds_left=1.0) is None
    seen = json.loads(told.read_text())
    assert seen["KUBECONFIG"] == "/k"
    # LC_CTYPE is what Python itself sets in a bare environment.
    assert set(seen) - {"LC_CTYPE"} <= set(INHERITED)


async def test_no_file_descriptor_is_left_behind() -> None:
    node = cordon(["true"])
    await node.close(ORDER, seconds_left=1.0)
    before = open_files()
    for command in (["true"], ["false"], ["/no/such/program"]):
        await cordon(command).close(ORDER, seconds_left=1.0)

    assert open_files() <= before


def test_a_cordon_without_a_command_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        CommandCordon([], timeout_seconds=1.0, node="gpu-7")
    with pytest.raises(ValueError, match="timeout_seconds"):
        CommandCordon(["true"], timeout_seconds=0.0, node="gpu-7")
