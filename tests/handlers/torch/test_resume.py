"""The promise itself: a run that was killed and resumed is, to the bit, one that was not."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.handlers.torch import training
from tests.handlers.torch.ranks import process

STEPS, KILLED = 9, 5


def train(folder: Path, *, world: int, store: str, kill_after: int = 0) -> list[dict[str, Any]]:
    """Run the training on *world* ranks; their reports, none where they were killed."""
    folder.mkdir()
    ranks = [
        process(training.train, rank, world, str(folder), store, STEPS, kill_after)
        for rank in range(world)
    ]
    for rank in ranks:
        rank.join(180)
    assert [rank.exitcode for rank in ranks] == [-signal.SIGKILL if kill_after else 0] * world
    return [] if kill_after else [json.loads((folder / str(r)).read_text()) for r in range(world)]


@pytest.mark.parametrize("world", [1, 2])
def test_a_killed_and_resumed_run_equals_an_uninterrupted_one_to_the_bit(
    tmp_path: Path, world: int
) -> None:
    whole = train(tmp_path / "whole", world=world, store=f"file://{tmp_path}/store-a")
    store = f"file://{tmp_path}/store-b"
    train(tmp_path / "killed", world=world, store=store, kill_after=KILLED)
    resumed = train(tmp_path / "resumed", world=world, store=store)

    for one, other in zip(resumed, whole, strict=True):
        assert one["first"] == KILLED
        assert one["losses"] == {k: v for k, v in other["losses"].items() if int(k) > KILLED}
        assert one["digest"] == other["digest"]
    if world == 2:
        assert whole[0]["losses"] != whole[1]["losses"]
