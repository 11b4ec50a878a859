"""Guards against staging old weights again: a checkpoint that succeeds and holds nothing new.

A reference that was cached once, or a copy that training no longer writes to, gives the same
bytes for ever, and every report says success (NeMo-RL#3312 is one such: 110 steps). So a sample of
what was staged is compared with that of the stage before: up to 16 of the optimizer's parameters,
spread over the model, 4 KiB out of the middle of each. It is read from the slot, in host memory,
and costs less than a tenth of a millisecond.
"""

import hashlib
from collections.abc import Callable, Sequence
from numbers import Real

import torch

from evac.segment import PAGE
from evac.torch.layout import Layout, TensorItem
from evac.torch.state import MODEL

_TENSORS, _EACH = 16, 4096


class Freshness:
    """Feed it each stage; it says whether the weights are those of the one before.

    Args:
        optimizer: Only where it has taken a step, at a learning rate above 0, must they differ.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.unchanged = 0
        self._stepped = False
        # What is known on a device alone, and waited for only where it matters.
        self._moved: dict[torch.device, torch.Tensor] = {}
        self._last: tuple[str, bytes] | None = None
        self._sampled: tuple[str, Sequence[TensorItem]] = ("", ())
        self._hook = optimizer.register_step_post_hook(self._took_step)

    def staged(
        self, memory: memoryview, layout: Layout, trained: Callable[[], Sequence[Sequence[str]]]
    ) -> str:
        """A generation is in the slot *memory*; what is wrong with it, or "".

        Args:
            trained: Gives the names of the optimizer's parameters, group by group.
        """
        items = self._sample(layout, trained)
        stepped, self._stepped = self._stepped, False
        moved, self._moved = self._moved, {}
        if not items:
            return ""  # another rank stages what this one holds
        total = hashlib.blake2b(digest_size=16)
        for item in items:
            nbytes = item.dtype.itemsize * item.shape.numel()
            start = PAGE + item.payload + max(nbytes - _EACH, 0) // 2
            total.update(memory[start : start + min(nbytes, _EACH)])
        last, self._last = self._last, (layout.name, total.digest())
        if last != self._last or not (stepped or any(bool(one) for one in moved.values())):
            return ""
        self.unchanged += 1
        return (
            "the optimizer has stepped, and the weights staged are those of the stage before, byte "
            f"for byte ({len(items)} tensors, up to {_EACH} bytes of each): is the model that is "
            "saved the one that trains?"
        )

    def close(self) -> None:
        """Watch the optimizer no more."""
        self._hook.remove()

    def _sample(
        self, layout: Layout, trained: Callable[[], Sequence[Sequence[str]]]
    ) -> Sequence[TensorItem]:
        if self._sampled[0] != layout.name:
            names = {f"{MODEL}.{name}" for group in trained() for name in group}
            found = [one for one in layout.tensors if one.name in names and one.shape.numel()]
            every = max(1, len(found) // _TENSORS)
            self._sampled = (layout.name, found[::every][:_TENSORS])
        return self._sampled[1]

    def _took_step(self, optimizer: torch.optim.Optimizer, *_arguments: object) -> None:
        for group in optimizer.param_groups:
            moves = _moves(group.get("lr", 1.0))
            if isinstance(moves, torch.Tensor):
                before = self._moved.get(moves.device)
                self._moved[moves.device] = moves if before is None else before | moves
            else:
                self._stepped |= moves


def _moves(rate: object) -> bool | torch.Tensor:
    """Whether a step at this learning rate moves anything; for one on a device, there.

    A schedule that warms up from 0 moves nothing at first. Of a rate that is no number nothing is
    expected: this runs within the optimizer's step, and must neither end it nor wait for a device.
    """
    if isinstance(rate, torch.Tensor):
        if type(rate) not in (torch.Tensor, torch.nn.Parameter) or rate.is_meta:
            return False
        moves = rate.detach().ne(0).any()
        return bool(moves) if moves.device.type == "cpu" else moves
    if isinstance(rate, Real):
        return rate != 0
    return False
