"""evac's writer and reader under DCP's own save and load."""

import contextlib
import gc
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.planner import LoadPlan
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from evac import connect
from evac.errors import ConfigError
from evac.torch.dcp import EvacReader, EvacWriter
from evac.torch.local_memory import HERE
from evac.torch.origins import ELSEWHERE
from tests.agent.daemon.nodes import LIMIT, Node, node_at
from tests.handlers.torch import ranks

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")


def state(number: float, note: str = "") -> dict[str, Any]:
    weight = torch.full((600,), number)
    return {"model": {"w": weight, "b": weight[:3] * 2}, "optim": {"m": -weight}, "note": note}


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    pairs = ((one["model"]["w"], other["model"]["w"]), (one["optim"]["m"], other["optim"]["m"]))
    return all(torch.equal(a, b) for a, b in pairs) and one["note"] == other["note"]


@pytest.fixture
def writer(store: str) -> EvacWriter:
    return EvacWriter("run", store=store)


def test_stock_torch_loads_what_was_saved(writer: EvacWriter, tmp_path: Path) -> None:
    save(state(1.0, "a"), checkpoint_id="out/step-7", storage_writer=writer)

    (folder,) = tmp_path.glob("store/*/run/step-7.*")
    found = state(0.0)
    load(found, checkpoint_id=folder)
    assert equal(found, state(1.0, "a"))


def test_each_save_is_a_generation_and_the_newest_or_the_named_one_is_loaded(
    writer: EvacWriter, store: str
) -> None:
    for step in (1, 2, 3):
        save(state(step, "n" * step), checkpoint_id=f"step-{step}", storage_writer=writer)
    reader, found = EvacReader("run", store=store), state(0.0)

    assert reader.find() == 3
    load(found, storage_reader=reader)
    assert equal(found, state(3, "nnn"))
    assert reader.origins.nbytes.keys() == {store}
    load(found, checkpoint_id="step-2", storage_reader=reader)
    assert equal(found, state(2, "nn"))


def test_what_outgrows_its_room_is_laid_out_anew(writer: EvacWriter) -> None:
    save(state(1.0), checkpoint_id="step-1", storage_writer=writer)
    grown = {**state(2.0, "x" * 100_000), "more": torch.arange(5)}
    save(grown, checkpoint_id="step-2", storage_writer=writer)

    found = {**state(0.0), "more": torch.zeros(5, dtype=torch.int64)}
    load(found, storage_reader=writer.reader())
    assert equal(found, grown)
    assert torch.equal(found["more"], grown["more"])


class Copying:
    """Stages a copy, which nobody holds but who saves it."""

    should_synchronize_after_execute = False

    def __init__(self) -> None:
        self.copies: list[weakref.ref[torch.UntypedStorage]] = []

    def stage(self, tree: dict[str, Any]) -> dict[str, Any]:
        copied = deepcopy(tree)
        self.copies.append(weakref.ref(copied["model"]["w"].untyped_storage()))
        return copied

    def close(self) -> None: ...


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_of_a_save_is_held_once_it_has_ended(fails: bool, store: str) -> None:
    tree, staging = {"model": {"w": torch.ones(600)}}, Copying()
    with EvacWriter("run", store=None if fails else store) as writer:
        for step in (1, 2):
            saving = async_save(
                tree,
                checkpoint_id=f"step-{step}",
                storage_writer=writer,
                async_stager=staging,  # type: ignore[arg-type] # as its Protocol has it
            )
            assert isinstance(saving, Future)
            assert isinstance(saving.exception(), CheckpointException) == fails
            del saving
            gc.collect()
            assert [one() for one in staging.copies] == [None] * step


def test_a_generation_found_damaged_is_passed_over_by_the_next_load(
    writer: EvacWriter, tmp_path: Path
) -> None:
    for step in (1, 2):
        save(state(step), checkpoint_id=f"step-{step}", storage_writer=writer)
    (body,) = tmp_path.glob("store/*/run/step-2.*/weights/__0_0.distcp")
    data = bytearray(body.read_bytes())
    data[len(data) // 4] ^= 1
    body.write_bytes(data)
    reader, found = writer.reader(), state(0.0)

    with pytest.raises(CheckpointException, match="CRC-32C differs"):
        load(found, storage_reader=reader)
    assert equal(found, state(0.0))
    load(found, storage_reader=reader)
    assert equal(found, state(1))
    assert reader.find() == 1


def test_nothing_saved_is_none_and_no_place_to_save_is_an_error(
    writer: EvacWriter, tmp_path: Path
) -> None:
    assert writer.reader().find() is None
    with pytest.raises(CheckpointException, match="no evacd at"):
        save(state(1.0), checkpoint_id="step-1", storage_writer=EvacWriter("run"))
    with pytest.raises(ConfigError, match="a name that ends in the step"):
        save(state(1.0), checkpoint_id="latest", storage_writer=writer)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    for node in node_at(tmp_path / "node"):
        node.start()
        monkeypatch.setenv("EVAC_SOCKET", str(node.socket))
        yield node


def test_a_save_waits_until_the_only_slot_may_be_written_again(node: Node) -> None:
    with EvacWriter("run", slots=1, patience=0.0) as hasty:
        save(state(1.0), checkpoint_id="step-1", storage_writer=hasty)
        with pytest.raises(CheckpointException, match="step 1 is the newest"):
            save(state(2.0), checkpoint_id="step-2", storage_writer=hasty)

        hasty.patience = 60.0
        node.drain(600.0)
        save(state(2.0), checkpoint_id="step-2", storage_writer=hasty)
        node.event("commit.finished", generation={"incarnation": 1, "step": 2}, durable=True)


def load_what_lies_on_two_nodes(rank: int, sockets: list[str]) -> None:
    """Each rank's node has its own rank's bytes in memory, and its own store: no place has all of them."""
    client = connect("run", rank=rank, world=2, socket=sockets[rank])
    assert client.wait_connected(LIMIT)
    with EvacWriter("run", client=client) as writer:
        mine = {**state(1.0, "n"), f"rank{rank}": torch.full((4,), float(rank))}
        save(mine, checkpoint_id="step-1", storage_writer=writer)
        reader, every = writer.reader(), {"rank0": torch.zeros(4), "rank1": torch.zeros(4)}

        # The planner of one rank fails: all hear of it, and nobody waits for it.
        strange = {"nowhere": torch.zeros(1)} if rank == 1 else {}
        with pytest.raises(CheckpointException, match="nowhere"):
            load({**state(0.0), **strange}, storage_reader=reader)
        assert reader.find() == 1
        # One by one they cannot, and who has tried keeps nobody from loading together.
        found = {**state(0.0), **every}
        if rank == 0:
            with pytest.raises(CheckpointException, match="without no_dist"):
                load(found, storage_reader=reader, no_dist=True)
        assert equal(found, state(0.0))

        load(found, storage_reader=reader)
        assert reader.origins.nbytes.keys() == {HERE, ELSEWHERE}
    assert equal(found, mine)
    assert torch.equal(found["rank1"], torch.ones(4))


def test_ranks_hand_on_what_only_another_nodes_memory_has(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        nodes = [
            stack.enter_context(contextlib.contextmanager(node_at)(tmp_path / str(rank)))
            for rank in range(2)
        ]
        for one in nodes:
            one.start()
        ranks.run(2, load_what_lies_on_two_nodes, [str(one.socket) for one in nodes])


class Failing(DefaultLoadPlanner):
    """Fails at one point of a load, as where a rank has no memory left.

    Args:
        at: A method's name; "" for none.
    """

    def __init__(self, at: str) -> None:
        super().__init__()
        self._at = at

    def set_up_planner(self, *given: Any, **named: Any) -> None:
        self._reach("set_up_planner")
        super().set_up_planner(*given, **named)

    def create_local_plan(self) -> LoadPlan:
        self._reach("create_local_plan")
        return super().create_local_plan()

    def finish_plan(self, plan: LoadPlan) -> LoadPlan:
        self._reach("finish_plan")
        return super().finish_plan(plan)

    def _reach(self, point: str) -> None:
        if point == self._at:
            raise MemoryError(point)


def load_again(rank: int, store: str) -> None:
    writer, found = EvacWriter("run", store=store), state(0.0)
    save(state(1.0), checkpoint_id="step-1", storage_writer=writer)
    reader = writer.reader()
    for failing in (0, 1):
        for at in ("set_up_planner", "create_local_plan", "finish_plan"):
            planner = Failing(at if rank == failing else "")
            with pytest.raises(CheckpointException, match=at):
                load(found, storage_reader=reader, planner=planner)
            load(found, storage_reader=reader)
            assert equal(found, state(1.0))
    # Some of them may look first.
    assert reader.find() == 1
    if rank == 1:
        for _ in range(2):
            load(state(0.0), storage_reader=reader, no_dist=True)
    load(found, storage_reader=reader)


def test_a_load_that_fails_on_one_rank_wherever_is_tried_again_by_all(store: str) -> None:
    """All look anew for a generation, or none does: whoever did alone would wait for ever."""
    ranks.run(2, load_again, store)


def save_beside_training(rank: int, store: str) -> None:
    writer = EvacWriter("run", store=store)
    shard = torch.full((4,), float(rank))
    mine = {**state(1.0), f"rank{rank}": shard}
    # DCP's own collectives need a group that training does not use; evac's have one.
    group = dist.new_group(backend="gloo")
    saving: Any = async_save(
        mine, checkpoint_id="step-1", storage_writer=writer, process_group=group
    )
    for _ in range(5):
        dist.all_reduce(torch.ones(1))
    saving.result()
    for one in mine["model"].values():
        one.zero_()


def test_async_save_runs_beside_training_and_one_rank_loads_what_two_have_saved(
    store: str,
) -> None:
    ranks.run(2, save_beside_training, store)

    found = {**state(0.0), "rank0": torch.zeros(4), "rank1": torch.zeros(4)}
    load(found, storage_reader=EvacReader("run", store=store))
    assert equal(found, state(1.0))
    assert torch.equal(found["rank1"], torch.ones(4))
