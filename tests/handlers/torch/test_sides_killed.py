"""Killed amid the copy of what has outgrown its place: the generation before it is restored whole."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from evac.torch.image import Image
from evac.torch.local_memory import HERE
from tests.agent.daemon.nodes import LIMIT, Node, node_at, until
from tests.handlers.torch import ranks
from tests.handlers.torch.killing import die
from tests.handlers.torch.test_sides_together import LARGE, everything
from tests.handlers.torch.training import Run, committed

GROWS = 3
# Nothing of the first of two is there; half of it; all of it; all of both, and not the pointers to them.
BEFORE, AMID, BETWEEN, BEHIND = "before", "amid", "between", "behind"


def torn(point: str) -> Callable[..., Any]:
    """For `sys.settrace`: ends the process where `Image.write` has come to *point*."""

    def lines(frame: FrameType, event: str, _: object) -> Any:
        known = frame.f_locals
        if event != "line" or not known["outgrown"] or "data" not in known:
            return lines
        begun, pointing = len(known["self"]._outgrown), "item" in known
        if point == BEHIND:
            if pointing:
                die()
        elif begun == (2 if point == BETWEEN else 1):
            if point == AMID:
                half = known["data"][: len(known["data"]) // 2]
                known["self"]._body[known["offset"] : known["offset"] + len(half)] = half
            die()
        return lines

    return lambda frame, _event, _: lines if frame.f_code is Image.write.__code__ else None


def train(rank: int, world: int, folder: str, socket: str, job: str, point: str) -> None:
    """A run of which the last rank dies in the stage in which it has outgrown its layout."""
    os.environ["EVAC_SOCKET"] = socket
    if world > 1:
        ranks.join(rank, world, f"{folder}/meet")
    run = Run(rank=rank, ddp=world > 1)
    run.optimizer.param_groups[0]["note"] = "short"
    saver = run.saver(job=job)
    for step in range(1, GROWS + 1):
        run.train()
        if step == GROWS and rank == world - 1:
            run.optimizer.param_groups[0]["note"] = "o" * LARGE
            run.loader._order += [place % 24 for place in range(60_000)]
            sys.settrace(torn(point))
        while not saver.stage(step):
            time.sleep(0.005)  # a busy machine may have no free slot yet
        Path(folder, f"{rank}.{step}").write_text(everything(run))
    signal.pause()  # it has staged that step: the other one is what is missing


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    for node in node_at(tmp_path_factory.mktemp("node")):
        node.start()
        yield node


@pytest.mark.parametrize(
    ("point", "world"), [(BEFORE, 1), (AMID, 1), (AMID, 2), (BETWEEN, 1), (BEHIND, 1)]
)
def test_the_generation_before_it_is_restored_whole(
    node: Node, tmp_path: Path, point: str, world: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, store = f"{point}-{world}", f"file://{node.store}"
    given = (world, str(tmp_path), str(node.socket), job, point)
    started = [ranks.process(train, rank, *given) for rank in range(world)]
    dying = started[-1]
    try:
        dying.join(LIMIT)
        assert dying.exitcode == -signal.SIGKILL
        staged = [Path(tmp_path, f"{rank}.{GROWS}") for rank in range(world - 1)]
        until("the others have staged that step", lambda: all(one.exists() for one in staged))
    finally:
        for one in started:
            one.kill()
            one.join(LIMIT)
    # What is left of the dead is saved at once: what is whole of it.
    until("it is in the store", lambda: committed(store, GROWS - 1, job))
    before = (tmp_path / f"0.{GROWS - 1}").read_text()
    for socket in (str(node.socket), f"{tmp_path}/none.sock"):
        monkeypatch.setenv("EVAC_SOCKET", socket)
        run = Run(seed=99)
        with run.saver(job=job, store=store, elastic_loader=True) as saver:
            assert saver.restore() == GROWS - 1
            assert (HERE in saver.origins.nbytes) == (socket == str(node.socket))
        assert everything(run) == before
    assert not committed(store, GROWS, job)
