"""Bad moments, on a real node: what was whole is saved, what is torn is never taken as whole."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from evac.commit import State, survey, verify
from evac.generation import Generation
from evac.store import open_store
from tests.agent.daemon.nodes import WINDOW, Node, until
from tests.agent.daemon.worker import body_of

MEBI = 1 << 20


def prefix_of(node: Node, job: str = "job") -> str:
    """Where the daemon puts this job."""
    return next(str(one["unit"]) for one in node.status()["workloads"] if one["job"] == job)


def all_summed(node: Node) -> bool:
    """Whether the background has summed all that was staged."""
    slots = [slot for one in node.status()["workloads"] for slot in one["slots"]]
    return all(slot["summed"] == slot["chunks"] for slot in slots)


async def states(node: Node, prefix: str) -> dict[Generation, State]:
    """What a reader finds in the store."""
    found = await survey(open_store(f"file://{node.store}"), prefix)
    return {one.generation: one.state for one in found}


async def test_an_order_saves_what_was_staged_bit_for_bit(node: Node) -> None:
    node.start()
    node.staged(5, nbytes=3 * MEBI + 17)
    prefix = prefix_of(node)

    node.drain()
    outcomes = node.settled()

    assert outcomes[prefix]["kept"]
    assert await states(node, prefix) == {Generation(1, 5): State.COMPLETE}
    body = node.store / prefix / "step-5.1" / "part0.bin"
    assert body.read_bytes() == body_of(0, 5, 3 * MEBI + 17)
    assert await verify(open_store(f"file://{node.store}"), prefix, Generation(1, 5)) == ()


async def test_a_slot_being_written_is_never_flushed_and_the_older_generation_is(
    node: Node,
) -> None:
    node.start()
    workload = node.staged(5)
    prefix = prefix_of(node)
    workload.do("begin", step=6)

    node.drain()
    node.settled()

    assert await states(node, prefix) == {Generation(1, 5): State.COMPLETE}


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_stopped_and_killed_workloads_lose_nothing_that_was_staged(
    node: Node, end: str
) -> None:
    node.start()
    workload = node.staged(5)
    prefix = prefix_of(node)
    getattr(workload, end)()

    node.drain()
    outcomes = node.settled()

    assert await states(node, prefix) == {Generation(1, 5): State.COMPLETE}
    if end == "stop":
        assert outcomes[prefix]["kept"]


async def test_a_death_without_a_notice_saves_the_orphans(node: Node) -> None:
    node.start()
    workload = node.staged(5)
    prefix = prefix_of(node)

    workload.kill()

    until("the orphan is saved", lambda: (node.store / prefix / "evac-job.json").exists())
    assert await states(node, prefix) == {Generation(1, 5): State.COMPLETE}


async def test_a_rank_ahead_of_the_other_yields_the_generation_that_both_have(node: Node) -> None:
    node.start()
    ahead = node.staged(5, rank=0, world=2)
    node.staged(5, rank=1, world=2)
    prefix = prefix_of(node)
    ahead.do("stage", step=6)
    node.knows("job", 6, rank=0)

    node.drain()
    node.settled()

    assert await states(node, prefix) == {Generation(1, 5): State.COMPLETE}
    assert not (node.store / prefix / "step-6.1").exists()


async def test_a_rank_that_staged_nothing_loses_its_job_with_a_reason(node: Node) -> None:
    node.start()
    node.staged(5, rank=0, world=2)
    node.workload(rank=1, world=2).ready()
    prefix = prefix_of(node)

    node.drain()
    outcomes = node.settled()

    assert not outcomes[prefix]["kept"]
    assert "rank 1" in outcomes[prefix]["reason"]
    assert node.files() == []


def test_priority_decides_who_goes_first(node: Node) -> None:
    node.start()
    for number, priority in enumerate((10, 100, 50)):
        node.staged(5, job=f"p{priority}", priority=priority, rank=0, nbytes=MEBI + number)

    node.drain()
    node.settled()

    started = [e.data["unit"].split("/")[1] for e in node.events() if e.name == "flush.started"]
    assert started == ["p100", "p50", "p10"]


def test_a_late_registrant_gets_the_running_order_at_once(node: Node) -> None:
    node.start()
    node.drain()

    late = node.workload()
    late.do("connect")

    order = until("the order arrives", lambda: late.do("order").get("order"))
    assert order == node.status()["order"]["id"]
    assert 0 < late.do("order")["left"] <= WINDOW


async def test_what_is_staged_after_the_notice_is_saved_as_well(node: Node) -> None:
    node.start()
    workload = node.staged(5)
    prefix = prefix_of(node)
    node.drain()
    node.settled()

    workload.do("stage", step=6)

    node.event("commit.finished", generation={"incarnation": 1, "step": 6})
    assert await states(node, prefix) == {
        Generation(1, 6): State.COMPLETE,
        Generation(1, 5): State.COMPLETE,
    }


async def test_older_generations_go_when_newer_ones_are_whole(node: Node) -> None:
    node.start("--store-keep", "2")
    workload = node.staged(1)
    prefix = prefix_of(node)
    node.drain()
    for step in range(2, 6):
        node.settled()
        workload.do("stage", step=step)
        node.event("commit.finished", generation={"incarnation": 1, "step": step})

    folders = node.store / prefix
    until("older ones are gone", lambda: len(list(folders.glob("step-*"))) == 2)
    assert await states(node, prefix) == {
        Generation(1, 5): State.COMPLETE,
        Generation(1, 4): State.COMPLETE,
    }


async def test_a_live_job_does_not_starve_one_that_has_nothing_safe(node: Node) -> None:
    node.start()
    node.staged(1, job="greedy", priority=100, nbytes=64 * MEBI)
    node.staged(1, job="modest", priority=1)

    node.drain()
    node.settled()

    first = [e.data["unit"].split("/")[1] for e in node.events() if e.name == "flush.started"]
    assert first[:2] == ["greedy", "modest"]


async def test_a_job_whose_other_ranks_are_elsewhere_is_written_and_not_called_durable(
    node: Node,
) -> None:
    node.start()
    node.staged(5, rank=0, world=2)
    prefix = prefix_of(node)

    node.drain()
    outcomes = node.settled()

    assert outcomes[prefix]["kept"]
    assert not outcomes[prefix]["durable"]
    assert await states(node, prefix) == {Generation(1, 5): State.TORN}
    slots = node.status()["workloads"][0]["slots"]
    assert not any(slot["durable"] for slot in slots)


async def test_a_deadline_that_has_passed_is_overtime_and_not_an_empty_plan(node: Node) -> None:
    node.start()
    node.staged(5)
    prefix = prefix_of(node)

    node.drain(0.0)
    outcomes = node.settled()

    assert outcomes[prefix]["kept"]
    plan = next(event for event in node.events() if event.name == "plan.made")
    assert plan.data["steps"][0]["overtime"]
    assert await states(node, prefix) == {Generation(1, 5): State.COMPLETE}


async def test_what_a_workload_corrupts_after_staging_is_not_taken_as_whole(node: Node) -> None:
    node.start()
    workload = node.staged(5, nbytes=8 * MEBI)
    prefix = prefix_of(node)
    until("checksums are made", lambda: all_summed(node))
    workload.do("corrupt")

    node.drain()
    node.settled()

    problems = await verify(open_store(f"file://{node.store}"), prefix, Generation(1, 5))
    assert [Path(problem.key).name for problem in problems] == ["part0.bin"]


async def test_a_daemon_killed_in_mid_flush_leaves_nothing_that_looks_whole(node: Node) -> None:
    # So slow that it is in the middle for as long as this test needs to look there.
    node.start("--quiet", "--quiet-bytes-per-second", "256KiB")
    node.staged(5, nbytes=64 * MEBI)
    prefix = prefix_of(node)
    until("the flush writes", lambda: any(".evac-tmp-" in name for name in node.files()))
    node.kill()

    assert State.COMPLETE not in (await states(node, prefix)).values()
    listed = evac_ls(node)
    assert listed.returncode == 1
    assert listed.stdout.startswith("no generations")

    for name in node.files():
        os.utime(node.store / name, (0, 0))
    node.start()
    assert State.COMPLETE not in (await states(node, prefix)).values()
    until("the torn file is cleaned up", lambda: node.files() == [])


async def test_a_second_launch_that_takes_the_same_step_cannot_harm_what_is_committed(
    node: Node,
) -> None:
    node.start()
    first = node.staged(5)
    prefix = prefix_of(node)
    node.drain()
    node.settled()
    first.kill()
    node.cancel()
    node.terminate()

    node.start()
    node.staged(5, nbytes=2 * MEBI + 7)
    node.drain()
    outcomes = node.settled()

    assert not outcomes[prefix]["kept"]
    assert "fenced" in outcomes[prefix]["reason"]
    assert await states(node, prefix) == {Generation(1, 5): State.COMPLETE}
    assert await verify(open_store(f"file://{node.store}"), prefix, Generation(1, 5)) == ()


def evac_ls(node: Node) -> "subprocess.CompletedProcess[str]":
    """As a person would."""
    return subprocess.run(
        [sys.executable, "-m", "evac", "ls", f"file://{node.store}"],
        capture_output=True,
        text=True,
        timeout=30,
    )


def test_a_full_store_is_reported_and_the_others_are_still_saved(
    node: Node, small_disk: Callable[[Path, int], None]
) -> None:
    small_disk(node.store, 24 * MEBI)
    node.start("--plan-commit-reserve-seconds", "0")
    node.staged(5, job="large", priority=100, nbytes=64 * MEBI)
    node.staged(5, job="small", priority=1, nbytes=MEBI)

    node.drain()
    outcomes = {unit.split("/")[1]: one for unit, one in node.settled().items()}

    assert not outcomes["large"]["kept"]
    assert "space" in outcomes["large"]["reason"]
    assert outcomes["small"]["kept"]
    assert not [name for name in node.files() if "large" in name]


def test_a_read_only_store_is_reported_per_workload(
    node: Node, small_disk: Callable[[Path, int], None]
) -> None:
    small_disk(node.store, 24 * MEBI)
    subprocess.run(["mount", "-o", "remount,ro", str(node.store)], check=True)
    node.start()
    node.staged(5, job="one")
    node.staged(5, job="two")

    node.drain()
    outcomes = node.settled()

    assert [one["kept"] for one in outcomes.values()] == [False, False]
    assert all("ead-only" in one["reason"] for one in outcomes.values())


async def test_the_second_store_takes_what_the_first_refuses(
    node: Node, tmp_path: Path, small_disk: Callable[[Path, int], None]
) -> None:
    second = tmp_path / "second"
    small_disk(node.store, MEBI)
    node.start("--store", f"file://{node.store}", "--store", f"file://{second}")
    node.staged(5, nbytes=8 * MEBI)
    prefix = prefix_of(node)

    node.drain()
    outcomes = node.settled()

    assert outcomes[prefix]["kept"]
    found = await survey(open_store(f"file://{second}"), prefix)
    assert [one.state for one in found] == [State.COMPLETE]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_files_belong_to_the_workload_that_staged_them(node: Node) -> None:
    node.start()
    node.staged(5)
    prefix = prefix_of(node)

    node.drain()
    node.settled()

    owners = {path.stat().st_uid for path in (node.store / prefix).rglob("*")}
    assert owners == {os.geteuid()}
