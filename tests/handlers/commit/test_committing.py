"""Committing to a real directory, and being cut off anywhere in between."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from evac.commit import (
    State,
    claim_incarnation,
    finish,
    finish_all,
    foreign,
    jobs,
    newest_complete,
    put_body,
    put_manifest,
    put_metadata,
    retain,
    survey,
    verify,
    was_ever_complete,
)
from evac.errors import GenerationError, StoreUnavailable
from evac.generation import METADATA, Generation, manifest_name
from evac.store import Entry, Store
from tests.handlers.commit.made import (
    METADATA_BYTES,
    PREFIX,
    body_of,
    commit,
    manifest,
    without_metadata,
)

G = Generation(incarnation=1, step=10)
FOLDER = f"{PREFIX}/{G.directory}"


async def put_rank(store: Store, rank: int, world: int = 2, *, left: bool = True) -> None:
    made = manifest(G, rank, world)
    await put_body(store, PREFIX, G, made.files[0].name, memoryview(body_of(rank)), rank=rank)
    await put_manifest(store, PREFIX, made, metadata=METADATA_BYTES if left else None)


async def test_a_committed_generation_is_found_whole_and_verified(store: Store) -> None:
    await commit(store, G)

    [status] = await survey(store, PREFIX)
    assert (status.state, status.ranks, status.reason) == (State.COMPLETE, (0, 1), "")
    assert await newest_complete(store, PREFIX) == G
    assert await verify(store, PREFIX, G) == ()
    assert await jobs(store) == (PREFIX,)
    assert await foreign(store, PREFIX) == ()
    names = {entry.key.rpartition("/")[2] for entry in await store.list(FOLDER)}
    assert names == {
        METADATA, "__0_0.distcp", "__1_0.distcp", "__0.manifest.json", "__1.manifest.json",
    }  # fmt: skip


async def test_metadata_appears_only_with_the_last_manifest(store: Store) -> None:
    await put_rank(store, 0)

    assert not await finish(store, PREFIX, G, METADATA_BYTES)
    assert METADATA not in {e.key.rpartition("/")[2] for e in await store.list(FOLDER)}
    assert not await was_ever_complete(store, PREFIX)

    await put_rank(store, 1)
    assert await finish(store, PREFIX, G, METADATA_BYTES)
    assert await store.get(f"{FOLDER}/{METADATA}") == METADATA_BYTES
    assert await was_ever_complete(store, PREFIX)


async def test_anybody_can_finish_what_the_last_writer_did_not(store: Store) -> None:
    for rank in range(2):
        await put_rank(store, rank)
    [status] = await survey(store, PREFIX)
    assert status.state is State.FINISHABLE
    assert await newest_complete(store, PREFIX) is None

    assert await finish_all(store, PREFIX) == (G,)

    assert await newest_complete(store, PREFIX) == G
    assert await finish_all(store, PREFIX) == ()
    assert await finish(store, PREFIX, G)


async def test_without_bytes_left_behind_only_their_owner_can_finish(store: Store) -> None:
    for rank in range(2):
        await put_rank(store, rank, left=False)

    assert not await finish(store, PREFIX, G)
    [status] = await survey(store, PREFIX)
    assert status.state is State.TORN
    assert await finish(store, PREFIX, G, METADATA_BYTES)


async def test_metadata_of_another_plan_is_never_written(store: Store) -> None:
    for rank in range(2):
        await put_rank(store, rank)

    with pytest.raises(GenerationError):
        await finish(store, PREFIX, G, b"another plan")
    with pytest.raises(GenerationError):
        await put_manifest(store, PREFIX, manifest(G, 0, 2), metadata=b"another plan")
    await store.put(f"{FOLDER}/{METADATA}", memoryview(b"x" * len(METADATA_BYTES)))
    with pytest.raises(GenerationError):
        await finish(store, PREFIX, G)
    assert not await was_ever_complete(store, PREFIX)


async def test_other_bytes_for_a_committed_generation_leave_it_as_it_is(store: Store) -> None:
    await commit(store, G)
    other = body_of(7)
    made = manifest(G, 0, 2, data=other)

    assert not await put_body(store, PREFIX, G, made.files[0].name, memoryview(other), rank=0)
    with pytest.raises(GenerationError, match="fenced"):
        await put_manifest(store, PREFIX, made, metadata=METADATA_BYTES)

    assert await verify(store, PREFIX, G) == ()
    assert await newest_complete(store, PREFIX) == G


async def test_a_rank_that_is_committed_can_be_flushed_again(store: Store) -> None:
    await put_rank(store, 0)

    made = manifest(G, 0, 2)
    assert not await put_body(store, PREFIX, G, made.files[0].name, memoryview(body_of(0)), rank=0)
    await put_manifest(store, PREFIX, made, metadata=METADATA_BYTES)
    assert await put_body(store, PREFIX, G, "__1_0.distcp", memoryview(body_of(1)), rank=1)
    await put_manifest(store, PREFIX, manifest(G, 1, 2), metadata=METADATA_BYTES)

    assert await finish(store, PREFIX, G)
    assert await verify(store, PREFIX, G) == ()


async def test_a_body_that_is_no_dcp_file_needs_no_metadata(store: Store) -> None:
    await put_body(store, PREFIX, G, "__0_0.distcp", memoryview(body_of(0)), rank=0)
    await put_manifest(store, PREFIX, without_metadata(manifest(G, 0, 1)))

    assert await finish(store, PREFIX, G)
    assert await newest_complete(store, PREFIX) == G


async def test_the_same_manifest_twice_is_fine_and_another_is_fenced(store: Store) -> None:
    made = manifest(G, 0, 1, items=({"name": "w", "shape": (2, 3)},), order="", node="a")
    await put_manifest(store, PREFIX, made)
    await put_manifest(store, PREFIX, made)
    await put_manifest(store, PREFIX, manifest(G, 0, 1, items=made.items, order="o-1", node="b"))

    with pytest.raises(GenerationError, match="fenced"):
        await put_manifest(store, PREFIX, manifest(G, 0, 1, run="zombie"))
    with pytest.raises(GenerationError, match="fenced"):
        await put_manifest(store, PREFIX, manifest(G, 0, 1, data=b"other bytes"))


async def test_many_finishers_at_once_agree(store: Store) -> None:
    for rank in range(2):
        await put_rank(store, rank)
    done: list[bool] = []

    async def one() -> None:
        done.append(await finish(store, PREFIX, G))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(8):
            tasks.create_task(one())

    assert done == [True] * 8
    assert await verify(store, PREFIX, G) == ()


class Cut:
    """A store whose power is cut after some writes: an honest wrapper, not a fake."""

    def __init__(self, store: Store, writes: int) -> None:
        self._store = store
        self._left = writes
        self.url = store.url

    def _count(self, key: str) -> None:
        self._left -= 1
        if self._left < 0:
            raise StoreUnavailable(key, "power is gone")

    async def put(
        self, key: str, data: memoryview, *, progress: Callable[[int], None] | None = None
    ) -> None:
        self._count(key)
        await self._store.put(key, data, progress=progress)

    async def create(self, key: str, data: bytes) -> bool:
        self._count(key)
        return await self._store.create(key, data)

    async def get(self, key: str) -> bytes:
        return await self._store.get(key)

    async def read(self, key: str, offset: int, into: memoryview) -> int:
        return await self._store.read(key, offset, into)

    async def list(self, prefix: str) -> Sequence[Entry]:
        return await self._store.list(prefix)

    async def delete(self, key: str) -> None:
        self._count(key)
        await self._store.delete(key)

    async def prepare(self, prefix: str) -> None:
        await self._store.prepare(prefix)

    async def clean(self, *, older_than: float = 60.0) -> int:
        self._count("")
        return await self._store.clean(older_than=older_than)


@pytest.mark.parametrize("writes", range(10))
async def test_a_commit_cut_off_anywhere_never_looks_whole_unless_it_is(
    store: Store, writes: int
) -> None:
    old = Generation(incarnation=1, step=5)
    await commit(store, old)
    # 3 writes a rank (body, pending, manifest), then .metadata, the pending one's end, the marker.
    try:
        await commit(Cut(store, writes), G)
    except StoreUnavailable:
        assert writes < 9
    else:
        assert writes == 9

    await finish_all(store, PREFIX)

    newest = await newest_complete(store, PREFIX)
    assert newest == (G if writes >= 6 else old)
    assert await verify(store, PREFIX, newest) == ()
    assert await was_ever_complete(store, PREFIX)


@pytest.mark.parametrize("writes", range(6))
async def test_retention_cut_off_anywhere_leaves_nothing_that_looks_whole(
    store: Store, writes: int
) -> None:
    new = Generation(incarnation=1, step=20)
    await commit(store, G)
    await commit(store, new)
    bodies = {e.key for e in await store.list(FOLDER) if e.key.endswith(".distcp")}
    try:
        await retain(Cut(store, writes), PREFIX, keep=1)
    except StoreUnavailable:
        assert writes < 5
    else:
        assert writes == 5

    left = {e.key for e in await store.list(FOLDER)}
    assert await finish_all(store, PREFIX) == ()
    assert [s.generation for s in await survey(store, PREFIX) if s.state is State.COMPLETE] == (
        [new, G] if writes == 0 else [new]
    )
    # No manifest outlives its body.
    assert bodies <= left or not any(key.endswith(".json") for key in left)
    assert await retain(store, PREFIX, keep=1) == ((G,) if writes < 5 else ())
    assert await store.list(FOLDER) == []


async def test_retention_spares_foreign_files_and_what_is_in_flight(store: Store) -> None:
    flight = Generation(incarnation=1, step=99)
    await commit(store, G)
    await commit(store, Generation(1, 20))
    await put_body(store, PREFIX, flight, "__0_0.distcp", memoryview(b"on its way"), rank=0)
    await store.put(f"{FOLDER}/notes.txt", memoryview(b"somebody's"))

    await retain(store, PREFIX, keep=1)

    assert [e.key for e in await store.list(FOLDER)] == [f"{FOLDER}/notes.txt"]
    assert await foreign(store, PREFIX) == (f"{FOLDER}/notes.txt",)
    assert len(await store.list(f"{PREFIX}/{flight.directory}")) == 1


async def test_a_walk_back_passes_over_torn_weights_only_and_corrupt(store: Store) -> None:
    weights, torn = Generation(1, 20), Generation(2, 3)
    await commit(store, G)
    await commit(store, weights, kind="weights")
    await put_body(store, PREFIX, torn, "__0_0.distcp", memoryview(b"half"), rank=0)

    assert await newest_complete(store, PREFIX) == G
    assert await newest_complete(store, PREFIX, kind="weights") == weights
    assert await newest_complete(store, PREFIX, below=G) is None
    assert [s.generation for s in await survey(store, PREFIX)] == [torn, weights, G]


async def test_a_zombies_late_step_does_not_beat_a_newer_incarnation(store: Store) -> None:
    await commit(store, Generation(incarnation=1, step=900))
    await commit(store, Generation(incarnation=2, step=30))

    assert await newest_complete(store, PREFIX) == Generation(incarnation=2, step=30)


async def test_an_empty_store_holds_nothing_and_says_so(store: Store) -> None:
    assert await survey(store, PREFIX) == ()
    assert await newest_complete(store, PREFIX) is None
    assert not await was_ever_complete(store, PREFIX)
    assert await jobs(store) == ()
    assert await retain(store, PREFIX, keep=1) == ()
    assert await finish_all(store, PREFIX) == ()
    assert not await finish(store, PREFIX, G)


async def test_the_marker_never_goes_back(store: Store) -> None:
    await commit(store, Generation(2, 5))
    before = await store.get(f"{PREFIX}/evac-job.json")
    await commit(store, Generation(1, 50))
    assert await store.get(f"{PREFIX}/evac-job.json") == before

    await store.put(f"{PREFIX}/evac-job.json", memoryview(b"{garbage"))
    assert await was_ever_complete(store, PREFIX)
    await finish(store, PREFIX, Generation(2, 5))
    assert await store.get(f"{PREFIX}/evac-job.json") == before


async def test_verify_finds_a_flipped_bit_wherever_it_is(store: Store, tmp_path: Path) -> None:
    data = os.urandom(9 * 1024 * 1024 + 5)
    made = without_metadata(manifest(G, 0, 1, data=data))
    await put_body(store, PREFIX, G, made.files[0].name, memoryview(data), rank=0)
    await put_manifest(store, PREFIX, made)
    await finish(store, PREFIX, G)
    seen: list[int] = []
    assert await verify(store, PREFIX, G, progress=seen.append) == ()
    assert sum(seen) == len(data)

    for place in (0, 4 * 1024 * 1024, len(data) - 1):
        bad = bytearray(data)
        bad[place] ^= 1
        await store.put(f"{FOLDER}/{made.files[0].name}", memoryview(bad))
        [problem] = await verify(store, PREFIX, G)
        assert problem.key == f"{FOLDER}/{made.files[0].name}"
        chunk = place // (4 * 1024 * 1024) * 4 * 1024 * 1024
        assert problem.reason == f"CRC-32C differs in 1 of 3 chunks, the first at byte {chunk}"


async def test_verify_reports_what_is_gone_and_goes_on(store: Store) -> None:
    await commit(store, G)
    await store.delete(f"{FOLDER}/__0_0.distcp")
    await store.delete(f"{FOLDER}/{manifest_name(1)}")
    await store.put(f"{FOLDER}/{METADATA}", memoryview(METADATA_BYTES[::-1]))

    problems = {p.key.removeprefix(FOLDER): p.reason for p in await verify(store, PREFIX, G)}

    assert problems == {
        "": "torn: no manifest of rank 1",
        "/__0_0.distcp": "no such object",
        "/.metadata": "SHA-256 does not match",
    }


async def test_verify_tells_what_goes_while_it_reads(store: Store, tmp_path: Path) -> None:
    await commit(store, G)

    def thin_out(_: int) -> None:
        (tmp_path / "store" / FOLDER / METADATA).unlink(missing_ok=True)

    [problem] = await verify(store, PREFIX, G, progress=thin_out)
    assert (problem.key, problem.reason) == (f"{FOLDER}/{METADATA}", "no such object")


async def test_verify_looks_only_at_the_ranks_it_was_asked_for(store: Store) -> None:
    await commit(store, G)
    await store.put(f"{FOLDER}/__0_0.distcp", memoryview(body_of(7)))

    assert await verify(store, PREFIX, G, ranks=[1]) == ()
    assert len(await verify(store, PREFIX, G, ranks=iter([0, 1]))) == 1


async def test_an_incarnation_is_above_all_that_was_ever_seen(store: Store) -> None:
    who = {"run": "r", "host": "h"}
    assert await claim_incarnation(store, PREFIX, claim=who) == 1
    assert await claim_incarnation(store, PREFIX, claim=who) == 2
    await put_metadata(store, PREFIX, Generation(incarnation=7, step=1), b"x")
    await store.put(f"{PREFIX}/incarnation-x.json", memoryview(b""))
    await store.put(f"{PREFIX}/incarnation-{'9' * 40}.json", memoryview(b""))
    assert await claim_incarnation(store, PREFIX, claim=who) == 8
    assert await claim_incarnation(store, PREFIX, above=20, claim=who) == 21


CLAIMER = """
import asyncio, sys
from evac.commit import claim_incarnation
from evac.store import open_store
store = open_store(sys.argv[1])
sys.stdin.readline()
for _ in range(5):
    print(asyncio.run(claim_incarnation(store, "user/job", claim={"run": "r"})))
"""


def test_processes_that_claim_at_once_get_different_numbers(store: Store) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", CLAIMER, store.url]
    pipe = subprocess.PIPE
    running = [
        subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env) for _ in range(4)
    ]
    said: list[str] = []

    def talk(process: "subprocess.Popen[str]") -> None:
        said.extend(process.communicate("go\n", timeout=60)[0].split())

    talks = [threading.Thread(target=talk, args=(process,)) for process in running]
    for one in talks:
        one.start()
    for one in talks:
        one.join()

    assert sorted(map(int, said)) == list(range(1, 21))
