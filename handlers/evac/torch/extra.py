"""Tensors of extra objects lie in the checkpoint as the model's do: laid out once, shared, resharded.

An exponential average is as large as the model. In a rank's block of bytes it would be pickled at
every stage, kept by every rank, and, where it is sharded, come back to as many ranks only. So tensors
of some size, and all DTensors, go under ``extra.<object>.<where>``, and the block says where. Small
ones stay in it: they may come and go from step to step, and a block does not mind.

What is equal on all ranks is staged once where that is sure to last, see `evac.torch.apart`: a module's
parameters and an optimizer's moments. Whatever else an object holds is each rank's own.
"""

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor

EXTRA = "extra"
# A page: a tensor of less is not worth an item of its own.
_LEAST = 4096

# Of each object, by where it lay in its state.
Tensors = Mapping[str, Mapping[str, torch.Tensor]]


@dataclass(frozen=True)
class Elsewhere:
    """Stands in a block for a tensor of the checkpoint.

    Attributes:
        key: Where it lay in its object's state.
    """

    key: str


def lift(state: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    """*state* with the tensors taken out, and those; *state* itself stays as it is."""
    taken: dict[str, torch.Tensor] = {}

    def walk(value: Any, where: str) -> Any:
        if isinstance(value, torch.Tensor):
            if not _is_large(value) or where in taken:
                return value
            taken[where] = value
            return Elsewhere(where)
        if not isinstance(value, dict | list):
            return value
        below = {place: walk(one, _join(where, place)) for place, one in _items(value)}
        if all(below[place] is one for place, one in _items(value)):
            return value
        # A copy of its own kind: a module's state carries its version as an attribute.
        emptied = copy(value)
        for place, one in below.items():
            emptied[place] = one
        return emptied

    return walk(state, ""), taken


def fill(emptied: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Put back what `lift` has taken out, in place where it can.

    Raises:
        KeyError: *tensors* lacks one.
    """
    if isinstance(emptied, Elsewhere):
        return tensors[emptied.key]
    if isinstance(emptied, dict | list):
        for place, one in list(_items(emptied)):
            if (filled := fill(one, tensors)) is not one:
                emptied[place] = filled
    return emptied


def likenesses(one: Any) -> dict[str, torch.Tensor]:
    """What `lift` would take out of an object now; of an optimizer also its parameters.

    Before its first step an optimizer holds nothing, and what it will hold is spread as they are.
    """
    if not isinstance(one, torch.optim.Optimizer):
        return lift(one.state_dict())[1]
    every = [parameter for group in one.param_groups for parameter in group["params"]]
    return {f"state.{number}": parameter for number, parameter in enumerate(every)}


def like(tensors: Mapping[str, torch.Tensor], key: str) -> torch.Tensor | None:
    """Of `likenesses`, the one for *key*, where there is one."""
    return tensors.get(key, tensors.get(key.rpartition(".")[0]))


def own(objects: Mapping[str, Any]) -> frozenset[tuple[str, ...]]:
    """What `lift` takes out of *objects* and is each rank's own by kind: beginnings of paths."""
    found: set[tuple[str, ...]] = set()
    for name, one in objects.items():
        if isinstance(one, torch.optim.Optimizer):
            continue
        shared: set[str] = set()
        if isinstance(one, torch.nn.Module):
            shared = {key for key, _ in one.named_parameters(remove_duplicate=False)}
        found |= {(EXTRA, name, key) for key in lift(one.state_dict())[1] if key not in shared}
    return frozenset(found)


def _is_large(value: torch.Tensor) -> bool:
    if isinstance(value, DTensor):
        return True
    plain = value.layout == torch.strided and not value.is_quantized
    return plain and value.nbytes >= _LEAST


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    return iter(value.items()) if isinstance(value, dict) else iter(enumerate(value))


def _join(where: str, place: Any) -> str:
    return f"{where}.{place}" if where else str(place)
