"""What is trained beside the model, and by more than one optimizer, is kept as well."""

import pytest
import torch

from evac.errors import GenerationError
from evac.torch import Checkpointer
from tests.handlers.torch.training import digest, wait_committed


class Prompted:
    """A temperature that is the loss's and not the model's, trained by the same optimizer."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Linear(4, 4)
        self.temperature = torch.nn.Parameter(torch.rand(()))
        self.prompt = torch.nn.Parameter(torch.randn(4))
        groups = [
            {"params": [*self.model.parameters(), self.prompt]},
            {"params": [self.temperature]},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=0.1)

    def train(self) -> None:
        self.optimizer.zero_grad()
        answer = self.model(self.prompt) * self.temperature
        answer.square().mean().backward()
        self.optimizer.step()

    def saver(self, store: str) -> Checkpointer:
        return Checkpointer(
            model=self.model, optimizer=self.optimizer, job="run", store=store, every=1
        )

    def digest(self) -> str:
        own = [self.model.state_dict(), self.temperature, self.prompt]
        return digest([*own, self.optimizer.state_dict()])


def test_a_parameter_beside_the_model_is_kept_with_its_moments(store: str) -> None:
    run = Prompted(seed=1)
    with run.saver(store) as saver:
        run.train()
        assert saver.step(1), saver.stats
        wait_committed(store, 1)
    again = Prompted(seed=2)
    assert again.saver(store).restore() == 1
    assert again.digest() == run.digest()
    for one in (run, again):
        one.train()
    assert again.digest() == run.digest()


def test_a_parameter_beside_the_model_that_was_not_saved_is_refused(store: str) -> None:
    run = Prompted(seed=1)
    optimizer = torch.optim.AdamW(run.model.parameters())
    run.train()
    optimizer.step()
    with Checkpointer(
        model=run.model, optimizer=optimizer, job="run", store=store, every=1
    ) as saver:
        assert saver.step(1)
        wait_committed(store, 1)
    with pytest.raises(GenerationError, match="the parameter groups differ"):
        Prompted(seed=2).saver(store).restore()
