"""What was found whole is not read again, however many generations there are; what changed is."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from evac.commit import Known, State, jobs, put_body, retain, survey
from evac.generation import Generation, manifest_name
from evac.store import Entry, Store
from evac.store.local import LocalStore
from tests.handlers.commit.made import PREFIX, body_of, commit
from tests.handlers.store.watched import Watched

WORLD = 3


class Asked(Counter[str]):
    """How often each verb was asked of a store."""

    def __call__(self, verb: str, key: str) -> None:
        self[verb] += 1


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.fixture
def store(tmp_path: Path, asked: Asked) -> Store:
    return Watched(LocalStore(str(tmp_path)), asked)


async def committed(store: Store, step: int) -> Generation:
    generation = Generation(1, step)
    await commit(store, generation, world=WORLD)
    return generation


@pytest.mark.parametrize("kept", [1, 4, 16])
async def test_quiet_time_costs_the_same_however_many_generations_are_kept(
    store: Store, asked: Asked, kept: int
) -> None:
    known = Known()
    for step in range(kept):
        await committed(store, step)
    await retain(store, PREFIX, keep=kept, known=known)
    costs = []
    for step in range(kept, kept + 3):
        await committed(store, step)
        asked.clear()
        assert await retain(store, PREFIX, keep=kept, known=known) == (Generation(1, step - kept),)
        costs.append(dict(asked))

    # The manifests of what is new; and a look at what there is, and at what goes, with its files.
    files = 2 * WORLD + 1
    assert costs == [{"list": 2, "get": WORLD, "delete": files}] * 3


async def test_a_survey_says_the_same_whether_it_knows_or_not(store: Store) -> None:
    known = Known()
    for step in (10, 20):
        await committed(store, step)
    await commit(store, Generation(1, 30), kind="weights")
    await put_body(store, PREFIX, Generation(2, 1), "__0_0.distcp", memoryview(b"half"), rank=0)

    first = await survey(store, PREFIX, known=known)

    assert await survey(store, PREFIX, known=known) == first == await survey(store, PREFIX)


@pytest.mark.parametrize("lost", ["__1_0.distcp", manifest_name(2), ".metadata"])
async def test_what_was_whole_and_is_not_any_more_is_seen(store: Store, lost: str) -> None:
    known = Known()
    generation = await committed(store, 10)
    [before] = await survey(store, PREFIX, known=known)
    await store.delete(f"{PREFIX}/{generation.directory}/{lost}")

    [after] = await survey(store, PREFIX, known=known)

    assert (before.state, after.state) == (State.COMPLETE, State.TORN)


async def test_what_has_gone_and_comes_again_is_read_again(store: Store, asked: Asked) -> None:
    known = Known()
    generation = await committed(store, 10)
    await survey(store, PREFIX, known=known)
    for entry in await store.list(f"{PREFIX}/{generation.directory}"):
        await store.delete(entry.key)
    assert await survey(store, PREFIX, known=known) == ()
    await committed(store, 10)
    asked.clear()

    await survey(store, PREFIX, known=known)

    assert asked["get"] == WORLD


async def test_only_those_that_are_asked_for_are_read(store: Store, asked: Asked) -> None:
    for step in range(10):
        await committed(store, step)
    asked.clear()

    found = await survey(store, PREFIX, among={Generation(1, 7), Generation(1, 99)})

    assert [one.generation.step for one in found] == [7]
    assert dict(asked) == {"list": 1, "get": WORLD}


async def test_what_a_flush_is_writing_now_is_left_to_the_next_time(store: Store) -> None:
    torn = Generation(1, 15)
    old, new = await committed(store, 10), await committed(store, 20)
    await put_body(store, PREFIX, torn, "__0_0.distcp", memoryview(body_of(0)), rank=0)

    assert await retain(store, PREFIX, keep=1, busy={torn}.__contains__) == (old,)
    assert await retain(store, PREFIX, keep=1) == (torn,)
    assert [one.generation for one in await survey(store, PREFIX)] == [new]


class OfAFleet(LocalStore):
    """One that thousands of jobs have written to."""

    async def list(self, prefix: str) -> Sequence[Entry]:
        return [
            Entry(f"u/job-{job}/step-1.1/{name}", 1)
            for job in range(4000)
            for name in ("__0_0.distcp", "__1_0.distcp", ".metadata", "notes.txt", "x/y")
        ]


async def test_a_store_of_a_whole_fleet_is_looked_through_while_others_go_on(
    tmp_path: Path,
) -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        going_on = tasks.create_task(others())
        found = await jobs(OfAFleet(str(tmp_path)))
        going_on.cancel()

    assert len(found) == 4000
    assert turns >= 20
