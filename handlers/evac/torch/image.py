"""Writes generations into slots: frames once per slot, then payloads only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from evac.segment import PAGE, Header, SlotState, aligned, describe
from evac.torch.layout import MOST_ZEROS, BytesItem, Layout, TensorItem, encode, local
from evac.torch.sides import Outgrown


@dataclass(frozen=True)
class Tail:
    """What lies behind the body in a slot, and how large that makes the slot."""

    descriptor: bytes
    metadata: bytes
    body_nbytes: int

    @property
    def descriptor_offset(self) -> int:
        """In the slot, as is everything here."""
        return PAGE + self.body_nbytes

    @property
    def metadata_offset(self) -> int:
        """Behind the descriptor, at a page of its own."""
        return aligned(self.descriptor_offset + len(self.descriptor))

    @property
    def slot_nbytes(self) -> int:
        """Size of a slot that holds it all."""
        return aligned(self.metadata_offset + len(self.metadata))

    def header(self, *, incarnation: int, step: int) -> Header:
        """The header of a complete generation."""
        return Header(
            state=SlotState.COMPLETE,
            incarnation=incarnation,
            step=step,
            body_nbytes=self.body_nbytes,
            descriptor_offset=self.descriptor_offset,
            descriptor_nbytes=len(self.descriptor),
            metadata_offset=self.metadata_offset,
            metadata_nbytes=len(self.metadata),
        )


def tail(layout: Layout) -> Tail:
    """The tail that goes with *layout*."""
    weights = layout.weights_metadata
    descriptor = describe(layout.items(), layout.files, len(weights))
    return Tail(descriptor, layout.metadata + weights, layout.nbytes)


class Image:
    """One slot's memory, laid out; made once per slot and written to at every generation.

    Args:
        memory: The whole slot, header page included.
    """

    def __init__(self, memory: memoryview, layout: Layout, behind: Tail) -> None:
        self._memory = memory
        self._body = memory[PAGE : PAGE + layout.nbytes]
        self._ends: dict[str, int] = {}
        for item in layout.tensors:
            end = item.offset + item.nbytes
            self._body[item.offset : item.payload] = item.prefix
            self._body[end - len(item.suffix) : end] = item.suffix
        for offset, data in (
            (behind.descriptor_offset, behind.descriptor),
            (behind.metadata_offset, behind.metadata),
        ):
            memory[offset : offset + len(data)] = data
        self._views = [_view(self._body, item) for item in layout.tensors]
        # Where what has outgrown its place lies, or left in this memory, for all we know.
        self._outgrown = [(side.offset, side.nbytes) for side in layout.sides]

    def holds(self, memory: memoryview) -> bool:
        """Whether it was made for this very memory."""
        return self._memory.obj is memory.obj

    def write(
        self,
        sources: Sequence[torch.Tensor],
        objects: Sequence[tuple[BytesItem, bytes]],
        outgrown: Sequence[tuple[int, bytes]] = (),
    ) -> None:
        """Copy one generation in; returns when the last byte is in place.

        Args:
            sources: As `read_tensors` gave them.
            objects: As `read_objects` gave them.
            outgrown: What goes elsewhere in the body, see `Outgrown.pieces`.
        """
        _copy(self._views, sources)
        # A file is the same whatever its memory held before: another node may stage a copy of it.
        while self._outgrown:
            offset, nbytes = self._outgrown.pop()
            self._body[offset : offset + nbytes] = bytes(nbytes)
        for offset, data in outgrown:
            self._outgrown.append((offset, len(data)))
            self._body[offset : offset + len(data)] = data
        for item, data in objects:
            end = item.offset + len(data)
            self._body[item.offset : end] = data
            # What a longer predecessor left behind; the room is zeros to begin with.
            if (stale := self._ends.get(item.name, item.offset + item.nbytes)) > end:
                self._body[end:stale] = bytes(stale - end)
            self._ends[item.name] = end


def read_tensors(layout: Layout, flat: Mapping[str, Any]) -> list[torch.Tensor] | str:
    """The tensors to copy, in the layout's order and shared with training, or what differs."""
    if flat.keys() != layout.keys:
        appeared = sorted(flat.keys() - layout.keys)
        name = (appeared or sorted(layout.keys - flat.keys()))[0]
        return f"{name} {'is new' if appeared else 'is gone'}"
    found = []
    for item in layout.tensors:
        value = flat[item.name]
        if not isinstance(value, torch.Tensor):
            return f"{item.name} was a tensor and is a {type(value).__name__}"
        shard = local(value)
        if shard.shape != item.shape or shard.dtype != item.dtype:
            was = f"{tuple(item.shape)} {item.dtype}"
            return f"{item.name} was {was} and is {tuple(shard.shape)} {shard.dtype}"
        found.append(shard)
    return found


def read_objects(
    layout: Layout, flat: Mapping[str, Any], outgrown: Outgrown
) -> list[tuple[BytesItem, bytes]] | str:
    """All other objects as bytes, or which of them fits neither its place nor the end of its file."""
    found = []
    for item in layout.objects:
        if isinstance(flat[item.name], torch.Tensor):
            return f"{item.name} was no tensor and is one"
        data = encode(flat[item.name])
        if not 0 <= item.nbytes - len(data) <= MOST_ZEROS:
            left = outgrown.point(item.name, item.offset, data)
            if left is None:
                was = f"{item.nbytes:,} are set aside, and the end of the file is full"
                return f"{item.name} is {len(data):,} bytes where {was}"
            data = left
        found.append((item, data))
    return found


def _view(body: memoryview, item: TensorItem) -> torch.Tensor:
    if not item.shape.numel():
        return torch.empty(item.shape, dtype=item.dtype)
    flat = torch.frombuffer(body, dtype=item.dtype, count=item.shape.numel(), offset=item.payload)
    return flat.view(item.shape)


@torch.no_grad()
def _copy(views: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    streams: dict[torch.device, Any] = {}
    for view, source in zip(views, sources, strict=True):
        if source.device.type != "cuda":
            view.copy_(source)
            continue
        if (side := streams.get(source.device)) is None:
            side = streams[source.device] = torch.cuda.Stream(source.device)  # type: ignore[no-untyped-call] # torch has no types here
            # Not before the optimizer's kernels, which the training loop has only queued.
            side.wait_stream(torch.cuda.current_stream(source.device))
        with torch.cuda.stream(side):
            view.copy_(source, non_blocking=True)
    for side in streams.values():
        event = torch.cuda.Event()  # type: ignore[no-untyped-call] # torch has no types here
        event.record(side)
        event.synchronize()
