"""Whether gradients wait for a step of the optimizer: half of a step is in no checkpoint.

Every generation is of a moment between two steps. Who accumulates gradients over several batches
has moments in between in which the loader has gone on and the weights have not; resumed from one
of those, a run never sees the batches whose gradients are gone.

So each step of the optimizer notes which gradients it took, by identity and version: about 0.2 us
a parameter. What lies in ``grad`` otherwise, and is not zero, waits. A flag that a step was taken
does not do: whoever stages by the clock comes in the middle of the next one.
"""

import weakref
from collections.abc import Iterator

import torch
from torch.distributed.fsdp import FSDPModule

# The same on every rank: what one of them finds, all of them report.
WAITS = "gradients wait for the optimizer's step, and no checkpoint holds them"


class Accumulation:
    """Watches the steps of *optimizers*, which train *model*.

    Where there are several, one of them may be left with gradients that it will never take: those
    which a generator's loss gives a discriminator. So it is half a step only where each that has
    gradients waits to take some.
    """

    def __init__(self, model: torch.nn.Module, *optimizers: torch.optim.Optimizer) -> None:
        self._model = model
        # Nobody makes a checkpointer in the middle of a step: what is there is left over.
        self._watched = [_Watched(one) for one in optimizers]

    def unfinished(self) -> str:
        """Why nothing can be staged now; "" between two steps."""
        waits = [one.waits() for one in self._watched if one.has_gradients()]
        return WAITS if (waits and all(waits)) or _unreduced(self._model) else ""

    def close(self) -> None:
        """Watch no more."""
        for one in self._watched:
            one.close()


class _Watched:
    """One optimizer, and which gradients it has taken."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._hook = optimizer.register_step_post_hook(self._note)
        self._note()

    def has_gradients(self) -> bool:
        return any(True for _ in _gradients(self._optimizer))

    def waits(self) -> bool:
        return any(_holds(one) for one in self._untaken())

    def close(self) -> None:
        self._hook.remove()

    def _untaken(self) -> Iterator[torch.Tensor]:
        for parameter, gradient in _gradients(self._optimizer):
            taken = self._taken.get(id(parameter))
            if taken is None or taken[0]() is not gradient or taken[1] != gradient._version:
                yield gradient

    def _note(self, *_arguments: object) -> None:
        """What is there now has been taken."""
        # Not by their ids, which are given out again, and not held, for they are large.
        self._taken: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {
            id(parameter): (weakref.ref(gradient), gradient._version)
            for parameter, gradient in _gradients(self._optimizer)
        }


def _gradients(
    optimizer: torch.optim.Optimizer,
) -> Iterator[tuple[torch.nn.Parameter, torch.Tensor]]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if (gradient := parameter.grad) is not None:
                # A DTensor's own version stays: fully_shard adds to what it wraps.
                yield parameter, getattr(gradient, "_local_tensor", gradient)


def _holds(gradient: torch.Tensor) -> bool:
    """Not so after ``zero_grad(set_to_none=False)``."""
    if gradient.is_sparse:
        return gradient._nnz() > 0
    return bool(gradient.any())


def _unreduced(model: torch.nn.Module) -> bool:
    """Whether `fully_shard` keeps gradients that it has not spread over the ranks yet.

    With ``set_requires_gradient_sync(False)`` or ``set_requires_all_reduce(False)`` they are
    in no parameter's ``grad``, and nothing public tells (torch 2.9-2.14, `_fully_shard`).
    """
    for module in model.modules():
        if not isinstance(module, FSDPModule):
            continue
        state = module._get_fsdp_state()
        groups = getattr(state, "_fsdp_param_groups", None)
        for group in groups if groups is not None else [state._fsdp_param_group]:
            if group is None:
                continue
            if getattr(group, "_partial_reduce_output", None) is not None:
                return True
            for one in group.fsdp_params:
                unsharded = getattr(one, "_unsharded_param", None)
                if getattr(one, "unsharded_accumulated_grad", None) is not None:
                    return True
                if unsharded is not None and unsharded.grad is not None:
                    return True
    return False
