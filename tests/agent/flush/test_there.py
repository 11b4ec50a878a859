"""What lies in a store from a try that has ended is not planned to go once more, and nothing else is left out."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from evac.commit import chunk_sums
from evac.generation import WEIGHTS, Generation
from evac.segment import PAGE, BodyFile
from evac.store import Owner, Store
from evac.store.local import LocalStore
from evac.store.metered import Metered, Observation
from evacd.facts import Candidate, Kind, Unit
from evacd.flush.save import Saved, Saver, Unsaved
from evacd.flush.there import There
from evacd.workloads import Part
from evacd.workloads.checksums import Sums
from tests.handlers.commit.test_committing import Cut

UNIT, G, KINDS = "u/job", Generation(1, 5), st.sampled_from(("full", "weights"))


class Job(NamedTuple):
    """What is staged of it: ranks of this node, of the whole job, and whether weights lie apart."""

    ranks: int
    world: int
    apart: bool
    launch: int = 0

    def part(self, rank: int) -> Part:
        size = PAGE + 100 * (rank + 1) + self.launch
        data = memoryview(bytes([rank, self.launch]) * PAGE)[:size]
        files: tuple[BodyFile, ...] = (BodyFile(f"part{rank}.bin", 0, size),)
        if self.apart:
            rest = BodyFile(f"part{rank}.bin", PAGE, size - PAGE)
            files = (BodyFile(f"{WEIGHTS}/part{rank}.bin", 0, PAGE, WEIGHTS), rest)
        return Part(
            unit=UNIT, job="job", run="", generation=G, rank=rank, world=self.world, prefix=UNIT,
            owner=Owner(0, 0), body=f"part{rank}.bin", layout="plain", data=data, items=(),
            metadata=b"", sums=Summed(data, files), parts=files,
        )  # fmt: skip

    @property
    def parts(self) -> list[Part]:
        return [self.part(rank) for rank in range(self.ranks)]

    def unit(self, *lanes: str) -> Unit:
        sizes = [one for part in self.parts for one in part.files]
        found = [Candidate(G, sum(one.nbytes for one in sizes))]
        if self.apart:
            found.append(
                Candidate(G, sum(one.nbytes for one in sizes if one.kind == WEIGHTS), "weights")
            )
        return Unit(UNIT, 1, 0.0, lanes, tuple(found))


class Summed(Sums):
    """Sums of what lies in no slot."""

    def __init__(self, data: memoryview, files: Sequence[BodyFile]) -> None:
        self._sums = [chunk_sums(data[one.offset : one.offset + one.nbytes]) for one in files]

    async def of(self, file: int) -> tuple[int, ...]:
        return self._sums[file]


class Hangs(Cut):
    """A store that answers no more after some writes."""

    def __init__(self, store: Store, writes: int) -> None:
        super().__init__(store, writes)
        self.hangs = asyncio.Event()

    async def put(
        self, key: str, data: memoryview, *, progress: Callable[[int], None] | None = None
    ) -> None:
        await self._count_down()
        await super().put(key, data, progress=progress)

    async def create(self, key: str, data: bytes) -> bool:
        await self._count_down()
        return await super().create(key, data)

    async def _count_down(self) -> None:
        if self._left <= 0:
            self.hangs.set()
            await asyncio.Event().wait()


async def ended(saver: Saver, store: Store, job: Job, kind: Kind, *, lane: str) -> None:
    """A try in *store*, however it ends."""
    async with asyncio.TaskGroup() as tasks:
        trying = tasks.create_task(saver.save(job.parts, lane=lane, order="", kind=kind))
        if isinstance(store, Hangs):
            hung = tasks.create_task(store.hangs.wait())
            await asyncio.wait([trying, hung], return_when=asyncio.FIRST_COMPLETED)
            hung.cancel()
            trying.cancel()


@settings(max_examples=25, deadline=None)
@given(
    st.tuples(st.integers(1, 3), st.integers(0, 1), st.booleans()),
    st.lists(st.tuples(st.integers(0, 12), st.booleans(), KINDS), min_size=1, max_size=3),
    KINDS,
)
def test_what_is_counted_on_is_exactly_what_the_next_try_does_not_send(
    job: tuple[int, int, bool], tries: list[tuple[int, bool, Kind]], last: Kind
) -> None:
    """*tries*: after how many writes each ends, whether by being given up, and of what it is."""
    ranks, elsewhere, apart = job
    made = Job(ranks, ranks + elsewhere, apart)
    with TemporaryDirectory() as folder:
        asyncio.run(_tried(made, tries, last if apart else "full", Path(folder)))


async def _tried(
    job: Job, tries: Sequence[tuple[int, bool, Kind]], last: Kind, folder: Path
) -> None:
    lane = f"file://{folder}"
    local, sent = LocalStore(str(folder)), list[int]()

    def watch(one: Observation) -> None:
        if one.verb == "put" and one.key.endswith(".bin") and not one.reason:
            sent.append(one.nbytes)

    store: Store = local
    saver = Saver(lambda url, owner: store, node="node-1")
    for writes, given_up, kind in tries:
        store = Hangs(local, writes) if given_up else Cut(local, writes)
        await ended(saver, store, job, kind, lane=lane)
    seen = saver.there.less(job.unit(lane, "s3://other"))
    candidate = next(one for one in seen.candidates if one.kind == last)
    left = candidate.left_on(lane)
    assert candidate.left_on("s3://other") == candidate.nbytes

    store = Metered(local, watch, clock=lambda: 0.0)
    saved = await saver.save(job.parts, lane=lane, order="", kind=last)

    assert isinstance(saved, Saved)
    assert sum(sent) == left
    # And once it is committed, none of it is left, whole or not.
    after = saver.there.less(job.unit(lane))
    assert next(one for one in after.candidates if one.kind == last).left_on(lane) == 0


async def test_of_another_launch_of_the_same_step_nothing_is_there(tmp_path: Path) -> None:
    lane, store = f"file://{tmp_path}", LocalStore(str(tmp_path))
    saver = Saver(lambda url, owner: Cut(store, 2), node="node-1")
    first = Job(2, 2, apart=False)
    assert isinstance(await saver.save(first.parts, lane=lane, order=""), Unsaved)
    assert saver.there.less(first.unit(lane)).candidates[0].left_on(lane) == 0

    other = first._replace(launch=1).unit(lane)

    assert saver.there.less(other) == other


async def test_what_somebody_has_deleted_is_counted_on_no_longer_than_until_the_next_look(
    tmp_path: Path,
) -> None:
    lane, local = f"file://{tmp_path}", LocalStore(str(tmp_path))
    store: Store = Cut(local, 2)
    saver, job = Saver(lambda url, owner: store, node="node-1"), Job(2, 2, apart=False)
    await saver.save(job.parts, lane=lane, order="")
    await local.delete(f"{UNIT}/{G.directory}/part0.bin")

    store = Cut(local, 0)
    await saver.save(job.parts, lane=lane, order="")

    part = job.part(0).data.nbytes
    assert saver.there.less(job.unit(lane)).candidates[0].left_on(lane) == part


async def test_on_what_only_a_peers_memory_has_nothing_is_counted(tmp_path: Path) -> None:
    lane = "evac://peer:7000"
    saver = Saver(lambda url, owner: Cut(LocalStore(str(tmp_path)), 2), node="node-1")
    job = Job(2, 2, apart=False)
    await saver.save(job.parts, lane=lane, order="")

    assert saver.there.less(job.unit(lane)) == job.unit(lane)


def test_it_remembers_no_more_than_a_node_has_under_way() -> None:
    there = There()
    for number in range(3000):
        body = {f"u/{number}/body": 7}
        there.begin(f"u/{number}", G, "s3://a", url="s3://a", bodies={"full": body})
        there.written.named("s3://a", body)
    first, last = (
        Unit(f"u/{number}", 1, 0.0, ("s3://a",), (Candidate(G, 7),)) for number in (0, 2999)
    )

    assert there.less(first).candidates[0].left_on("s3://a") == 7
    assert there.less(last).candidates[0].left_on("s3://a") == 0
