"""Where a process's generators stand is read and put back, also of those that its dataset holds."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from evac.torch.worker_numbers import WorkerNumbers, changed
from tests.handlers.torch.drawing import Own, noise


class Unbound:
    """A proxy of nothing."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"asked for {name}")


def test_they_go_on_from_where_they_stood() -> None:
    dataset = Own()
    numbers = WorkerNumbers(dataset)
    stood = numbers.read()
    drawn = [noise(), dataset[3].tolist()]
    numbers.put_back(stood)
    assert [noise(), dataset[3].tolist()] == drawn


def test_only_what_was_drawn_from_has_changed() -> None:
    numbers = WorkerNumbers(Own())
    stood = numbers.read()
    assert changed(numbers.read(), stood) == {}
    torch.rand(1)
    assert set(changed(numbers.read(), stood)) == {"torch"}
    random.random()
    np.random.rand()
    assert set(changed(numbers.read(), stood)) == {"torch", "python", "numpy"}


def test_a_generator_that_took_anothers_place_is_the_one() -> None:
    dataset = Own()
    numbers = WorkerNumbers(dataset)
    dataset.rng = np.random.default_rng(77)
    stood = numbers.read()
    drawn = dataset.rng.random()
    numbers.put_back(stood)
    assert dataset.rng.random() == drawn


@pytest.mark.parametrize(
    "holds",
    [
        Unbound,
        lambda: [Unbound()],
        lambda: {"a": Unbound()},
        lambda: list(range(9999)),
        lambda: int,
    ],
)
def test_what_a_dataset_holds_is_not_asked(holds: Callable[[], Any]) -> None:
    dataset = Own()
    dataset.held = holds()  # type: ignore[attr-defined] # anything
    # And around in a circle.
    dataset.self = dataset  # type: ignore[attr-defined] # itself
    numbers = WorkerNumbers(dataset)
    stood = numbers.read()
    drawn = dataset[1].tolist()
    numbers.put_back(stood)
    assert dataset[1].tolist() == drawn
