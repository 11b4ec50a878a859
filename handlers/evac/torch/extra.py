"""Tensors of extra objects lie in the checkpoint as the model's do: laid out once, shared, resharded.

An exponential average is as large as the model. In a rank's block of bytes it would be pickled at
every stage, kept by every rank, and, where it is sharded, come back to as many ranks only. So tensors
of some size, and all DTensors, go under ``extra.<object>.<where>``, and the block says where. Small
ones stay in it: they may come and go from step to step, and a block does not mind.

What is equal on all ranks is staged once where that is sure to last, see `evac.torch.apart`: a module's
parameters and an optimizer's moments. Whatever else an object holds is each rank's own.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
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
    small: list[torch.Tensor] = []

    def take(value: torch.Tensor, where: str) -> Any:
        if not _is_large(value) or where in taken:
            small.append(value)
            return value
        taken[where] = value
        return Elsewhere(where)

    emptied = _walk(state, "", take)
    if wasted := _wasted(small):
        emptied = _walk(emptied, "", lambda one, _: _alone(one) if _buffer(one) in wasted else one)
    return emptied, taken


def _walk(value: Any, where: str, leaf: Callable[[torch.Tensor, str], Any]) -> Any:
    """*value* with what *leaf* makes of each tensor in its place."""
    if isinstance(value, torch.Tensor):
        return leaf(value, where)
    if not isinstance(value, dict | list):
        return value
    below = {place: _walk(one, _join(where, place), leaf) for place, one in _items(value)}
    if all(below[place] is one for place, one in _items(value)):
        return value
    # A copy of its own kind: a module's state carries its version as an attribute.
    changed = copy(value)
    for place, one in below.items():
        changed[place] = one
    return changed


def _wasted(small: Iterable[torch.Tensor]) -> set[int]:
    """The buffers of which *small* are views of little: pickled, a view brings all of its buffer.

    A bias that is a view of a model's one flat buffer would have all of that in a rank's block.
    """
    shown: Counter[int] = Counter()
    whole: dict[int, int] = {}
    for one in small:
        if buffer := _buffer(one):
            shown[buffer] += one.nbytes
            whole[buffer] = one.untyped_storage().nbytes()
    return {one for one, nbytes in whole.items() if nbytes >= _LEAST and nbytes > 2 * shown[one]}


def _buffer(value: torch.Tensor) -> int:
    """Which buffer it is a view of; 0 for none of those that are pickled whole."""
    known = type(value) in (torch.Tensor, torch.nn.Parameter) and _is_plain(value)
    return value.untyped_storage().data_ptr() if known else 0


def _alone(value: torch.Tensor) -> torch.Tensor:
    return value.detach().clone().requires_grad_(value.requires_grad)


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
    return _is_plain(value) and value.nbytes >= _LEAST


def _is_plain(value: torch.Tensor) -> bool:
    return value.layout == torch.strided and not value.is_quantized


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    return iter(value.items()) if isinstance(value, dict) else iter(enumerate(value))


def _join(where: str, place: Any) -> str:
    return f"{where}.{place}" if where else str(place)
