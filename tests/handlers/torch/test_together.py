"""A generation that no place has whole, and bytes that several ranks need, over real ranks."""

import asyncio
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from evac._adoption import AdoptedSlot, Adoption
from evac.commit import chunk_sums, put_body, put_manifest
from evac.errors import GenerationError
from evac.generation import Generation
from evac.manifest import COPY, File, Manifest
from evac.segment import PAGE
from evac.store import open_store
from evac.torch import rank_state
from evac.torch.layout import Layout
from evac.torch.local_memory import HERE, LocalMemory
from evac.torch.origins import ELSEWHERE, Origins
from evac.torch.rank_state import RankObjects
from evac.torch.restore import Restore
from evac.torch.rooms import common, grouped, meet
from evac.torch.state import TrainingState
from evac.torch.world import World
from evacd.clock import SystemClock
from evacd.peer import PeerServer, PeerSettings
from tests.handlers.torch import ranks
from tests.handlers.torch.test_sharing import adopted, staged
from tests.handlers.torch.training import Run, wait_committed

PREFIX = "me/run"
NEWEST = Generation(1, 2)


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[str]:
    token = tmp_path / "token"
    token.write_bytes(b"a token that nobody would guess")
    settings = PeerSettings("127.0.0.1", 0, token.read_bytes(), 256 << 20, 3600.0, 16)
    server = PeerServer(settings, SystemClock(), leaving=lambda: False, promised=lambda: 0)
    server.open()
    yield f"evac://127.0.0.1:{server.port}?token_file={token}"
    server.close()


def trained(world: World) -> tuple[Run, Layout, memoryview]:
    """A run of DDP after a step, and a slot that holds it."""
    run = Run(rank=world.rank, ddp=True)
    run.train()
    objects = RankObjects(run.scheduler, run.loader, {})
    data = objects.pack(step=NEWEST.step, rank=world.rank, world=world.size).block
    block = torch.zeros(rank_state.capacity(len(data)), dtype=torch.uint8)
    block.numpy()[: len(data)] = memoryview(data)
    tree = {**TrainingState(run.model, run.optimizer).read(), rank_state.name(world.rank): block}
    return run, *staged(world, tree)


def flush(url: str, layout: Layout, memory: memoryview, rank: int, generation: Generation) -> None:
    """As the daemon of a node that leaves does: one rank's own files, and its manifest."""
    body = memory[PAGE : PAGE + layout.nbytes]
    data = {
        one: body[one.offset : one.offset + one.nbytes] for one in layout.files if one.kind != COPY
    }
    files = tuple(
        File(one.name, one.nbytes, chunk_sums(some), one.kind, one.held)
        for one, some in data.items()
    )
    manifest = Manifest(
        job="run", run="", generation=generation, rank=rank, world=dist.get_world_size(),
        layout=layout.name, files=files, metadata_nbytes=len(layout.metadata),
        metadata_sha256=layout.name,
    )  # fmt: skip

    async def put() -> None:
        store = open_store(url)
        for one, some in data.items():
            await put_body(store, PREFIX, generation, one.name, some, rank=rank)
        await put_manifest(store, PREFIX, manifest, metadata=layout.metadata)

    asyncio.run(put())


def restored(
    world: World, slots: list[AdoptedSlot], stores: tuple[str, ...]
) -> tuple[Run, Generation | None, Origins]:
    """What a new process of this rank gets."""
    fresh = Run(rank=world.rank, seed=99, ddp=True)
    fresh.train()
    state = TrainingState(fresh.model, fresh.optimizer)
    objects = RankObjects(fresh.scheduler, fresh.loader, {})
    restore = Restore(world, state, objects, stores, PREFIX, LocalMemory(lent(slots)))
    return fresh, restore.run(), restore.origins


def lent(slots: list[AdoptedSlot]) -> Adoption:
    return Adoption(tuple(slots), lambda _: None)


def slot(layout: Layout, memory: memoryview, rank: int) -> AdoptedSlot:
    return replace(adopted(bytes(memory), layout, rank), generation=NEWEST)


def here_there_and_everywhere(rank: int, peer: str, store: str) -> None:
    """Rank 0's bytes are in a peer's memory, rank 1's in its own node's, rank 2's in the store."""
    world = World(f"node{rank}")
    run, layout, memory = trained(world)
    then = run.digest()
    flush(store, layout, memory, rank, Generation(1, 1))  # an older one, whole
    if rank != 1:
        flush(peer if rank == 0 else store, layout, memory, rank, NEWEST)
    dist.barrier()

    near = [slot(layout, memory, rank)] if rank == 1 else []
    fresh, generation, origins = restored(world, near, (store, peer))

    assert generation == NEWEST
    assert fresh.digest() == then
    # What several ranks hold is in rank 1's file, too: both others were handed that.
    assert set(origins.nbytes) == {peer, store, HERE, ELSEWHERE}
    assert peer in origins.told()

    # Without one of the three it is not whole: the older one is, in the store alone.
    fresh, generation, origins = restored(world, [], (store, peer))
    assert generation == Generation(1, 1)
    assert set(origins.nbytes) == {store}
    for without in ((store,), (peer,)):
        try:
            _, generation, _ = restored(world, near, without)
        except GenerationError:
            generation = None
        assert generation == (Generation(1, 1) if without == (store,) else None)


def test_ranks_whose_bytes_lie_in_three_kinds_of_places_are_restored_together(
    peer: str, store: str
) -> None:
    ranks.run(3, here_there_and_everywhere, peer, store)


def damaged_in_memory(rank: int, store: str) -> None:
    """What the one node that has it holds damaged is nobody's, on all ranks alike."""
    world = World(f"node{rank}")
    run, layout, memory = trained(world)
    then = run.digest()
    flush(store, layout, memory, rank, Generation(1, 1))
    if rank == 0:
        flush(store, layout, memory, rank, NEWEST)
    dist.barrier()
    mine = slot(layout, memory, rank)
    if rank == 1:
        (first, *_) = mine.files
        mine.memory[PAGE + first.offset + first.nbytes // 2] ^= 1
    fresh, generation, _ = restored(world, [mine] if rank else [], (store,))
    assert generation == Generation(1, 1)
    assert fresh.digest() == then


def test_what_is_damaged_in_the_only_memory_that_has_it_is_walked_back_from(store: str) -> None:
    ranks.run(2, damaged_in_memory, store)


def counted(rank: int, store: str) -> None:
    """How much four ranks read of a generation that lies in the store: on four nodes, two and one."""
    run, layout, memory = trained(World())
    flush(store, layout, memory, rank, NEWEST)
    dist.barrier()
    read = []
    for on_one in (1, 2, 4):
        fresh, generation, origins = restored(World(f"node{rank // on_one}"), [], (store,))
        assert generation == NEWEST
        assert fresh.digest() == run.digest()
        read.append(origins.nbytes[store])
    four, two, one = read
    in_common = two - one
    files = sum(World().gather(layout.nbytes))

    assert 0 < in_common < one <= files, read
    # Beside each rank's own: four times, twice, once.
    assert four == one + 3 * in_common, read


def test_ranks_of_one_node_read_what_all_of_them_need_once(store: str) -> None:
    ranks.run(4, counted, store)


def test_what_is_damaged_in_one_store_is_read_from_the_next(
    store: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run()
    with run.saver(store=store) as saver:
        run.train()
        assert saver.step(1), saver.stats
        wait_committed(store, 1)
    then, stores = run.digest(), (store, f"file://{tmp_path}/other")
    shutil.copytree(store.removeprefix("file://"), tmp_path / "other")
    for url, name in zip(stores, ("weights/__0_0.distcp", "__0_0.distcp"), strict=True):
        (body,) = Path(url.removeprefix("file://")).glob(f"*/run/step-1.1/{name}")
        data = bytearray(body.read_bytes())
        data[len(data) // 2] ^= 1
        body.write_bytes(data)
    (prefix,) = {
        str(one.parent.relative_to(tmp_path / "store"))
        for one in (tmp_path / "store").glob("*/run/step-1.1")
    }
    fresh = Run(seed=99)
    state = TrainingState(fresh.model, fresh.optimizer)
    objects = RankObjects(fresh.scheduler, fresh.loader, {})

    restore = Restore(World(), state, objects, stores, prefix)
    assert restore.run() == Generation(1, 1)

    assert fresh.digest() == then
    assert set(restore.origins.nbytes) == set(stores)
    assert caplog.text.count("another place has it as well") == 2


def test_who_would_share_with_two_that_do_not_share_stays_alone() -> None:
    assert grouped([0, 0, 2, 2]) == [0, 0, 2, 2]
    assert grouped([0, 0, 1, 3]) == [0, 0, 2, 3]


def rooms(rank: int) -> None:
    world = World(f"node{rank // 2}")
    groups = meet(world)
    assert groups == [0, 0, 2, 2]
    room, sharing = common(world, groups, {"a": 10, "b": 5000})
    assert sharing == groups
    if rank % 2 == 0:
        room.memory("b")[4999] = 7 + rank
    dist.barrier()
    assert room.memory("b")[4999] == 7 + rank - rank % 2
    room.drop()


def test_memory_is_shared_by_the_ranks_of_a_node_alone() -> None:
    ranks.run(4, rooms)
