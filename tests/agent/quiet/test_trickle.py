"""Quiet time with real memory and a real store: it trickles, and gives way at once."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from itertools import count
from pathlib import Path

import pytest

from evac.commit import State, survey
from evac.generation import Generation
from evac.store.local import LocalStore
from evacd.facts import Kept
from evacd.workloads import Part
from tests.agent.quiet.memory import MIB, Node

# So slow that nothing of some MiB ends by itself within a test.
CRAWL = 0.5 * MIB
FAST = 1e12

Make = Callable[..., AbstractAsyncContextManager[Node]]


@pytest.fixture
def node(tmp_path: Path) -> Make:
    """A node that runs for as long as its context is open."""

    @asynccontextmanager
    async def run(
        *, cap: float = FAST, interval: float = 0.0, others: Sequence[str] = ()
    ) -> AsyncIterator[Node]:
        folder = tmp_path / "store"
        folder.mkdir(exist_ok=True)
        with ExitStack() as ends:
            made = Node(folder, ends, cap=cap, interval=interval, others=others)
            async with AsyncExitStack() as stack:
                tasks = await stack.enter_async_context(asyncio.TaskGroup())
                running = [tasks.create_task(made.flush.drive(lane)) for lane in made.lanes]
                running.append(tasks.create_task(made.trickle.run()))
                try:
                    yield made
                finally:
                    for task in running:
                        task.cancel()

    return run


async def states(node: Node, unit: str) -> dict[int, State]:
    found = await survey(LocalStore(str(node.folder)), unit)
    return {one.generation.step: one.state for one in found}


async def test_the_newest_generation_becomes_durable_without_an_order(node: Make) -> None:
    async with node() as here:
        here.aboard.stage("a/job", 5, MIB)
        await here.until(lambda: here.heard("trickle.finished"))

        assert await states(here, "a/job") == {5: State.COMPLETE}
        assert here.aboard.units()[0].durable == Generation(1, 5)
        assert here.flushed == []


async def test_a_job_that_stages_all_the_time_does_not_write_all_the_time(node: Make) -> None:
    async with node(interval=3600.0) as here:
        here.aboard.stage("a/job", 5, MIB)
        await here.until(lambda: here.heard("trickle.finished"))
        here.aboard.stage("a/job", 6, MIB)
        here.aboard.stage("b/other", 1, MIB)
        await here.until(lambda: len(here.heard("trickle.finished")) == 2)

        assert here.steps("trickle.started") == [5, 1]


async def test_older_generations_are_thinned_out_after_each_durable_one(node: Make) -> None:
    async with node() as here:
        for step in (1, 2, 3, 4):
            here.aboard.stage("a/job", step, MIB)
            await here.until(lambda: len(here.heard("trickle.finished")) == here.aboard.count)

        await here.until(lambda: len(list(here.folder.glob("a/job/step-*"))) == 2)
        assert await states(here, "a/job") == {4: State.COMPLETE, 3: State.COMPLETE}


async def test_what_moves_already_goes_on_at_full_speed_as_the_orders_first_step(
    node: Make,
) -> None:
    async with node(cap=CRAWL) as here:
        here.aboard.stage("a/job", 5, 64 * MIB)
        await here.until(lambda: here.heard("trickle.started"))
        await here.until(lambda: here.left() < 64 * MIB)

        here.flush.evacuate(here.order())
        await here.until(here.flush.settled.is_set)

        # At the trickle's own speed it would have taken two minutes.
        kept = here.flush.outcomes["a/job"]
        assert isinstance(kept, Kept)
        assert kept.durable
        assert kept.nbytes < 64 * MIB
        assert here.flushed == []
        assert await states(here, "a/job") == {5: State.COMPLETE}


async def test_what_the_plan_did_not_choose_is_cancelled_at_once(node: Make) -> None:
    async with node(cap=CRAWL) as here:
        here.aboard.stage("a/job", 5, 64 * MIB, priority=1)
        await here.until(lambda: here.heard("trickle.started"))
        here.aboard.stage("b/urgent", 7, MIB, priority=9)

        here.flush.evacuate(here.order())
        await here.until(here.flush.settled.is_set)

        assert here.flushed == [("b/urgent", 7), ("a/job", 5)]
        assert len(here.heard("trickle.cancelled")) == 1
        assert all(isinstance(one, Kept) for one in here.flush.outcomes.values())
        await here.until(lambda: not list(here.folder.rglob("*evac-tmp*")))


async def test_a_newer_generation_that_fits_is_preferred_to_the_half_done_older_one(
    node: Make,
) -> None:
    async with node(cap=CRAWL) as here:
        here.aboard.stage("a/job", 5, 64 * MIB)
        await here.until(lambda: here.heard("trickle.started"))
        here.aboard.stage("a/job", 6, MIB)

        here.flush.evacuate(here.order())
        await here.until(here.flush.settled.is_set)

        assert here.flushed == [("a/job", 6)]
        assert await states(here, "a/job") == {6: State.COMPLETE}


async def test_what_is_half_done_is_preferred_where_the_newer_one_does_not_fit(node: Make) -> None:
    async with node(cap=CRAWL) as here:
        here.aboard.stage("a/job", 5, 64 * MIB)
        await here.until(lambda: here.left() < 63 * MIB)
        here.aboard.stage("a/job", 6, 64 * MIB)
        left = here.left()

        # What is left of step 5 fits, the whole of step 6 does not.
        here.flush.rates[here.lane] = type(here.flush.rates[here.lane])((left + MIB / 2) / 10)
        here.flush.evacuate(here.order(10.0))
        await here.until(lambda: "a/job" in here.flush.outcomes)

        kept = here.flush.outcomes["a/job"]
        assert isinstance(kept, Kept)
        assert kept.generation == Generation(1, 5)


async def test_nothing_trickles_under_an_order_and_it_goes_on_after_it(node: Make) -> None:
    async with node() as here:
        await here.until(here.flush.settled.is_set)
        here.flush.evacuate(here.order())
        await here.until(here.flush.settled.is_set)
        here.aboard.stage("a/job", 5, MIB)
        await asyncio.sleep(0)
        assert here.heard("trickle.started") == []

        here.flush.stand_down()
        await here.until(lambda: here.steps("trickle.finished") == [5])


async def test_a_workload_that_leaves_while_it_moves_costs_the_others_nothing(node: Make) -> None:
    async with node() as here:
        here.aboard.stage("a/job", 5, MIB)
        here.aboard.gone("a/job")
        here.aboard.stage("b/other", 1, MIB)
        await here.until(lambda: here.heard("trickle.finished"))

        assert [data["unit"] for data in here.heard("trickle.finished")] == ["b/other"]


async def test_a_full_store_is_told_and_not_tried_in_a_circle(node: Make) -> None:
    async with node(interval=3600.0) as here:
        here.folder.rmdir()
        here.folder.write_text("no folder")
        here.aboard.stage("a/job", 5, MIB)
        await here.until(lambda: here.heard("trickle.failed"))
        here.aboard.stage("a/job", 6, MIB)
        await asyncio.sleep(0.05)

        assert len(here.heard("trickle.started")) == 1
        assert here.heard("trickle.failed")[0]["reason"]


async def test_what_lacks_other_nodes_ranks_is_not_durable_and_not_written_twice(
    node: Make,
) -> None:
    async with node(interval=0.05) as here:
        here.aboard.world = 2
        here.aboard.stage("a/job", 5, MIB)
        await here.until(lambda: len(here.heard("trickle.finished")) > 1)

        first, second, *_ = here.heard("trickle.finished")
        assert not first["durable"]
        assert (first["nbytes"], second["nbytes"]) == (MIB, 0)
        assert second["generation_nbytes"] == MIB
        assert here.aboard.units()[0].durable is None


async def test_a_bug_costs_one_generation_and_neither_the_trickle_nor_the_daemon(
    node: Make,
) -> None:
    async with node() as here:
        real, calls = here.aboard.hold, count()

        @contextmanager
        def hold(unit: str, generation: Generation) -> Iterator[tuple[Part, ...]]:
            if next(calls) == 0:
                raise ZeroDivisionError
            with real(unit, generation) as parts:
                yield parts

        here.aboard.hold = hold  # type: ignore[method-assign] # as a bug in it would
        here.aboard.stage("a/job", 5, MIB)
        await here.until(lambda: here.heard("trickle.finished"))


async def test_the_nodes_of_a_job_follow_each_other_so_that_one_generation_becomes_whole(
    node: Make,
) -> None:
    async with node(interval=3600.0) as first, node(interval=3600.0) as second:
        first.aboard.world = second.aboard.world = 2
        second.aboard.rank = 1
        first.aboard.stage("a/job", 5, MIB)
        await first.until(lambda: first.heard("trickle.finished"))

        # It is a step ahead by now, and holds both.
        second.aboard.changed = lambda: None
        second.aboard.stage("a/job", 5, MIB)
        second.aboard.stage("a/job", 6, MIB)
        second.trickle.wake()
        await second.until(lambda: second.heard("trickle.finished"))

        assert second.steps("trickle.finished") == [5]
        assert second.heard("trickle.finished")[0]["durable"]
        assert await states(first, "a/job") == {5: State.COMPLETE}


async def test_where_the_first_durable_store_refuses_the_next_one_takes_it(
    node: Make, tmp_path: Path
) -> None:
    second = f"file://{tmp_path}/second"
    (tmp_path / "second").mkdir()
    async with node(interval=3600.0, others=["evac://peer:7000", second]) as here:
        here.folder.rmdir()
        here.folder.write_text("no folder")
        here.aboard.stage("a/job", 5, MIB)
        await here.until(lambda: here.heard("trickle.finished"))

        (failed,), (finished,) = here.heard("trickle.failed"), here.heard("trickle.finished")
        assert (failed["store"], finished["store"]) == (here.lane, second)
        assert here.aboard.units()[0].durable == Generation(1, 5)


async def test_what_moves_to_one_store_is_no_less_to_be_written_to_another(
    node: Make, tmp_path: Path
) -> None:
    second = f"file://{tmp_path}/second"
    (tmp_path / "second").mkdir()
    async with node(cap=CRAWL, others=[second]) as here:
        here.aboard.stage("a/job", 5, 64 * MIB)
        await here.until(lambda: here.left() < 64 * MIB)

        (candidate,) = here.way.units()[0].candidates
        assert candidate.left_on(here.lane) < 64 * MIB
        assert candidate.left_on(second) == 64 * MIB


async def test_a_paced_transfer_shows_the_least_that_its_link_can_do(node: Make) -> None:
    async with node(cap=64 * MIB) as here:
        here.aboard.stage("a/job", 5, 96 * MIB)
        await here.until(lambda: here.heard("trickle.finished"))

        (seen,) = here.learned
        assert seen.least
        assert seen.nbytes >= 96 * MIB
        # It took half a second and more, nearly all of which it was made to wait.
        assert seen.nbytes / seen.seconds > 64 * MIB


async def test_a_transfer_that_cannot_keep_its_pace_is_a_measurement(node: Make) -> None:
    async with node(cap=FAST) as here:
        here.aboard.stage("a/job", 5, 16 * MIB)
        await here.until(lambda: here.heard("trickle.finished"))

        (seen,) = here.learned
        assert not seen.least


async def test_a_step_that_is_stopped_takes_with_it_what_quiet_time_had_begun(
    node: Make, tmp_path: Path
) -> None:
    second = f"file://{tmp_path}/second"
    (tmp_path / "second").mkdir()
    async with node(cap=CRAWL, others=[second]) as here:
        here.aboard.stage("a/job", 5, 64 * MIB)
        await here.until(lambda: here.left() < 64 * MIB)
        async with asyncio.TaskGroup() as tasks:
            with here.aboard.hold("a/job", Generation(1, 5)) as parts:
                # As a flush that is stopped before its first look.
                step = tasks.create_task(here.way.save(parts, lane=here.lane, order="o"))
                await asyncio.sleep(0)
                step.cancel()
                await asyncio.wait([step])

        await here.until(lambda: here.heard("trickle.cancelled") or here.heard("trickle.finished"))
        assert not here.heard("trickle.finished")
