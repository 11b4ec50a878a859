"""With memory for one slot, what was staged goes to a disk, and the slot is free again."""

import os
import resource
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from evac.generation import Generation
from evac.wire import Accepted, Acquire, Granted, Refuse
from evacd.workloads.memory import Stopped, build
from evacd.workloads.spill import spill
from tests.agent.workloads.peers import MIB, Peer, Running, serving, settings
from tests.open_files import open_files


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    folder = tmp_path / "nvme"
    folder.mkdir()
    return folder


def _one_slot(folder: Path, disk: Path | None) -> Any:
    return settings(folder, memory_bytes=3 * MIB // 2, spill=disk)


def _states(running: Running) -> list[tuple[str, int | None, bool]]:
    return [(one["state"], one["step"], one["spilled"]) for one in running.slots()]


def _spilled(running: Running, step: int) -> bool:
    return ("complete", step, True) in _states(running)


async def test_the_only_slot_is_free_again_and_what_it_held_can_be_flushed(
    tmp_path: Path, disk: Path
) -> None:
    body = bytes(range(256)) * 512
    async with serving(_one_slot(tmp_path, disk)) as running:
        with Peer(running.settings.workload_path) as peer:
            unit = (await peer.register()).prefix
            await peer.reserve(MIB)
            assert await peer.stage(1, body) == Accepted()
            await running.until(lambda: ("complete", 1, True) in _states(running))
            assert ("free", None, False) in _states(running)
            # It is being written again when the notice comes.
            assert isinstance(await peer.ask(Acquire()), Granted)
            peer.slots[0][4096 : 4096 + len(body)] = b"\xff" * len(body)
            with running.board.hold(unit, Generation(0, 1)) as (part,):
                assert bytes(part.data) == body
                assert part.metadata == b"meta"
                assert len(await part.checksums()) == 1
            # What lies on the disk takes nothing of the budget.
            assert running.used() == MIB


async def test_a_newer_generation_takes_the_copy_of_the_older_ones_place(
    tmp_path: Path, disk: Path
) -> None:
    async with serving(_one_slot(tmp_path, disk)) as running:
        with Peer(running.settings.workload_path) as peer:
            unit = (await peer.register()).prefix
            await peer.reserve(MIB)
            for step in range(1, 6):
                assert await peer.stage(step, bytes([step]) * 5000) == Accepted()
                await running.until(partial(_spilled, running, step))
            assert sorted(_states(running)) == [("complete", 5, True), ("free", None, False)]
            with running.board.hold(unit, Generation(0, 5)) as (part,):
                assert bytes(part.data) == bytes([5]) * 5000
        assert os.listdir(disk) == []


async def test_with_two_slots_nothing_is_spilled(tmp_path: Path, disk: Path) -> None:
    async with serving(settings(tmp_path, spill=disk)) as running:
        with Peer(running.settings.workload_path) as peer:
            await peer.register()
            await peer.reserve(MIB, slots=2)
            assert await peer.stage(1) == Accepted()
            assert await peer.stage(2) == Accepted()
            assert not any(spilled for _, _, spilled in _states(running))


async def test_a_disk_that_takes_nothing_costs_a_skipped_stage_and_no_more(tmp_path: Path) -> None:
    async with serving(_one_slot(tmp_path, tmp_path / "not there")) as running:
        with Peer(running.settings.workload_path) as peer:
            unit = (await peer.register()).prefix
            await peer.reserve(MIB)
            assert await peer.stage(1) == Accepted()
            await running.until(lambda: _states(running) == [("complete", 1, False)])
            refused = await peer.ask(Acquire())
            assert isinstance(refused, Refuse)
            assert "step 1 is the newest" in refused.reason
            with running.board.hold(unit, Generation(0, 1)) as (part,):
                assert bytes(part.data) == bytes([1]) * 5000


async def test_the_copy_outlives_its_process_and_goes_with_its_leave(
    tmp_path: Path, disk: Path
) -> None:
    async with serving(_one_slot(tmp_path, disk)) as running:
        with Peer(running.settings.workload_path) as peer:
            await peer.register()
            await peer.reserve(MIB)
            await peer.stage(1)
            await running.until(lambda: ("complete", 1, True) in _states(running))
            # Reserving anew gives the memory back, and keeps what was staged.
            await peer.reserve(MIB)
            assert ("complete", 1, True) in _states(running)


def test_a_full_disk_and_a_withdrawn_wish_leave_nothing_behind(disk: Path) -> None:
    region = build(MIB, lambda: False)
    before = open_files()
    try:
        with pytest.raises(Stopped):
            spill(region, disk, lambda: True)
        with pytest.raises(OSError, match="No such file"):
            spill(region, disk / "nowhere", lambda: False)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (MIB // 2, hard))
        try:
            with pytest.raises(OSError, match="File too large"):
                spill(region, disk, lambda: False)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert open_files() <= before
    finally:
        region.close()
