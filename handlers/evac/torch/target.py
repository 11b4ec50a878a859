"""The shape that a checkpoint is loaded into, made without touching what is being trained.

torch's own `get_optimizer_state_dict` makes an empty optimizer's state by running a step.
Here it is made from what the checkpoint says it holds.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.tensor import DTensor

from evac.errors import GenerationError
from evac.torch.state import MODEL, OPTIMIZER, TrainingState


def target(metadata: Metadata, state: TrainingState, *, where: str) -> dict[str, Any]:
    """What `dcp.load` shall fill: the model's own tensors, and fresh ones for the optimizer.

    Args:
        where: The generation, for errors.

    Raises:
        GenerationError: The checkpoint is of another model.
    """
    paths: Mapping[str, tuple[Any, ...]] = metadata.planner_data or {}
    tree: dict[str, Any] = {OPTIMIZER: {}}
    parameters = state.parameters()
    for key, path in paths.items():
        if path[0] == OPTIMIZER:
            parameter = parameters.get(str(path[2])) if len(path) > 2 else None
            _put(tree, path, _blank(metadata.state_dict_metadata[key], parameter))
    model = state.read_model()
    saved = {path[1] for path in paths.values() if path[0] == MODEL}
    if differing := saved ^ set(model):
        name = min(differing)
        whose = "the checkpoint" if name in saved else "this model"
        raise GenerationError(where, f"model: only {whose} has {name}")
    return {MODEL: model, OPTIMIZER: tree[OPTIMIZER]}


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


def _blank(saved: Any, parameter: torch.Tensor | None) -> Any:
    if not isinstance(saved, TensorStorageMetadata):
        return 0
    dtype = saved.properties.dtype
    if parameter is None or parameter.shape != saved.size:
        return torch.empty(saved.size, dtype=dtype)
    if isinstance(parameter, DTensor):
        return torch.empty_like(parameter, dtype=dtype, requires_grad=False)
    return torch.empty(saved.size, dtype=dtype, device=parameter.device)


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
