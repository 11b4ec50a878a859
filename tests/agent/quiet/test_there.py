"""What quiet time or a drill has left in a store is not planned to go once more."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest

from evac.generation import Generation
from evacd.facts import Kept
from evacd.plan.rate import Rate
from tests.agent.quiet.memory import MIB, Node


@pytest.fixture
async def half(tmp_path: Path) -> AsyncIterator[Node]:
    """Quiet time has written all that this node holds of a job, and another node nothing yet."""
    folder = tmp_path / "store"
    folder.mkdir()
    async with AsyncExitStack() as stack:
        ends = stack.enter_context(ExitStack())
        node = Node(folder, ends, cap=1e12, interval=3600.0)
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        running = [tasks.create_task(node.flush.drive(node.lane))]
        running.append(tasks.create_task(node.trickle.run()))
        node.aboard.world = 2
        node.aboard.stage("a/job", 5, 16 * MIB)
        await node.until(lambda: node.heard("trickle.finished"))
        # Nobody could write it once more in any window of these tests.
        node.flush.rates[node.lane] = Rate(MIB / 100, measured=True)
        yield node
        for task in running:
            task.cancel()


async def test_what_waits_for_other_nodes_alone_fits_into_any_window(half: Node) -> None:
    half.flush.evacuate(half.order(20.0))
    await half.until(lambda: "a/job" in half.flush.outcomes)

    (plan, *_) = half.heard("plan.made")
    assert plan["given_up"] == []
    assert [(step["nbytes"], step["overtime"]) for step in plan["steps"]] == [(0, False)]
    kept = half.flush.outcomes["a/job"]
    assert isinstance(kept, Kept)
    assert (kept.generation, kept.durable) == (Generation(1, 5), False)


async def test_an_older_generation_that_lies_there_goes_before_a_newer_one_that_does_not_fit(
    half: Node,
) -> None:
    half.aboard.changed = lambda: None
    half.aboard.stage("a/job", 6, 16 * MIB)

    half.flush.evacuate(half.order(20.0))
    await half.until(lambda: "a/job" in half.flush.outcomes)

    assert half.heard("flush.started")[0]["generation"]["step"] == 5


async def test_another_store_has_no_byte_of_it(half: Node) -> None:
    (candidate,) = half.way.units()[0].candidates

    assert candidate.left_on(half.lane) == 0
    assert candidate.left_on("file:///elsewhere") == 16 * MIB


async def test_it_is_at_risk_all_the_same(half: Node) -> None:
    assert half.way.not_durable() == {"a/job": 16 * MIB}
