"""Several optimizers of one model: the first goes by DCP's names, and each other one is an extra object."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch

Optimizers: TypeAlias = (
    torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | Mapping[str, torch.optim.Optimizer]
)


def split(
    given: Optimizers, extra: Mapping[str, Any] | None
) -> tuple[torch.optim.Optimizer, tuple[torch.optim.Optimizer, ...], dict[str, Any]]:
    """The first of *given*, the others, and *extra* with those by name.

    Raises:
        ValueError: There is none, one of them is none, or a name of *extra* is taken.
    """
    if isinstance(given, Mapping):
        named = {f"optimizer.{key}": one for key, one in given.items()}
    elif isinstance(given, Sequence):
        named = {f"optimizer.{number}": one for number, one in enumerate(given)}
    else:
        named = {"optimizer": given}
    for name, one in named.items():
        if not isinstance(one, torch.optim.Optimizer):
            raise ValueError(f"{name}: expected an optimizer, got {type(one).__name__}")
    if not named:
        raise ValueError("optimizer: expected at least one")
    (_, first), *others = named.items()
    every = dict(extra or {})
    for name, one in others:
        if name in every:
            raise ValueError(f"extra: {name} is an optimizer's name")
        every[name] = one
    return first, tuple(one for _, one in others), every
