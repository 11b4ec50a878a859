"""What several ranks hold is staged once per node, and a copy is the file that it copies."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType
from torch.distributed.checkpoint.state_dict_loader import load as load_checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from evac._adoption import AdoptedSlot, Adoption
from evac._memory import Mapping
from evac.commit import chunk_sums
from evac.generation import Generation
from evac.segment import HEADER_BYTES, PAGE, Header, check_files
from evac.torch import layout as layouts
from evac.torch import rank_state
from evac.torch.image import Image, read_objects, read_tensors, tail
from evac.torch.local_memory import LocalMemory
from evac.torch.rank_state import RankObjects
from evac.torch.restore import Restore
from evac.torch.sharing import batches
from evac.torch.sides import Outgrown
from evac.torch.state import TrainingState
from evac.torch.world import World
from tests.handlers.torch import ranks
from tests.handlers.torch.training import Run


def item(name: str) -> WriteItem:
    return WriteItem(MetadataIndex(name), WriteItemType.BYTE_IO)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[list[str], list[SavePlan], list[SavePlan]]:
    """Nodes of the ranks, what each holds, and what each was elected for."""
    nodes = draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=6))
    everyone = range(len(nodes))
    held: list[list[WriteItem]] = [[] for _ in everyone]
    elected: list[list[WriteItem]] = [[] for _ in everyone]
    for number in range(draw(st.integers(0, 8))):
        name = f"{draw(st.sampled_from('mo'))}{number}"
        holders = draw(st.lists(st.sampled_from(everyone), min_size=1, unique=True))
        for rank in holders:
            held[rank].append(item(name))
        elected[draw(st.sampled_from(holders))].append(item(name))
    return nodes, [SavePlan(one) for one in held], [SavePlan(one) for one in elected]


@given(jobs())
def test_every_node_that_holds_something_stages_it_once(
    job: tuple[list[str], list[SavePlan], list[SavePlan]],
) -> None:
    nodes, held, elected = job
    of_model = {one.index.fqn for plan in held for one in plan.items if one.index.fqn[0] == "m"}
    staged = [batches(rank, nodes, held, elected, of_model) for rank in range(len(nodes))]

    for node in set(nodes):
        here = [rank for rank, its in enumerate(nodes) if its == node]
        holds = {one.index.fqn for rank in here for one in held[rank].items}
        stages = [one.index.fqn for rank in here for b in staged[rank] for one in b.items]
        # Once, and what is elected elsewhere by ranks that hold all of its file.
        assert len(stages) == len(set(stages))
        assert set(stages) == holds
    for rank, mine in enumerate(staged):
        own = [one.index.fqn for batch in mine if batch.kind != "copy" for one in batch.items]
        assert sorted(own) == sorted(one.index.fqn for one in elected[rank].items)
        assert len({batch.name for batch in mine}) == len(mine)
    files = {b.name: b for mine in staged for b in mine if b.kind != "copy"}
    assert len(files) == sum(b.kind != "copy" for mine in staged for b in mine)
    for batch in (b for mine in staged for b in mine if b.kind == "copy"):
        assert [one.index for one in batch.items] == [o.index for o in files[batch.name].items]
        assert files[batch.name].held


def state(rank: int, world: int, fill: float) -> dict[str, Any]:
    """Replicated, sharded, both, and one rank's own."""
    torch.manual_seed(3)
    values = {name: torch.randn(6, 5) * fill for name in ("w", "sharded", "both")}
    flat = init_device_mesh("cpu", (world,))
    pairs = init_device_mesh("cpu", (2, world // 2))
    return {
        "model": {
            "w": values["w"],
            "sharded": distribute_tensor(values["sharded"], flat, [Shard(0)]),
            "both": distribute_tensor(values["both"], pairs, [Replicate(), Shard(0)]),
        },
        "optimizer": {"m": values["w"] + 1, "lr": 0.1 * fill},
        f"evac.rank{rank}": torch.full((8,), rank * fill),
    }


def staged(world: World, tree: dict[str, Any]) -> tuple[layouts.Layout, memoryview]:
    """A slot that holds *tree*, and how it lies there."""
    layout = layouts.plan(world, tree)
    check_files(layout.files, body_nbytes=layout.nbytes)
    behind = tail(layout)
    memory = memoryview(bytearray(behind.slot_nbytes))
    flat = layouts.flatten(tree, layout.keys)
    outgrown = Outgrown(layout.sides)
    tensors, objects = read_tensors(layout, flat), read_objects(layout, flat, outgrown)
    assert not isinstance(tensors, str)
    assert not isinstance(objects, str)
    Image(memory, layout, behind).write(tensors, objects, outgrown.pieces)
    header = behind.header(incarnation=1, step=1).pack()
    memory[: len(header)] = header
    return layout, memory


def stage(rank: int, folder: str) -> None:
    """Four ranks on two machines, each of which leaves the files that it holds in a folder."""
    world = dist.get_world_size()
    node = f"node{rank // 2}"
    layout, memory = staged(World(node), state(rank, world, 1.0))
    body = memory[PAGE : PAGE + layout.nbytes]
    for file in layout.files:
        path = Path(folder) / ("copies" if file.kind == "copy" else "store") / node / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        assert not path.exists()
        path.write_bytes(body[file.offset : file.offset + file.nbytes])
    if rank == 0:
        (Path(folder) / "metadata").write_bytes(layout.metadata)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("sharing")
    ranks.run(4, stage, str(made))
    return made


def _files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_copy_is_byte_for_byte_the_file_that_the_other_node_writes(folder: Path) -> None:
    for node, other in (("node0", "node1"), ("node1", "node0")):
        copies = _files(folder / "copies" / node)
        there = _files(folder / "store" / other)
        assert copies
        assert copies == {name: there[name] for name in copies}
        # What is not copied is what this node does not hold.
        assert not copies.keys() & _files(folder / "store" / node).keys()


def test_stock_dcp_load_needs_no_copies(folder: Path, tmp_path: Path) -> None:
    for node in ("node0", "node1"):
        for name, data in _files(folder / "store" / node).items():
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
    (tmp_path / ".metadata").write_bytes((folder / "metadata").read_bytes())
    torch.manual_seed(3)
    then = {name: torch.randn(6, 5) for name in ("w", "sharded", "both")}
    own = {f"evac.rank{rank}": torch.zeros(8) for rank in range(4)}
    tree: dict[str, Any] = {
        "model": {name: torch.zeros(6, 5) for name in then},
        "optimizer": {"m": torch.zeros(6, 5), "lr": 0.0},
        **own,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load_checkpoint(tree, checkpoint_id=tmp_path)

    for name, value in then.items():
        assert torch.equal(tree["model"][name], value)
    assert torch.equal(tree["optimizer"]["m"], then["w"] + 1)
    assert tree["optimizer"]["lr"] == 0.1
    assert [int(one[0]) for one in own.values()] == [0, 1, 2, 3]


def adopted(memory: bytes, layout: layouts.Layout, rank: int) -> AdoptedSlot:
    """What the daemon of a node would lend of one rank."""
    mapping = Mapping(-1, len(memory))
    memoryview(mapping)[:] = memory
    header = Header.unpack(memory[:HEADER_BYTES], slot_nbytes=len(memory))
    end = header.descriptor_offset + header.descriptor_nbytes
    told = json.loads(memory[header.descriptor_offset : end])
    parts = tuple((one["name"], one["offset"], one["nbytes"]) for one in told["files"])
    sums = [
        chunk_sums(memoryview(memory)[PAGE + offset : PAGE + offset + nbytes])
        for _, offset, nbytes in parts
    ]
    return AdoptedSlot(
        number=rank,
        rank=rank,
        world=dist.get_world_size(),
        run="",
        generation=Generation(1, 1),
        layout=layout.name,
        body=f"__{rank}_0.distcp",
        crc32c=tuple(one for file in sums for one in file),
        header=header,
        memory=mapping,
        parts=parts,
        weights_metadata_nbytes=told["weights_metadata_nbytes"],
    )


def out_of_own_memory(rank: int) -> None:
    """Restore with no store, each node from what its own two ranks have staged."""
    world = World(f"node{rank // 2}")
    run = Run(rank=rank, ddp=True)
    run.train()
    objects = RankObjects(run.scheduler, run.loader, {})
    data = objects.pack(step=1, rank=rank, world=world.size).block
    block = torch.zeros(rank_state.capacity(len(data)), dtype=torch.uint8)
    block.numpy()[: len(data)] = memoryview(data)
    tree = {**TrainingState(run.model, run.optimizer).read(), rank_state.name(rank): block}
    layout, memory = staged(world, tree)
    mine = {file.name for file in layout.files if file.kind != "copy"}
    here = [
        adopted(one, layout, other)
        for other, one in enumerate(world.gather(bytes(memory)))
        if other // 2 == rank // 2
    ]
    # It takes copies: one rank wrote each tensor, and half of them on the other node.
    assert {file.name for slot in here for file in slot.files} > mine
    then = run.digest()

    fresh = Run(rank=rank, seed=99, ddp=True)
    fresh.train()
    objects = RankObjects(fresh.scheduler, fresh.loader, {})
    state = TrainingState(fresh.model, fresh.optimizer)
    lent = LocalMemory(Adoption(tuple(here), lambda _: None))
    assert Restore(world, state, objects, (), "me/run", lent).run() == Generation(1, 1)
    assert fresh.digest() == then


def test_each_node_restores_out_of_its_own_memory() -> None:
    ranks.run(4, out_of_own_memory)
