"""Reads a model and its optimizer under DCP's names, and changes nothing by it.

`torch.distributed.checkpoint.state_dict.get_optimizer_state_dict` runs an optimizer step
with zeroed gradients and a learning rate of 0 where the optimizer has no state yet
(`_init_optim_state`, torch 2.9-2.14): step hooks fire, counters move. It also costs more
than all the rest of a stage. So the names are made here, from the same rules (wrappers of
DDP and torch.compile vanish, parameters go by name), and once per layout the result is
compared with torch's own.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
)
from torch.distributed.fsdp import FlatParameter, FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from evac.errors import ConfigError, GenerationError

MODEL, OPTIMIZER = "model", "optimizer"
# What an optimizer trains beside the model: a loss's temperature, a prompt.
OUTSIDE = "outside"


class TrainingState:
    """A model and its optimizer, by DCP's names.

    Args:
        others: More optimizers of the same model; no part of its state.

    Raises:
        ConfigError: The model is wrapped in the older FSDP, whose state has no stable names.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        others: Sequence[torch.optim.Optimizer] = (),
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self._others = others
        if any(isinstance(module, FullyShardedDataParallel) for module in model.modules()) or any(
            _flat(parameter) for parameter in model.parameters()
        ):
            raise ConfigError("Checkpointer", "model", "a plain, DDP or fully_shard module")

    def unready(self) -> str:
        """Why the state cannot be planned yet; "" where it can."""
        if self.optimizer.state or _stateless(self.optimizer):
            return ""
        return "the optimizer holds no state yet: call step() after the first optimizer.step()"

    def read(self) -> dict[str, Any]:
        """What `get_state_dict` would give: tensors are shared with training, not copied."""
        model = self.read_model()
        packed = self.optimizer.state_dict()
        names = self.parameter_names()
        by_number = dict(enumerate(name for group in names for name in group))
        state = {by_number.get(number, number): one for number, one in packed["state"].items()}
        groups = [
            {**group, "params": list(names)}
            for group, names in zip(packed["param_groups"], names, strict=True)
        ]
        outside = {name: one.detach() for name, one in self.outside().items()}
        return {MODEL: model, OPTIMIZER: {"state": state, "param_groups": groups}, OUTSIDE: outside}

    def read_model(self) -> dict[str, Any]:
        """The model's half of `read`."""
        rename = _renaming(self.model)
        return {rename(key): value for key, value in self.model.state_dict().items()}

    def parameter_names(self) -> list[list[str]]:
        """The optimizer's parameters by name, group by group; of one outside the model, by its place."""
        rename = _renaming(self.model)
        named = {id(one): rename(name) for name, one in self.model.named_parameters()}
        return [
            [
                named.get(id(one), f"{OUTSIDE}.{number}.{place}")
                for place, one in enumerate(group["params"])
            ]
            for number, group in enumerate(self.optimizer.param_groups)
        ]

    def outside(self) -> dict[str, torch.Tensor]:
        """The optimizer's parameters that are not the model's, by group and place in it.

        Raises:
            GenerationError: One looks as if the model's had been replaced under the optimizer.
        """
        mine = {id(one) for one in self.model.parameters()}
        found = {
            (number, place): one
            for number, group in enumerate(self.optimizer.param_groups)
            for place, one in enumerate(group["params"])
            if id(one) not in mine
        }
        untrained = self._untrained() if found else {}
        for (number, _), one in found.items():
            if name := untrained.get(one.shape):
                reason = (
                    f"param group {number} holds a parameter that is not the model's, and no "
                    f"optimizer holds the model's {name}: it was replaced after the optimizer was made"
                )
                raise GenerationError("optimizer", reason)
        return {f"{number}.{place}": one for (number, place), one in found.items()}

    def _untrained(self) -> dict[torch.Size, str]:
        """By shape, a parameter that takes gradients and that no optimizer steps."""
        optimizers = (self.optimizer, *self._others)
        stepped = {id(p) for o in optimizers for group in o.param_groups for p in group["params"]}
        return {
            one.shape: name
            for name, one in self.model.named_parameters()
            if one.requires_grad and id(one) not in stepped
        }

    def names(self) -> frozenset[str]:
        """Of all that the model holds."""
        return frozenset(self.read_model())

    def own(self) -> frozenset[tuple[str, ...]]:
        """Where in `read` lies what each rank has for itself: all of the model but its parameters."""
        return frozenset(
            (MODEL, name) for name in self.read_model().keys() - self._parameter_names()
        )

    def parameters(self) -> Mapping[str, torch.Tensor]:
        """The model's parameters by name, and the optimizer's others."""
        rename = _renaming(self.model)
        others = {f"{OUTSIDE}.{place}": one for place, one in self.outside().items()}
        return {rename(name): one for name, one in self.model.named_parameters()} | others

    def _parameter_names(self) -> set[str]:
        """The parameters' names, each by all that it has."""
        rename = _renaming(self.model)
        every = self.model.named_parameters(remove_duplicate=False)
        return {rename(name) for name, _ in every}

    def load_model(self, state: Mapping[str, Any]) -> None:
        """Put *state* (by DCP's names) in the model."""
        rename = _renaming(self.model)
        self.model.load_state_dict({key: state[rename(key)] for key in self.model.state_dict()})

    def check(self, state: Mapping[str, Any]) -> None:
        """Compare the names in *state*, from `read`, with those that torch gives.

        Raises:
            GenerationError: They differ: a wrapper that this version does not know.
        """
        theirs: set[str] = set(get_model_state_dict(self.model))
        if differing := theirs ^ set(state[MODEL]):
            raise GenerationError("model", f"unknown wrapper: {sorted(differing)[0]}")
        # Without a state, asking would run a step; of parameters outside torch's own names know nothing.
        if self.optimizer.state and not state[OUTSIDE]:
            osd = get_optimizer_state_dict(self.model, self.optimizer)
            if differing := set(osd["state"]) ^ set(state[OPTIMIZER]["state"]):
                raise GenerationError("optimizer", f"unknown wrapper: {sorted(differing)[0]}")


def _renaming(model: torch.nn.Module) -> Callable[[str], str]:
    """From a module's key to DCP's: DDP's and torch.compile's wrappers vanish."""
    wrapped = sorted(
        (
            f"{name}.module." if name else "module."
            for name, module in model.named_modules()
            if isinstance(module, DistributedDataParallel)
        ),
        key=len,
        reverse=True,
    )

    def rename(key: str) -> str:
        for prefix in wrapped:
            if key.startswith(prefix):
                key = prefix.removesuffix("module.") + key[len(prefix) :]
        return key.replace("_orig_mod.", "")

    return rename


def _flat(parameter: torch.Tensor) -> bool:
    # FullyShardedDataParallel around the model: what is inside holds pieces of one long tensor, whether
    # it shows them as such (`use_orig_params=False`) or by their old names (set in `_flat_param.py`).
    return isinstance(parameter, FlatParameter) or getattr(parameter, "_fsdp_flattened", False)


def _stateless(optimizer: torch.optim.Optimizer) -> bool:
    # Its state stays empty for ever; of any other optimizer that is empty, state will come.
    return isinstance(optimizer, torch.optim.SGD) and not any(
        group["momentum"] for group in optimizer.param_groups
    )
