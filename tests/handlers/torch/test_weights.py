"""Weights alone, with a real evacd: saved where no more fits, told as what they are, taken on request."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from evac import cli
from evac.errors import GenerationError
from tests.agent.daemon.nodes import Node, node_at, until
from tests.handlers.torch import scenes
from tests.handlers.torch.ranks import process
from tests.handlers.torch.training import Run, digest


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    yield from node_at(tmp_path / "node")


def test_weights_go_alone_where_no_more_fits_and_come_back_to_the_bit(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, left = f"file://{node.store}", tmp_path / "left"
    node.start("--plan-assumed-bytes-per-second", "10000", "--plan-commit-reserve-seconds", "0.5")
    job = process(scenes.stage_weights_and_hang, str(node.socket), 3, str(left))
    [unit] = until("step 3 is staged", lambda: _units(node, 3))
    # The rest is never through: its file's place is taken.
    (node.store / unit / "step-3.1" / "__0_0.distcp").mkdir(parents=True)

    node.drain(8.0)
    node.event("flush.finished", kind="weights")
    outcome = node.settled()[unit]
    job.kill()
    node.kill()

    assert outcome["kept"]
    assert cli.main(["ls", store, "--json"]) == 1
    [listed] = json.loads(capsys.readouterr().out)["jobs"]
    [status] = [one for one in listed["generations"] if one["state"] == "complete"]
    assert (status["kind"], status["step"]) == ("weights", 3)
    assert cli.main(["ls", store]) == 1
    assert "weights only" in capsys.readouterr().out
    assert cli.main(["verify", store, "--generation", "step-3.1"]) == 0
    assert "weights only" in capsys.readouterr().out
    cli.main(["report", "--journal", str(node.journal)])
    assert "weights alone" in capsys.readouterr().out
    with pytest.raises(GenerationError, match="allow_weights_only=True"):
        Run().saver(store=store).restore()
    run = Run(seed=99)
    assert run.saver(store=store).restore(allow_weights_only=True) == 3
    assert digest(run.model.state_dict()) == left.read_text()


def _units(node: Node, step: int) -> list[str]:
    """Who has staged *step*."""
    return [
        one["unit"]
        for one in node.status()["workloads"]
        if any(slot["state"] == "complete" and slot["step"] == step for slot in one["slots"])
    ]
