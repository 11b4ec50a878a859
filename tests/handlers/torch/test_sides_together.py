"""Ranks of which one outgrows its layout: it stages with nobody, no step is lost, and none when they are killed."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from evac.manifest import COPY
from evac.segment import PAGE
from evac.torch import layout as layouts
from evac.torch.image import Image, read_objects, read_tensors, tail
from evac.torch.local_memory import HERE
from evac.torch.sides import Outgrown
from evac.torch.world import World
from tests.agent.daemon.nodes import LIMIT, Node, node_at, until
from tests.handlers.torch import ranks
from tests.handlers.torch.fakes import FakeClient
from tests.handlers.torch.ranks import process
from tests.handlers.torch.training import Run, committed, digest

# Larger than any place of an object, and smaller than a file's end.
LARGE = 100_000
STEPS, GROWS = 5, 3


def alone(rank: int, folder: str) -> None:
    """Rank 1 outgrows its layout, and rank 0 does nothing until that step is staged."""
    copied(rank, folder)
    client, run = FakeClient([f"file://{folder}/store"]), Run(rank=rank, ddp=True)
    saver = run.saver(client=client.as_client(), every=1)
    step, staged = 0, Path(folder, "staged")
    while not enough(len(client.reservations) > 1):
        step += 1
        run.train()
        if step == 2 and rank == 1:
            run.loader._order = [place % 24 for place in range(60_000)]
        if step == 2 and rank == 0:
            until("rank 1 has staged", staged.exists)
        assert saver.step(step), saver.stats
        if step == 2 and rank == 1:
            staged.touch()
        for number, _ in client.kept:
            if number not in client._free:
                client.free(number)
    told = {
        "kept": [kept for _, kept in client.kept],
        "layouts": [one["layout"] for one in client.reservations],
    }
    Path(folder, str(rank)).write_text(json.dumps(told))
    saver.close()


def copied(rank: int, folder: str) -> None:
    """Two nodes hold an object, which outgrows its place on both; they leave the files of it."""

    def tree(text: str) -> dict[str, Any]:
        return {"optimizer": {"m": torch.ones(3), "text": text}}

    layout = layouts.plan(World(f"node{rank}"), tree("short"))
    behind = tail(layout)
    memory = memoryview(bytearray(behind.slot_nbytes))
    image = Image(memory, layout, behind)
    # One of them has staged something else there before.
    for text in ["y" * LARGE * 2] * rank + ["x" * LARGE]:
        flat, aside = layouts.flatten(tree(text), layout.keys), Outgrown(layout.sides)
        tensors, objects = read_tensors(layout, flat), read_objects(layout, flat, aside)
        assert not isinstance(tensors, str)
        assert not isinstance(objects, str)
        assert aside.names == ["optimizer.text"]
        image.write(tensors, objects, aside.pieces)
    for file in layout.files:
        start = PAGE + file.offset
        path = Path(folder, file.kind, file.name)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(memory[start : start + file.nbytes])


def enough(mine: bool) -> bool:
    every = torch.tensor(float(mine))
    dist.all_reduce(every)
    return float(every) == dist.get_world_size()


def test_a_rank_that_outgrew_its_layout_stages_with_nobody_and_no_step_is_lost(
    tmp_path: Path,
) -> None:
    ranks.run(2, alone, str(tmp_path))
    one, other = (json.loads((tmp_path / str(rank)).read_text()) for rank in range(2))
    assert one["layouts"] == other["layouts"]
    assert len(set(one["layouts"])) == 2
    assert one["kept"] == other["kept"] == list(range(1, len(one["kept"]) + 1))
    copies = {path.name: path.read_bytes() for path in (tmp_path / COPY).iterdir()}
    assert any(b"x" * LARGE in data for data in copies.values())
    for name, data in copies.items():
        assert data == (tmp_path / "rest" / name).read_bytes()


def everything(run: Run) -> str:
    """As `Run.digest`, wrapped or not."""
    common = [list(run.model.parameters()), run.optimizer.state_dict(), run.scheduler.state_dict()]
    return digest([*common, run.loader.state_dict(), torch.get_rng_state()])


def train(rank: int, folder: str, socket: str, killed: bool) -> None:
    """A run whose objects outgrow their places at step `GROWS`; killed then, once all have staged it."""
    os.environ["EVAC_SOCKET"] = socket
    ranks.join(rank, 2, f"{folder}/meet")
    run = Run(rank=rank, ddp=True)
    run.optimizer.param_groups[0]["note"] = "short"
    saver = run.saver() if socket else None
    first = (saver.restore() or 0) if saver else 0
    losses: dict[int, str] = {}
    for step in range(first + 1, STEPS + 1):
        losses[step] = run.train()
        if step == GROWS:
            run.optimizer.param_groups[0]["note"] = "o" * LARGE
            run.loader._order += [place % 24 for place in range(50_000 + 10_000 * rank)]
        while saver and not saver.stage(step):
            time.sleep(0.005)  # a busy machine may have no free slot yet
        if killed and step == GROWS:
            Path(folder, f"{rank}.staged").write_text(everything(run))
            until("all have staged", lambda: len(list(Path(folder).glob("*.staged"))) == 2)
            os.kill(os.getpid(), signal.SIGKILL)
    here = list(saver.origins.nbytes) if saver else []
    if saver:
        saver.close()
    report = {"first": first, "losses": losses, "digest": run.digest(), "origins": here}
    Path(folder, str(rank)).write_text(json.dumps(report))
    dist.destroy_process_group()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    for node in node_at(tmp_path / "node"):
        node.start()
        yield node


def test_killed_in_that_step_all_ranks_go_on_from_it_to_the_bit(node: Node, tmp_path: Path) -> None:
    def go(name: str, socket: str, killed: bool = False) -> list[Any]:
        folder = tmp_path / name
        folder.mkdir()
        started = [process(train, rank, str(folder), socket, killed) for rank in range(2)]
        for one in started:
            one.join(LIMIT)
            one.kill()
        assert [one.exitcode for one in started] == [-signal.SIGKILL if killed else 0] * 2
        return [] if killed else [json.loads((folder / str(rank)).read_text()) for rank in (0, 1)]

    go("killed", str(node.socket), killed=True)
    # What is left of the dead is saved at once; one rank alone goes on from there as well.
    store = f"file://{node.store}"
    until("it is in the store", lambda: committed(store, GROWS))
    single = Run(seed=99)
    with single.saver(store=store, elastic_loader=True) as saver:
        assert saver.restore() == GROWS
    assert single.optimizer.param_groups[0]["note"] == "o" * LARGE
    assert everything(single) == (tmp_path / "killed" / "0.staged").read_text()

    resumed = go("resumed", str(node.socket))
    for one, other in zip(resumed, go("whole", ""), strict=True):
        assert one["first"] == GROWS
        assert one["origins"] == [HERE]
        assert one["losses"] == {k: v for k, v in other["losses"].items() if int(k) > GROWS}
        assert one["digest"] == other["digest"]
