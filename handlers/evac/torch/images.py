"""The slots that were laid out so far, each with its image; what a device writes to is pinned."""

from collections.abc import Callable, Sequence

import torch

from evac._memory import SlotMemory
from evac.torch.image import Image, Tail
from evac.torch.layout import BytesItem, Layout
from evac.torch.pinned import Pin, pinned


class Images:
    """Of one layout at a time.

    Args:
        pinned: Registers a slot's memory for the tensors that are copied to it; None where it need not be.
    """

    def __init__(
        self, pinned: Callable[[memoryview, Sequence[torch.Tensor]], Pin | None] = pinned
    ) -> None:
        self._pinned = pinned
        self._made: dict[int, tuple[Layout, Image]] = {}
        self._pins: dict[int, Pin] = {}

    def write(
        self,
        slot: SlotMemory,
        layout: Layout,
        behind: Tail,
        tensors: Sequence[torch.Tensor],
        objects: Sequence[tuple[BytesItem, bytes]],
        outgrown: Sequence[tuple[int, bytes]] = (),
    ) -> bool:
        """Copy one generation into *slot*; whether it was laid out for that first.

        Args:
            tensors: As `read_tensors` gave them.
            objects: As `read_objects` gave them.
            outgrown: See `Image.write`.
        """
        made, image = self._made.get(slot.number, (None, None))
        new = image is None or made is not layout or not image.holds(slot.memory)
        if new:
            self._unpin(slot.number)
            image = Image(slot.memory, layout, behind)
            self._made[slot.number] = (layout, image)
            if (pin := self._pinned(slot.memory, tensors)) is not None:
                self._pins[slot.number] = pin
        assert image is not None
        image.write(tensors, objects, outgrown)
        return new

    def clear(self) -> None:
        """Their memory is another one from now on, or nothing more is written."""
        for number in list(self._pins):
            self._unpin(number)
        self._made.clear()

    def _unpin(self, number: int) -> None:
        # Before the last view of the memory goes, which would unmap it.
        if (pin := self._pins.pop(number, None)) is not None:
            pin.close()
