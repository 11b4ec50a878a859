"""dcp.save and dcp.load with evac's writer and reader, killed and resumed to the bit."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.agent.daemon.nodes import Node, node_at
from tests.handlers.torch.ranks import join
from tests.handlers.torch.training import digest
from tests.integration.examples.runs import end_here, proven, report

STEPS, KILLED = 9, 5


def train(rank: int, world: int, folder: str, kill_after: int) -> None:
    from integration.examples import checkpoint

    torch.set_num_threads(1)
    if world > 1:
        join(rank, world, f"{folder}/meet{kill_after}")
    losses: dict[int, str] = {}

    def each(step: int, loss: torch.Tensor) -> None:
        losses[step] = digest(loss)
        if step == kill_after:
            end_here()

    store = None if os.path.exists(os.environ["EVAC_SOCKET"]) else f"file://{folder}/store"
    # Two trainings beside each other on one node are two jobs.
    state = checkpoint.train(STEPS, each, job=Path(folder).name, store=store)
    report(rank, folder, losses, digest(state))
    if world > 1:
        dist.destroy_process_group()


@pytest.mark.parametrize("world", [1, 2])
def test_without_a_daemon_each_save_is_whole_when_it_returns(tmp_path: Path, world: int) -> None:
    proven(train, tmp_path, killed=KILLED, world=world)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    for node in node_at(tmp_path / "node"):
        monkeypatch.setenv("EVAC_SOCKET", str(node.socket))
        yield node


@pytest.mark.parametrize("world", [1, 2])
def test_with_a_daemon_each_save_outlives_the_process(
    node: Node, tmp_path: Path, world: int
) -> None:
    node.start()

    proven(train, tmp_path, killed=KILLED, world=world)
