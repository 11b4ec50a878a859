"""Workloads that are stopped and killed for real: what they staged is what counts."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from evac.generation import Generation
from evac.wire import Accepted, OrderGiven, Register, Registered
from evacd.facts import Confidence, Order
from evacd.workloads import Died, Joined, TurnResult
from tests.agent.workloads.peers import MIB, Peer, Process, Running, serving, settings


def steps(running: Running) -> list[tuple[int, int]]:
    (unit,) = running.board.units()
    return [(one.generation.incarnation, one.generation.step) for one in unit.candidates]


async def died(running: Running, count: int = 1) -> None:
    await running.until(lambda: len(running.heard(Died)) >= count)


async def test_a_killed_workload_loses_nothing_that_was_staged(tmp_path: Path) -> None:
    async with serving(settings(tmp_path)) as running:
        with Process(running.settings.workload_path) as worker:
            await worker.aboard()
            await worker.stage(7, 300_000)
            worker.tell("die")
            await died(running)

            (unit,) = running.board.units()
            assert running.heard(Died) == [Died(unit.name, 0, worker.pid)]
            assert steps(running) == [(0, 7)]
            with running.board.hold(unit.name, Generation(0, 7)) as (part,):
                assert bytes(part.data) == b"\x07" * 300_000
                assert len(await part.checksums()) == 1
            # Free slots went with it, the complete one is kept.
            assert running.used() == MIB


async def test_what_was_being_written_is_torn_and_what_was_complete_is_not(tmp_path: Path) -> None:
    async with serving(settings(tmp_path)) as running:
        with Process(running.settings.workload_path) as worker:
            await worker.aboard()
            await worker.stage(7)
            assert (await worker.do("scribble")).startswith("Granted")
            assert [s["state"] for s in running.slots()] == ["complete", "writing", "free"]
            worker.tell("die")
            await died(running)

            assert steps(running) == [(0, 7)]
            assert [s["state"] for s in running.slots()] == ["complete"]


async def test_a_stopped_workload_stalls_nobody(tmp_path: Path) -> None:
    async with serving(settings(tmp_path)) as running:
        with Process(running.settings.workload_path) as stopped:
            await stopped.aboard()
            await stopped.stage(7)
            os.kill(stopped.pid, signal.SIGSTOP)
            with Peer(running.settings.workload_path) as other:
                await other.register(job="other")
                for number in range(2000):
                    now = asyncio.get_running_loop().time()
                    running.board.give(
                        Order(f"o-{number}", now + 9, Confidence.CERTAIN, "gcp", "x", now)
                    )
                    told = await other.expect(OrderGiven)
                    assert told.order == f"o-{number}"
                await other.reserve()
                assert await other.stage(1) == Accepted()
            # It hears no more, but it is alive and so is what it staged.
            assert running.heard(Died) == []
            (unit,) = [u for u in running.board.units() if u.name.endswith("/train")]
            with running.board.hold(unit.name, Generation(0, 7)) as (part,):
                assert bytes(part.data) == b"\x07" * 5000


async def test_a_forked_child_with_the_socket_does_not_keep_a_workload_alive(
    tmp_path: Path,
) -> None:
    async with serving(settings(tmp_path)) as running:
        with Process(running.settings.workload_path) as worker:
            await worker.aboard()
            await worker.stage(7)
            child = int(await worker.do("fork"))
            try:
                worker.tell("die")
                await died(running)
                os.kill(child, 0)
                assert steps(running) == [(0, 7)]
            finally:
                os.kill(child, signal.SIGKILL)


async def test_a_closed_connection_is_no_death(tmp_path: Path) -> None:
    async with serving(settings(tmp_path)) as running:
        with Process(running.settings.workload_path) as worker:
            await worker.aboard()
            await worker.stage(7)
            assert await worker.do("scribble")
            assert await worker.do("close") == "closed"
            # The thief is refused: whoever has closed its socket still lives.
            with Process(running.settings.workload_path) as thief:
                await thief.line()
                answer = await thief.do("register", "train", 0, 1, "staged")
                assert f"already registered by pid {worker.pid}" in answer
            assert [s["state"] for s in running.slots()] == ["complete", "writing", "free"]
            worker.tell("die")
            await died(running)
            assert [s["state"] for s in running.slots()] == ["complete"]


async def test_one_rank_ahead_of_the_other_leaves_the_generation_that_both_have(
    tmp_path: Path,
) -> None:
    async with serving(settings(tmp_path)) as running:
        path = running.settings.workload_path
        with Process(path) as one, Process(path) as other:
            await one.aboard(rank=0, world=2)
            await other.aboard(rank=1, world=2)
            for step in (10, 20):
                await one.stage(step)
            assert running.board.units()[0].empty_because == "rank 1 has no complete generation"
            await other.stage(10)
            # Far ahead: its slots go round, but not the one that is the pair's.
            for step in (30, 40, 50):
                await one.stage(step)
            one.tell("die")
            other.tell("die")
            await died(running, 2)

            assert steps(running) == [(0, 10)]
            unit = running.board.units()[0].name
            with running.board.hold(unit, Generation(0, 10)) as parts:
                assert [part.rank for part in parts] == [0, 1]
                assert {bytes(part.data) for part in parts} == {b"\x0a" * 5000}


async def test_a_restarted_rank_takes_over_and_supersedes_in_time(tmp_path: Path) -> None:
    async with serving(settings(tmp_path)) as running:
        path = running.settings.workload_path
        with Process(path) as old:
            await old.aboard()
            await old.stage(7)
            old.tell("die")
            await died(running)
        with Process(path) as new:
            await new.aboard(incarnation=1)
            assert steps(running) == [(0, 7)]
            await new.stage(8, incarnation=1)
            assert steps(running) == [(1, 8)]
            assert len(running.snapshot()["workloads"]) == 1
            assert len(running.heard(Joined)) == 2


async def test_orphans_are_kept_for_their_time_and_not_longer(tmp_path: Path) -> None:
    async with serving(settings(tmp_path, orphan_seconds=0.3)) as running:
        with Process(running.settings.workload_path) as worker:
            await worker.aboard()
            await worker.stage(7)
            name = running.board.units()[0].name
            worker.tell("die")
            await died(running)
            with running.board.hold(name, Generation(0, 7)) as (part,):
                await running.until(lambda: running.board.units() == ())
                assert bytes(part.data) == b"\x07" * 5000
                assert running.used() == MIB
            assert running.used() == 0


async def test_orphans_do_not_expire_under_an_order(tmp_path: Path) -> None:
    chosen = settings(tmp_path, orphan_seconds=0.05, hello_seconds=0.2)
    async with serving(chosen) as running:
        with Process(chosen.workload_path) as worker:
            await worker.aboard()
            await worker.stage(7)
            now = asyncio.get_running_loop().time()
            order = Order("o-1", now + 30, Confidence.CERTAIN, "gcp", "preempted", now)
            running.board.give(order)
            worker.tell("die")
            await died(running)
            with Peer(chosen.workload_path) as silent:
                # Whoever came after the death is dropped later than an orphan would expire.
                await silent.last_words()
            assert steps(running) == [(0, 7)]
            running.board.stand_down(order, "cancelled")
            await running.until(lambda: running.board.units() == ())


async def test_a_rank_is_free_the_moment_its_process_is_dead(tmp_path: Path) -> None:
    async with serving(settings(tmp_path)) as running:
        with Process(running.settings.workload_path) as worker:
            await worker.aboard()
            await worker.stage(7)
            with Peer(running.settings.workload_path) as heir:
                await heir.hello()
                # The loop does not run in between: it finds both at once.
                worker.running.kill()
                worker.running.wait()
                assert isinstance(await heir.ask(Register("train", 0, 1)), Registered)
                assert len(running.heard(Died)) == 1
                assert steps(running) == [(0, 7)]


async def test_a_turn_ends_with_the_death_of_its_workload(tmp_path: Path) -> None:
    async with serving(settings(tmp_path)) as running:
        with Process(running.settings.workload_path) as worker:
            await worker.line()
            await worker.do("register", "train", 0, 1, "callback")
            name = running.board.units()[0].name
            async with asyncio.TaskGroup() as tasks:
                result = tasks.create_task(running.board.turn(name, seconds=600, order="o-1"))
                await asyncio.sleep(0)
                worker.tell("die")
            assert result.result() == TurnResult(False, 0, "rank 0: its process died")
            assert running.board.units() == ()


async def test_nothing_is_left_open_when_workloads_have_come_and_gone(tmp_path: Path) -> None:
    async with serving(settings(tmp_path, orphan_seconds=0.1)) as running:
        path = running.settings.workload_path
        before = -1
        for _ in range(3):
            with Process(path) as worker:
                await worker.aboard()
                await worker.stage(7)
            await running.until(lambda: running.snapshot()["workloads"] == [])
            await running.until(lambda: running.used() == 0)
            if before < 0:
                before = len(os.listdir("/proc/self/fd"))
        await running.until(lambda: len(os.listdir("/proc/self/fd")) <= before)


@pytest.mark.skipif(os.getuid() != 0, reason="only root makes a pid namespace without more")
async def test_a_workload_outside_the_daemons_pid_namespace_takes_part(tmp_path: Path) -> None:
    """The daemon runs in a namespace of its own and sees its workload as pid 0."""
    daemon = await asyncio.create_subprocess_exec(
        "unshare", "--pid", "--fork", "--mount-proc", "--kill-child",
        *_daemon(tmp_path),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert daemon.stdout is not None
    try:
        async with asyncio.timeout(30):
            if (await daemon.stdout.readline()) != b"ready\n":
                pytest.skip("no pid namespace to be had here")
            with Process(tmp_path / "run" / "evacd.sock") as worker:
                await worker.aboard()
                await worker.stage(7)
                with Process(tmp_path / "run" / "evacd.sock") as thief:
                    await thief.line()
                    answer = await thief.do("register", "train", 0, 1, "staged")
                    assert "already registered by pid 0" in answer
                assert await daemon.stdout.readline() == b"Joined 0\n"
                assert await daemon.stdout.readline() == b"StagedOne\n"
                assert await daemon.stdout.readline() == b"Denied 0\n"
                worker.tell("die")
                assert await daemon.stdout.readline() == b"Died 0\n"
    finally:
        daemon.kill()
        await daemon.wait()


def _daemon(folder: Path) -> list[str]:
    import sys

    code = f"""
import asyncio, os, sys
sys.path[:0] = {sys.path!r}
import structlog
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
from pathlib import Path
from tests.agent.workloads.peers import serving, settings
async def main():
    async with serving(settings(Path({str(folder)!r}))) as running:
        print("ready", flush=True)
        said = 0
        while True:
            await asyncio.sleep(0.01)
            for one in running.happenings[said:]:
                print(type(one).__name__, *([one.pid] if hasattr(one, "pid") else []), flush=True)
            said = len(running.happenings)
asyncio.run(main())
"""
    return [sys.executable, "-c", code]
