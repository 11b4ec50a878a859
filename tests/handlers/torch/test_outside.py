"""What is trained beside the model, and by more than one optimizer, is kept as well."""

from typing import Any

import pytest
import torch

from evac.errors import GenerationError
from evac.torch import Checkpointer
from tests.handlers.torch.fakes import FakeClient
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


class Two:
    """A model of two halves, and an optimizer for each."""

    def __init__(self, seed: int, *, named: bool = False) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 600), torch.nn.Linear(600, 2))
        self.first = torch.optim.AdamW(self.model[0].parameters(), lr=0.01)
        self.second = torch.optim.SGD(self.model[1].parameters(), lr=0.01, momentum=0.9)
        both: Any = [self.first, self.second]
        self.optimizers = dict(zip(("slow", "fast"), both, strict=True)) if named else both

    def saver(self, **settings: Any) -> Checkpointer:
        given = {"optimizer": self.optimizers, "job": "run", "every": 1, **settings}
        return Checkpointer(model=self.model, **given)

    def backward(self) -> None:
        self.model(torch.ones(3, 4)).square().mean().backward()

    def train(self) -> None:
        self.backward()
        for one in (self.first, self.second):
            one.step()
            one.zero_grad()

    def digest(self) -> str:
        optimizers = [one.state_dict() for one in (self.first, self.second)]
        return digest([self.model.state_dict(), *optimizers])


@pytest.mark.parametrize("named", [False, True])
def test_each_of_several_optimizers_comes_back(store: str, named: bool) -> None:
    run = Two(seed=1, named=named)
    with run.saver(store=store) as saver:
        for step in (1, 2):
            run.train()
            assert saver.step(step), saver.stats
            wait_committed(store, step)
    again = Two(seed=2, named=named)
    assert again.saver(store=store).restore() == 2
    assert again.digest() == run.digest()
    for one in (run, again):
        one.train()
    assert again.digest() == run.digest()


def test_half_a_step_of_several_optimizers_is_not_staged() -> None:
    run, client = Two(seed=1), FakeClient(["file:///nowhere"])
    saver = run.saver(client=client.as_client())
    run.train()
    assert saver.step(1)
    run.backward()
    assert not saver.step(2)
    for one in (run.first, run.second):
        one.step()
    assert saver.step(3)
    saver.close()


def test_gradients_that_one_optimizer_will_never_take_hold_nothing_up() -> None:
    run, client = Two(seed=1), FakeClient(["file:///nowhere"])
    saver = run.saver(client=client.as_client())
    run.train()
    for step in range(1, 4):
        run.backward()
        run.second.step()  # a generator's; the discriminator zeroes what that left it
        assert saver.step(step), saver.stats
        run.train()
        client.free(client.kept[-1][0])
    saver.close()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"optimizer": []}, "optimizer: expected at least one"),
        ({"optimizer": ["adam"]}, "optimizer.0: expected an optimizer, got str"),
        ({"extra": {"optimizer.1": torch.nn.Linear(1, 1)}}, "extra: optimizer.1 is an optimizer's"),
    ],
)
def test_what_are_no_optimizers_is_told_at_once(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Two(seed=1).saver(**settings)
