"""What could be staged and never restored is refused before anything is staged, and by name."""

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import FullyShardedDataParallel

from evac.errors import ConfigError, GenerationError
from evac.torch import Checkpointer
from evac.torch.layout import plan
from evac.torch.state import TrainingState
from evac.torch.target import rehearse
from evac.torch.world import World
from tests.handlers.torch import ranks
from tests.handlers.torch.fakes import FakeClient


def changing(change: Callable[[dict[str, Any], int], None]) -> torch.nn.Module:
    """A module whose state is another one at each call, as the hooks of some wrappers make it."""
    model, calls = torch.nn.Linear(3, 2), count(1)

    def hook(_module: torch.nn.Module, state: dict[str, Any], *_: Any) -> None:
        change(state, next(calls))

    model.register_state_dict_post_hook(hook)  # type: ignore[no-untyped-call] # torch has no types here
    return model


def rename(state: dict[str, Any], call: int) -> None:
    state[f"weight{call}"] = state.pop("weight")


def grow(state: dict[str, Any], call: int) -> None:
    state["weight"] = torch.zeros(call, 2)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (rename, r"model: only the checkpoint has weight\d"),
        (grow, r"Size mismatch .* for model\.weight"),
    ],
)
def test_what_could_not_be_restored_is_refused_at_planning(
    change: Callable[[dict[str, Any], int], None], reason: str
) -> None:
    model = changing(change)
    state = TrainingState(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(GenerationError, match=reason):
        rehearse(World(), plan(World(), state.read()), state, lambda _: {})


def test_nothing_of_it_is_staged_and_training_goes_on() -> None:
    model = changing(grow)
    client = FakeClient(["file:///nowhere"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    saver = Checkpointer(model=model, optimizer=optimizer, job="run", client=client.as_client())
    assert not saver.stage(1)
    assert "Size mismatch" in saver.stats.last_reason
    assert not client.kept
    saver.close()


def inside_the_older_fsdp(_rank: int) -> None:
    for shown in (False, True):
        inner = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Linear(6, 2))
        outer = FullyShardedDataParallel(
            inner, use_orig_params=shown, device_id=torch.device("cpu")
        )
        optimizer = torch.optim.AdamW(outer.parameters())
        outer(torch.ones(2, 6)).sum().backward()
        optimizer.step()
        for model in (inner, outer):
            with pytest.raises(ConfigError, match="a plain, DDP or fully_shard module"):
                TrainingState(model, optimizer)


def test_the_older_fsdp_is_refused_from_within_as_well() -> None:
    ranks.run(2, inside_the_older_fsdp)
