"""The shape that a checkpoint is loaded into, made without touching what is being trained.

torch's own `get_optimizer_state_dict` makes an empty optimizer's state by running a step.
Here it is made from what the checkpoint says it holds.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.tensor import DTensor

from evac.errors import GenerationError
from evac.torch import apart
from evac.torch.state import MODEL, OPTIMIZER, TrainingState


@dataclass(frozen=True)
class Ranks:
    """Who restores, and who saved.

    Attributes:
        saved: How many ranks wrote the checkpoint.
        names: What the models of all ranks hold, together: a pipeline's stages hold each a part.
    """

    rank: int
    world: int
    saved: int
    names: Set[str]


def target(
    metadata: Metadata,
    state: TrainingState,
    ranks: Ranks,
    *,
    where: str,
    device: torch.device | None = None,
) -> dict[str, Any]:
    """What `dcp.load` shall fill: the model's own tensors, and fresh ones for the optimizer.

    `settle` makes of it, filled, what `TrainingState.read` gives.

    Args:
        where: The generation, for errors.
        device: Of the fresh ones; by default that of their parameters.

    Raises:
        GenerationError: The checkpoint is of another model, or of as many ranks as are not here.
    """
    paths: Mapping[str, tuple[Any, ...]] = metadata.planner_data or {}
    model = state.read_model()
    _check_names(paths, model, ranks, where)
    parameters = state.parameters()
    mine = apart.name(ranks.rank)
    own = {path[1] for path in paths.values() if ranks.saved == ranks.world and path[0] == mine}
    if ranks.saved != ranks.world:
        _check_shared(paths, parameters, ranks, where)
    tree: dict[str, Any] = {MODEL: {}, OPTIMIZER: {}}
    if own:
        tree[mine] = {}
    elsewhere = ranks.names - model.keys()
    for key, path in paths.items():
        if path[0] != OPTIMIZER or (len(path) > 2 and path[2] in elsewhere):
            continue
        parameter = parameters.get(str(path[2])) if len(path) > 2 else None
        stored = f"{mine}.{key}" if key in own else key
        fresh = _blank(metadata.state_dict_metadata[stored], parameter, device)
        if key in own:
            tree[mine][key] = fresh
        else:
            _put(tree, path, fresh)
    for name, value in model.items():
        flat, places = flatten_state_dict({MODEL: {name: value}})
        if own.isdisjoint(flat):
            tree[MODEL][name] = value
            continue
        for key, one in flat.items():
            if key in own:
                tree[mine][key] = one
            else:
                _put(tree, places[key], one)
    return tree


def settle(loaded: Mapping[str, Any], metadata: Metadata, rank: int) -> dict[str, Any]:
    """A filled `target` with this rank's own values in their places."""
    paths: Mapping[str, tuple[Any, ...]] = metadata.planner_data or {}
    mine = apart.name(rank)
    tree = {key: value for key, value in loaded.items() if key != mine}
    for key, value in loaded.get(mine, {}).items():
        _put(tree, paths[key], value)
    return tree


def _check_names(
    paths: Mapping[str, tuple[Any, ...]], model: Mapping[str, Any], ranks: Ranks, where: str
) -> None:
    saved = {path[1] for path in paths.values() if path[0] == MODEL}
    if missing := saved - ranks.names:
        raise GenerationError(where, f"model: only the checkpoint has {min(missing)}")
    if missing := model.keys() - saved:
        raise GenerationError(where, f"model: only this model has {min(missing)}")


def _check_shared(
    paths: Mapping[str, tuple[Any, ...]],
    parameters: Mapping[str, torch.Tensor],
    ranks: Ranks,
    where: str,
) -> None:
    """Statistics may be another rank's; a parameter that was another one on each may not."""
    for path in paths.values():
        key = apart.plain(path)
        if key and paths[key][0] == MODEL and paths[key][1] in parameters:
            reason = (
                f"{key} was another one on each rank: {ranks.saved} ranks saved it, and no "
                f"{ranks.world} can go on from it"
            )
            raise GenerationError(where, reason)


def load_optimizer(state: TrainingState, loaded: Mapping[str, Any], *, where: str) -> None:
    """Hand the loaded state to the optimizer.

    Raises:
        GenerationError: Its parameter groups are others.
    """
    current = state.parameter_names()
    groups: Sequence[Mapping[str, Any]] = loaded.get("param_groups", [])
    if [set(group["params"]) for group in groups] != [set(names) for names in current]:
        raise GenerationError(where, "optimizer: the parameter groups differ")
    # Names serve as numbers: the optimizer pairs saved and current parameters by position.
    ordered = [{**g, "params": names} for g, names in zip(groups, current, strict=True)]
    state.optimizer.load_state_dict({"state": loaded.get("state", {}), "param_groups": ordered})


def _blank(saved: Any, parameter: torch.Tensor | None, device: torch.device | None) -> Any:
    if not isinstance(saved, TensorStorageMetadata):
        return 0
    dtype = saved.properties.dtype
    if parameter is None or parameter.shape != saved.size:
        return torch.empty(saved.size, dtype=dtype, device=device)
    if isinstance(parameter, DTensor):
        return torch.empty_like(parameter, dtype=dtype, device=device, requires_grad=False)
    return torch.empty(saved.size, dtype=dtype, device=device or parameter.device)


def _put(tree: dict[str, Any], path: Sequence[Any], value: Any) -> None:
    """Set ``tree[path[0]][path[1]]...``; a number is a place in a list."""
    at: Any = tree
    for step, following in zip(path, (*path[1:], None), strict=True):
        if isinstance(step, int):
            at.extend([None] * (step + 1 - len(at)))
        last = following is None
        held = at[step] if isinstance(step, int) else at.get(step)
        if last:
            at[step] = value
        elif held is None:
            at[step] = [] if isinstance(following, int) else {}
        at = at[step]
