"""Whatever outgrows its place is staged all the same, at the end of its file, and read from there."""

import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.state_dict_loader import load

from evac.cli import main
from evac.commit import chunk_sums
from evac.segment import PAGE, check_files
from evac.store import open_store
from evac.torch import Checkpointer, rank_state
from evac.torch import layout as layouts
from evac.torch.dcp import EvacReader
from evac.torch.image import Image, read_objects, read_tensors, tail
from evac.torch.layout import Layout
from evac.torch.rank_state import RankObjects
from evac.torch.reader import StoreReader
from evac.torch.reader_bodies import Contents, Sums
from evac.torch.sides import Outgrown
from evac.torch.world import World
from tests.handlers.torch.test_stage import blank
from tests.handlers.torch.training import Run, digest, wait_committed

# Larger than any place of an object, and smaller than a file's end.
LARGE = 100_000
HUGE = 3_000_000


def state(objects: list[str], block: torch.Tensor) -> dict[str, Any]:
    """Objects in both files, tensors between them, and a rank's own block."""
    model = {str(n): one for n, one in enumerate(objects[::2])}
    rest = {str(n): one for n, one in enumerate(objects[1::2])}
    return {
        "model": {"w": torch.arange(3000.0), "objects": model},
        "optimizer": {"m": torch.arange(7.0), "objects": rest},
        rank_state.name(0): block,
    }


class Body:
    """One slot's memory, in which one generation after the other is staged."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        behind = tail(layout)
        self.memory = memoryview(bytearray(b"\xff" * behind.slot_nbytes))
        # As fresh memory is, but for what a predecessor may have left.
        for file in layout.files:
            self.memory[PAGE + file.offset : PAGE + file.offset + file.nbytes] = bytes(file.nbytes)
        for side in layout.sides:
            self.memory[PAGE + side.offset : PAGE + side.offset + 9] = b"leftovers"
        self._image = Image(self.memory, layout, behind)

    def stage(self, objects: list[str], data: bytes) -> bytes | None:
        """The body that comes of it; None where something does not fit."""
        layout, outgrown = self.layout, Outgrown(self.layout.sides)
        (item,) = (one for one in layout.tensors if rank_state.is_name(one.name))
        nbytes = item.shape.numel()
        fitted = rank_state.fitted(
            data, nbytes, lambda rest: outgrown.put(item.name, item.offset, rest)
        )
        if fitted is None:
            return None
        block = torch.zeros(nbytes, dtype=torch.uint8)
        block.numpy()[: len(fitted)] = memoryview(fitted)
        flat = layouts.flatten(state(objects, block), layout.keys)
        tensors, found = read_tensors(layout, flat), read_objects(layout, flat, outgrown)
        assert not isinstance(tensors, str), tensors
        if isinstance(found, str):
            assert "the end of the file is full" in found
            return None
        self._image.write(tensors, found, outgrown.pieces)
        return bytes(self.memory[PAGE : PAGE + layout.nbytes])


def read(layout: Layout, body: bytes, tree: dict[str, Any]) -> StoreReader:
    """Fill *tree* from the files of *body*, as they lie in a store."""
    with tempfile.TemporaryDirectory() as folder:
        bodies = {}
        for file in layout.files:
            data = body[file.offset : file.offset + file.nbytes]
            path = Path(folder, "g", file.name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            bodies[file.name] = Sums(len(data), chunk_sums(memoryview(data)))
        contents = Contents("g", layout.metadata, bodies)
        reader = StoreReader(partial(open_store, f"file://{folder}"), "it", contents)
        stock(tree, reader)
    return reader


def stock(tree: dict[str, Any], reader: Any = None, folder: Path | None = None) -> dict[str, Any]:
    """What `dcp.load` makes of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load(tree, storage_reader=reader, checkpoint_id=folder)
    return tree


class Text:
    """An object of a rank's own."""

    def __init__(self, text: str = "") -> None:
        self.text = text

    def state_dict(self) -> dict[str, str]:
        return {"text": self.text}

    def load_state_dict(self, state: dict[str, str]) -> None:
        self.text = state["text"]


def packed(size: int) -> bytes:
    """A rank's block, of which *size* bytes are a text."""
    objects = RankObjects(None, None, {"it": Text("x" * size)})
    return objects.pack(step=1, rank=0, world=1).block


SIZES = st.one_of(st.integers(0, 3_000), st.integers(20_000, 60_000), st.integers(100_000, 400_000))


@given(
    planned=st.tuples(SIZES, SIZES, SIZES),
    grown=st.lists(st.tuples(SIZES, SIZES, SIZES), min_size=1, max_size=3),
)
@settings(deadline=None, max_examples=30)
def test_whatever_size_it_grows_or_shrinks_to_it_is_read_back_or_refused_by_name(
    planned: tuple[int, int, int], grown: list[tuple[int, int, int]]
) -> None:
    name = rank_state.name(0)
    block = torch.zeros(rank_state.capacity(len(packed(planned[2]))), dtype=torch.uint8)
    layout = layouts.plan(World(), state(["a" * planned[0], "b" * planned[1]], block))
    check_files(layout.files, body_nbytes=layout.nbytes)
    body = Body(layout)
    for first, second, own in grown:
        objects, data = ["c" * first, "d" * second], packed(own)
        written = body.stage(objects, data)
        if written is None:
            assert max(first, second, own) > 60_000, "there was room"
            continue
        assert written == Body(layout).stage(objects, data), "it depends on what was there before"
        tree = state(["", ""], torch.empty_like(block))
        reader = read(layout, written, tree)
        document = rank_state.unpack(tree.pop(name), reader.beyond(name))
        assert document["extra"] == {"it": {"text": "x" * own}}
        wanted = state(objects, block)
        del wanted[name]
        assert digest(tree) == digest(wanted)


def test_where_nothing_can_grow_there_is_no_room() -> None:
    tensors = layouts.plan(World(), {"model": {"w": torch.ones(3)}, "optimizer": {"lr": 0.1}})
    weights, rest = tensors.files
    (side,) = tensors.sides
    assert weights.offset + weights.nbytes <= side.start == rest.offset
    assert side.offset + side.nbytes == rest.offset + rest.nbytes == tensors.nbytes


class Noted(torch.nn.Module):
    """Weights beside which lies an object."""

    def __init__(self) -> None:
        super().__init__()
        self.note = "short"

    def get_extra_state(self) -> dict[str, str]:
        return {"note": self.note}

    def set_extra_state(self, state: dict[str, str]) -> None:
        self.note = state["note"]

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return given


def noted(**given: Any) -> tuple[Run, Noted]:
    """A run with objects in each file and in the rank's block."""
    run, module = Run(**given), Noted()
    run.model.add_module("noted", module)
    run.optimizer.param_groups[0]["note"] = "short"
    return run, module


def grow(run: Run, module: Noted, by: int = 60_000) -> None:
    module.note = "n" * LARGE
    run.optimizer.param_groups[0]["note"] = "o" * LARGE
    run.loader._order += [place % 24 for place in range(by)]


def common(run: Run) -> dict[str, Any]:
    """What stock DCP is asked for."""
    model, optimizer = get_state_dict(run.model, run.optimizer)
    return {"model": dict(model), "optimizer": dict(optimizer)}


def folder_of(store: str, step: int) -> Path:
    (found,) = Path(store.removeprefix("file://")).glob(f"*/run/step-{step}.*")
    return found


@pytest.fixture
def outgrown(store: str) -> Iterator[tuple[Run, Checkpointer]]:
    """A run that has staged step 2, in which all of its objects have outgrown their places."""
    run, module = noted()
    saver = run.saver(store=store)
    for step in (1, 2):
        run.train()
        if step == 2:
            grow(run, module)
        assert saver.step(step), saver.stats
        wait_committed(store, step)
    assert saver.stats.skipped == 0
    yield run, saver
    saver.close()


def test_the_step_in_which_it_outgrew_is_restored_to_the_bit(
    store: str, outgrown: tuple[Run, Checkpointer]
) -> None:
    run, saver = outgrown
    again, module = noted(seed=99)
    with again.saver(store=store) as fresh:
        assert fresh.restore() == 2
    assert again.digest() == run.digest()
    assert module.note == "n" * LARGE
    run.train()
    # The ranks, here one, have agreed on places in which all of it lies.
    assert saver.step(3)
    wait_committed(store, 3)
    now = common(run)
    assert digest(stock(blank(now), folder=folder_of(store, 3))) == digest(now)


def test_stock_dcp_load_reads_all_else_and_refuses_that_by_what_to_do(
    store: str, outgrown: tuple[Run, Checkpointer]
) -> None:
    now, folder = common(outgrown[0]), folder_of(store, 2)
    tensors = {"model": {k: v for k, v in now["model"].items() if isinstance(v, torch.Tensor)}}
    assert digest(stock(blank(tensors), folder=folder)) == digest(tensors)
    with pytest.raises(CheckpointException, match=r"EvacReader.*evac export"):
        stock(blank(now), folder=folder)


def test_evacs_reader_reads_it_for_dcp_load(store: str, outgrown: tuple[Run, Checkpointer]) -> None:
    now = common(outgrown[0])
    reader = EvacReader(job="run", store=store)
    assert reader.find() == 2
    assert digest(stock(blank(now), reader)) == digest(now)
    reader.close()


def test_what_is_exported_is_read_by_stock_dcp_load(
    store: str, outgrown: tuple[Run, Checkpointer], tmp_path: Path
) -> None:
    now, root = common(outgrown[0]), store.removeprefix("file://")
    for command in (["ls", root], ["verify", root]):
        assert main(command) == 0
    assert main(["export", root, "--to", str(tmp_path / "all")]) == 0
    assert main(["export", root, "--weights-only", "--to", str(tmp_path / "weights")]) == 0

    assert digest(stock(blank(now), folder=tmp_path / "all")) == digest(now)
    weights = {"model": now["model"]}
    assert digest(stock(blank(weights), folder=tmp_path / "weights")) == digest(weights)


def test_without_torch_nothing_is_exported_that_torch_would_refuse(
    store: str, outgrown: tuple[Run, Checkpointer], tmp_path: Path
) -> None:
    program = (
        "import sys; sys.modules['torch'] = None; "
        "from evac.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    to = tmp_path / "all"
    command = [sys.executable, "-c", program, "export", store, "--to", str(to)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode
    assert "outgrown their places" in found.stderr
    assert "evac[torch]" in found.stderr
    assert not to.exists()


def test_what_is_too_large_even_for_that_costs_the_step_and_is_named(
    store: str, caplog: pytest.LogCaptureFixture
) -> None:
    run, module = noted()
    with run.saver(store=store) as saver:
        run.train()
        assert saver.step(1)
        run.train()
        module.note = "n" * HUGE
        assert not saver.step(2)
        assert "noted._extra_state.note is 3,00" in caplog.text
        assert "the end of the file is full" in caplog.text
        run.train()
        assert saver.step(3)
        wait_committed(store, 3)
    again, other = noted(seed=99)
    with again.saver(store=store) as saver:
        assert saver.restore() == 3
    assert other.note == module.note
