"""Workloads that say something and are dead before anybody has heard it: it counts."""

import asyncio
from pathlib import Path

import pytest

from evac.generation import Generation
from evac.wire import Register, Registered, Staged, encode
from evacd.facts import Confidence, Order
from evacd.workloads import Died, Joined, Left, StagedOne, TurnResult
from tests.agent.workloads.peers import MIB, Peer, Process, Running, serving, settings, write

# Takes a tenth of a second to read, and more.
MANY = 30_000


async def kept(running: Running, launch: int, step: int, nbytes: int = 5000) -> None:
    """That it is a candidate, and byte for byte what was written."""
    (unit,) = running.board.units()
    assert Generation(launch, step) in [one.generation for one in unit.candidates]
    with running.board.hold(unit.name, Generation(launch, step)) as (part,):
        assert bytes(part.data) == bytes([step % 251]) * nbytes


async def died(running: Running, count: int = 1) -> None:
    await running.until(lambda: len(running.heard(Died)) >= count)


def order() -> Order:
    now = asyncio.get_running_loop().time()
    return Order("o-1", now + 60, Confidence.CERTAIN, "gcp", "preempted", now)


@pytest.mark.parametrize("items", [0, MANY])
async def test_who_is_killed_right_after_staging_has_staged(tmp_path: Path, items: int) -> None:
    async with serving(settings(tmp_path)) as running:
        path = running.settings.workload_path
        with Process(path) as mother:
            await mother.line()
            for life in range(50):
                assert await mother.do("child", path, life, 5000 + life, life, items) == "-9"
                await died(running, life + 1)
                await kept(running, life, life, 5000 + life)


async def test_a_restart_that_is_faster_than_the_burial_takes_the_rank_once_and_after_it(
    tmp_path: Path,
) -> None:
    lives = 20
    async with serving(settings(tmp_path)) as running:
        path = running.settings.workload_path
        with Process(path) as mother:
            await mother.line()
            for life in range(lives):
                assert await mother.do("child", path, life, 5000, life, MANY) == "-9"
            await died(running, lives)
            assert [type(one) for one in running.happenings] == [Joined, StagedOne, Died] * lives
            staged = [one.generation for one in running.happenings if isinstance(one, StagedOne)]
            assert staged == [Generation(life, life) for life in range(lives)]
            await kept(running, lives - 1, lives - 1)


@pytest.mark.parametrize("end", ["die-staging", "end-staging"])
@pytest.mark.parametrize("items", [0, MANY])
async def test_a_death_that_is_seen_together_with_its_last_words_comes_after_them(
    tmp_path: Path, items: int, end: str
) -> None:
    async with serving(settings(tmp_path)) as running:
        with Process(running.settings.workload_path) as worker:
            await worker.aboard()
            await worker.do("stage", 1, 5000, 0)
            await worker.do("reserve", 4 * MIB, 0)
            await worker.do("write", 2, 5000, 0, items)
            # The loop does not run in between: it finds both at once.
            worker.tell(end)
            worker.running.wait()
            await died(running)
            assert [type(one) for one in running.happenings[-2:]] == [StagedOne, Died]
            await kept(running, 0, 2)
            # What was free went with it.
            assert {slot["state"] for slot in running.slots()} == {"complete"}


async def test_words_that_wait_behind_a_slot_being_read_are_heard_too(tmp_path: Path) -> None:
    async with serving(settings(tmp_path)) as running:
        with Process(running.settings.workload_path) as worker:
            await worker.aboard()
            await worker.do("reserve", 4 * MIB, 0)
            await worker.do("write", 1, 5000, 0, MANY)
            worker.tell("die-staging-twice")
            await died(running)
            await kept(running, 0, 1)
            await kept(running, 0, 2)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_order_that_the_dead_did_not_read_costs_none_of_its_words(
    tmp_path: Path, when: str
) -> None:
    """Before, it resets the connection for whoever reads it; after, it cannot be sent."""
    async with serving(settings(tmp_path)) as running:
        with Process(running.settings.workload_path) as worker:
            await worker.aboard()
            await worker.do("write", 1, 5000, 0, 0)
            if when == "before":
                assert running.board.give(order()) == 1
            worker.tell("die-staging")
            worker.running.wait()
            if when == "after":
                assert running.board.give(order()) == 0
            await died(running)
            await kept(running, 0, 1)


async def test_whoever_was_dropped_is_not_heard_any_more(tmp_path: Path) -> None:
    async with serving(settings(tmp_path)) as running:
        with Process(running.settings.workload_path) as worker:
            await worker.aboard()
            await worker.stage(1)
            await worker.do("write", 2, 5000, 0, 0)
            worker.tell("die-babbling")
            await died(running)
            assert len(running.heard(StagedOne)) == 1
            await kept(running, 0, 1)
            # What it was writing is torn, and freed.
            assert [slot["state"] for slot in running.slots()] == ["complete"]
            assert running.used() == MIB


async def test_a_child_that_talks_on_for_the_dead_is_not_heard_for_ever(tmp_path: Path) -> None:
    async with serving(settings(tmp_path, last_words_seconds=0.5)) as running:
        with Process(running.settings.workload_path) as worker:
            await worker.aboard()
            await worker.do("write", 1, 5000, 0, 0)
            worker.tell("die-haunting")
            worker.running.wait()
            with Peer(running.settings.workload_path) as heir:
                await heir.hello()
                assert isinstance(await heir.ask(Register("train", 0, 1)), Registered)
                assert len(running.heard(Died)) == 1
                await kept(running, 0, 1)


async def test_a_last_word_of_leave_is_no_death_and_leaves_nothing(tmp_path: Path) -> None:
    async with serving(settings(tmp_path)) as running:
        with Process(running.settings.workload_path) as worker:
            await worker.aboard()
            await worker.do("reserve", 4 * MIB, 0)
            await worker.do("write", 1, 5000, 0, MANY)
            worker.tell("die-leaving")
            worker.running.wait()
            await running.until(lambda: running.heard(Left))
            assert running.snapshot()["workloads"] == []
            with Peer(running.settings.workload_path) as heir:
                await heir.register()
            assert running.heard(Died) == []
            assert running.used() == 0


async def test_who_is_done_and_dies_is_done(tmp_path: Path) -> None:
    async with serving(settings(tmp_path)) as running:
        with Process(running.settings.workload_path) as worker:
            await worker.line()
            await worker.do("register", "train", 0, 1, "callback")
            name = running.board.units()[0].name
            async with asyncio.TaskGroup() as tasks:
                result = tasks.create_task(running.board.turn(name, seconds=600, order="o-1"))
                await asyncio.sleep(0)
                worker.tell("die-done", 1)
                worker.running.wait()
            assert result.result() == TurnResult(True, 7, "")


async def test_a_new_connection_of_the_same_process_keeps_what_the_old_one_staged(
    tmp_path: Path,
) -> None:
    async with serving(settings(tmp_path)) as running:
        with Peer(running.settings.workload_path) as old:
            await old.register()
            await old.reserve()
            slot = await old.acquire()
            write(old.slots[slot], 1, b"\x01" * 5000)
            with Peer(running.settings.workload_path) as new:
                await new.hello()
                await old.send(encode(Staged(slot, 1)))
                assert isinstance(await new.ask(Register("train", 0, 1)), Registered)
                await kept(running, 0, 1)
