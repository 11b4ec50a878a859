"""Several real stores at once: real memory, real files, one of them slow or broken."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from evac.commit import State, survey
from evac.store import Owner, Store
from evac.store.local import LocalStore
from evac.store.paced import Paced
from evacd.facts import Confidence, Kept, Order
from evacd.flush import Flush
from evacd.flush.save import Saver
from evacd.plan.rate import Rate
from tests.agent.quiet.memory import CLOCK, LIMIT, MIB, Aboard


@dataclass
class Scene:
    """Two stores, `first` preferred; what each does per second may be bounded."""

    folders: Mapping[str, Path]
    aboard: Aboard
    paces: dict[str, float] = field(default_factory=dict)
    events: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    def open(self, url: str, owner: Owner) -> Store:
        store: Store = LocalStore(str(self.folders[url]))
        if url in self.paces:
            store = Paced(store, self.paces[url], clock=CLOCK.monotonic)
        return store

    async def states(self, lane: str, unit: str) -> dict[int, State]:
        found = await survey(LocalStore(str(self.folders[lane])), unit)
        return {one.generation.step: one.state for one in found}


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[tuple[Scene, Flush]]:
    folders = {f"file://{tmp_path}/{name}": tmp_path / name for name in ("first", "second")}
    for folder in folders.values():
        folder.mkdir()
    async with AsyncExitStack() as stack:
        ends = stack.enter_context(ExitStack())
        made = Scene(folders, Aboard(tuple(folders), ends))
        saver = Saver(made.open, node="node-1")
        flush = Flush(
            made.aboard, saver,
            lanes=folders, assumed=1e9, reserve=0.0, commit_seconds=0.0, clock=CLOCK,
            record=lambda name, data: made.events.append((name, data)),
            ended=lambda _: None, idle=lambda: None,
        )  # fmt: skip
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        drivers = [tasks.create_task(flush.drive(lane)) for lane in folders]
        yield made, flush
        for driver in drivers:
            driver.cancel()


async def evacuate(flush: Flush, seconds: float) -> None:
    now = CLOCK.monotonic()
    flush.evacuate(Order("o1", now + seconds, Confidence.CERTAIN, "test", "drain", given=now))
    async with asyncio.timeout(LIMIT):
        await flush.settled.wait()


async def test_each_of_two_stores_takes_what_fits_there(scene: tuple[Scene, Flush]) -> None:
    here, flush = scene
    first, second = here.folders
    # As measured, both together fit in the window, one behind the other on the first do not.
    flush.rates |= {lane: Rate(16 * MIB, measured=True) for lane in here.folders}
    here.aboard.stage("a/big", 5, 150 * MIB, priority=9)
    here.aboard.stage("b/small", 7, 64 * MIB, priority=1)

    await evacuate(flush, 10.0)

    assert await here.states(first, "a/big") == {5: State.COMPLETE}
    assert await here.states(second, "b/small") == {7: State.COMPLETE}
    started = {d["unit"]: d["lane"] for name, d in here.events if name == "flush.started"}
    assert started == {"a/big": first, "b/small": second}


async def test_a_store_that_cannot_be_written_costs_nothing_where_there_is_another(
    scene: tuple[Scene, Flush],
) -> None:
    here, flush = scene
    first, second = here.folders
    here.folders[first].rmdir()
    here.folders[first].write_text("no folder")
    here.aboard.stage("a/job", 5, MIB)
    here.aboard.stage("b/job", 6, MIB)

    await evacuate(flush, 30.0)

    for unit in ("a/job", "b/job"):
        kept = flush.outcomes[unit]
        assert isinstance(kept, Kept)
        assert (kept.store, kept.durable) == (second, True)


async def test_a_store_that_turns_out_too_slow_is_left_in_the_middle_of_a_body(
    scene: tuple[Scene, Flush],
) -> None:
    here, flush = scene
    first, second = here.folders
    here.paces[first] = MIB
    here.aboard.stage("a/job", 5, 160 * MIB)
    flush.rates |= {lane: Rate(100 * MIB, measured=True) for lane in here.folders}

    await evacuate(flush, 9.0)

    kept = flush.outcomes["a/job"]
    assert isinstance(kept, Kept)
    assert (kept.store, kept.durable) == (second, True)
    assert [d["lane"] for name, d in here.events if name == "flush.stopped"] == [first]
    assert await here.states(second, "a/job") == {5: State.COMPLETE}
    assert await here.states(first, "a/job") == {}
    assert not list(here.folders[first].rglob("*evac-tmp*"))
