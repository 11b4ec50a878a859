"""The shape that a checkpoint is loaded into, made without touching what is being trained.

torch's own `get_optimizer_state_dict` makes an empty optimizer's state by running a step.
Here it is made from what the checkpoint says it holds.
"""

import pickle
from collections.abc import Callable, Mapping, Sequence, Set
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.default_planner import create_default_local_load_plan
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.tensor import DTensor

from evac.errors import GenerationError
from evac.torch import apart
from evac.torch.extra import EXTRA, Tensors
from evac.torch.extra import like as like_of
from evac.torch.layout import Layout
from evac.torch.state import MODEL, OPTIMIZER, OUTSIDE, TrainingState
from evac.torch.world import World

# Where hyper-parameters lie, by the names of the parameters that they are for.
_GROUPS = (OPTIMIZER, "param_groups")


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
    extra: Callable[[Set[str]], Tensors],
    ranks: Ranks,
    *,
    where: str,
    device: torch.device | None = None,
) -> dict[str, Any]:
    """What `dcp.load` shall fill: the model's own tensors, and fresh ones for all else.

    Of two levels, since it gathers the upper one's keys: below each top all is flat. `settle` makes
    of it, filled, what `TrainingState.read` gives.

    Args:
        extra: Gives the likenesses of the extra objects of these names.
        where: The generation, for errors.
        device: Of the fresh ones; by default that of what they are for.

    Raises:
        GenerationError: The checkpoint is of another model, or of as many ranks as are not here.
    """
    paths: Mapping[str, tuple[Any, ...]] = metadata.planner_data or {}
    model, parameters = state.read_model(), state.parameters()
    _check_names(paths, model, ranks, where)
    mine = apart.name(ranks.rank)
    every = metadata.state_dict_metadata
    tree: dict[str, dict[str, Any]] = {}

    def place(top: str, key: str) -> tuple[dict[str, Any], str, Any]:
        """Where the value of *key* goes, and what is known of what was saved."""
        # A rank's objects are its own in any world, as its block is; of statistics it takes the first
        # rank's where other ranks saved them, as all do.
        if f"{mine}.{key}" in paths and (ranks.saved == ranks.world or top == EXTRA):
            return tree.setdefault(mine, {}), key, every[f"{mine}.{key}"]
        return tree.setdefault(top, {}), key.removeprefix(f"{top}."), every.get(key)

    for name, value in model.items():
        for key, one in flatten_state_dict({MODEL: {name: value}})[0].items():
            below, at, _ = place(MODEL, key)
            below[at] = one
    for name, one in state.outside().items():
        if (key := f"{OUTSIDE}.{name}") in paths:
            below, at, _ = place(OUTSIDE, key)
            below[at] = one.detach()
    elsewhere = ranks.names - model.keys()
    objects = extra({path[1] for path in paths.values() if path[0] == EXTRA})
    others = apart.others(metadata, ranks.rank) if ranks.saved == ranks.world else frozenset()
    for key, path in paths.items():
        if key in others:
            continue
        if path[0] == OPTIMIZER and not (len(path) > 2 and path[2] in elsewhere):
            like = parameters.get(str(path[2])) if len(path) > 2 else None
        elif path[0] == EXTRA and path[1] in objects:
            like = like_of(objects[path[1]], path[2])
        else:
            continue
        below, at, saved = place(path[0], key)
        below[at] = _blank(saved, like, device)
    if ranks.saved != ranks.world:
        _check_shared(paths, parameters, ranks, where)
        # Where a pipeline had more stages, its groups are put together out of all of theirs.
        for path in paths.values():
            if _of_groups(paths, path):
                tree.setdefault(path[0], {})[path[1]] = 0
    return tree


def settle(
    loaded: Mapping[str, Any], metadata: Metadata, state: TrainingState, ranks: Ranks
) -> dict[str, Any]:
    """A filled `target` as a tree, with a rank's own values in their places.

    Where others saved it the parameter groups are those of all of them, one after another. What is
    no part of a target stays as it is.
    """
    paths: Mapping[str, tuple[Any, ...]] = metadata.planner_data or {}
    tree: dict[str, Any] = {MODEL: _containers(state.read_model()), OPTIMIZER: {}}
    mine: dict[str, Any] = {}
    theirs: dict[str, dict[str, Any]] = {}
    for top, below in loaded.items():
        if not isinstance(below, Mapping):
            tree[top] = below
            continue
        for key, value in below.items():
            path = paths[f"{top}.{key}"]
            if ranks.saved != ranks.world and _of_groups(paths, path):
                theirs.setdefault(top, {})[key] = value
            else:
                mine[apart.plain(path) or f"{top}.{key}"] = value
    for key, path in paths.items():  # in the order in which they were saved
        if key in mine:
            _put(tree, path, mine[key])
    groups = list(tree[OPTIMIZER].get("param_groups", ()))
    for own in theirs.values():
        its: dict[str, Any] = {OPTIMIZER: {"param_groups": deepcopy(groups)}}
        for key, value in own.items():
            _put(its, paths[key], value)
        tree[OPTIMIZER]["param_groups"] += its[OPTIMIZER]["param_groups"]
    return tree


def rehearse(
    world: World,
    layout: Layout,
    state: TrainingState,
    extra: Callable[[Set[str]], Tensors],
) -> None:
    """Plan to restore what *layout* will hold, as the ranks that will have staged it. Collective.

    Else what can be staged and never restored would be found out on the day of the restore.

    Raises:
        GenerationError: On all ranks alike, where it cannot be restored.
    """
    what = "restore"
    names = frozenset[str]().union(*world.agree(what, state.names))

    def plan() -> None:
        metadata = pickle.loads(layout.metadata)
        ranks = Ranks(world.rank, world.size, world.size, names)
        tree = target(metadata, state, extra, ranks, where=what, device=torch.device("meta"))
        create_default_local_load_plan(flatten_state_dict(tree)[0], metadata)

    world.agree(what, plan)


def _of_groups(paths: Mapping[str, tuple[Any, ...]], path: Sequence[Any]) -> bool:
    """Whether a rank's own parameter groups lie at *path*."""
    key = apart.plain(path)
    return bool(key) and paths[key][:2] == _GROUPS


def _containers(value: Any) -> Any:
    """The same values in dicts and lists of their own: what a module gives out may be its own."""
    if isinstance(value, Mapping):
        return {key: _containers(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_containers(one) for one in value]
    return value


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
    for _, path in sorted(paths.items()):
        key = apart.plain(path)
        whose = paths[key][0] if key else ""
        if whose == OUTSIDE or (whose == MODEL and paths[key][1] in parameters):
            reason = (
                f"{key} was another one on each rank: {ranks.saved} ranks saved it, and no "
                f"{ranks.world} can go on from it"
            )
            raise GenerationError(where, reason)


def load_optimizer(
    state: TrainingState, loaded: Mapping[str, Any], ranks: Ranks, *, where: str
) -> None:
    """Hand the loaded state to the optimizer.

    Raises:
        GenerationError: Its parameter groups are others.
    """
    elsewhere = ranks.names - state.names()
    saved: Sequence[Mapping[str, Any]] = loaded.get("param_groups", [])
    current = state.parameter_names()
    groups = [
        {**saved[place], "params": names}
        if place < len(saved) and set(saved[place]["params"]) == set(names)
        else _group(names, saved, elsewhere)
        for place, names in enumerate(current)
    ]
    known = {name for group in saved for name in group["params"]}
    if None in groups or known - elsewhere != {name for names in current for name in names}:
        raise GenerationError(where, "optimizer: the parameter groups differ")
    # Names serve as numbers: the optimizer pairs saved and current parameters by position.
    state.optimizer.load_state_dict({"state": loaded.get("state", {}), "param_groups": groups})


def _group(
    names: Sequence[str], saved: Sequence[Mapping[str, Any]], elsewhere: Set[str]
) -> dict[str, Any] | None:
    """What holds for all of *names*, where they were a group, or groups of one kind."""
    mine = [one for one in saved if not set(names).isdisjoint(one["params"])]
    settings = [{key: value for key, value in one.items() if key != "params"} for one in mine]
    together = {name for one in mine for name in one["params"]}
    if (
        not mine
        or together - elsewhere != set(names)
        or any(one != settings[0] for one in settings)
    ):
        return None
    return {**settings[0], "params": names}


def _blank(saved: Any, like: torch.Tensor | None, device: torch.device | None) -> Any:
    if not isinstance(saved, TensorStorageMetadata):
        return 0
    dtype = saved.properties.dtype
    if like is None or like.shape != saved.size:
        return torch.empty(saved.size, dtype=dtype, device=device)
    if isinstance(like, DTensor):
        return torch.empty_like(like, dtype=dtype, device=device, requires_grad=False)
    return torch.empty(saved.size, dtype=dtype, device=device or like.device)


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
