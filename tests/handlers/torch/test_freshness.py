"""Weights that stay as they were: told where they should not, whatever the learning rate is kept as."""

from typing import Any

import numpy as np
import pytest
import torch

from evac.torch import Checkpointer
from tests.handlers.torch.fakes import FakeClient


class Plain(torch.optim.SGD):
    """Takes its rate for what it is."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        return None


def unchanged(rates: list[Any], device: str = "cpu") -> int:
    """How often stages of a model that no step moves are complained about.

    Args:
        rates: Of the step before each stage but the first.
    """
    model = torch.nn.Linear(4, 4, device=device)
    optimizer = Plain(model.parameters(), lr=0.1)
    client = FakeClient(["file:///x"])
    saver = Checkpointer(model=model, optimizer=optimizer, job="j", client=client.as_client())
    for step, rate in enumerate([0.1, *rates], start=1):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        optimizer.param_groups[0]["lr"] = 0.1  # as a schedule would, before it is staged
        assert saver.stage(step), saver.stats
        client.free(0)
    saver.close()
    return saver.stats.unchanged


@pytest.mark.parametrize(
    "rate", [0.1, 1, torch.tensor(0.1), torch.tensor([0.0, 0.1]), np.float32(0.1), np.float64(0.1)]
)
def test_a_step_at_any_rate_has_to_move_something(rate: Any) -> None:
    assert unchanged([rate]) == 1


@pytest.mark.parametrize("rate", [0.0, 0, torch.tensor(0.0), torch.zeros(2), np.float32(0.0)])
def test_a_step_at_no_rate_moves_nothing(rate: Any) -> None:
    assert unchanged([rate]) == 0


@pytest.mark.parametrize("rate", [None, "fast", object(), torch.empty((), device="meta")])
def test_a_rate_that_is_no_number_ends_no_step_and_nothing_is_expected_of_it(rate: Any) -> None:
    assert unchanged([rate]) == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA device")
def test_a_rate_on_a_device_is_not_waited_for_in_a_step() -> None:
    model = torch.nn.Linear(4, 4, device="cuda")
    rates = [torch.tensor(value, device="cuda") for value in (0.0, 0.1)]
    optimizer = Plain(model.parameters(), lr=0.1)
    saver = Checkpointer(
        model=model, optimizer=optimizer, job="j", client=FakeClient(["file:///x"]).as_client()
    )
    optimizer.param_groups[0]["lr"] = rates[1]
    torch.cuda.set_sync_debug_mode("error")
    try:
        optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    saver.close()
    assert unchanged(rates, "cuda") == 1
