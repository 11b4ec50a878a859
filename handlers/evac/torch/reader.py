"""A reader for `torch.distributed.checkpoint.load` over any store, which loads nothing unchecked.

While DCP plans, what a rank's plan needs is read and checked; all ranks hear of it where one
of them found something wrong, before a single tensor is written to. Then everything comes from memory.

Turned down: to check and then let DCP read a second time, which costs a second read, and trusts that
nobody has changed the bytes in between.
"""

import io
import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from evac._clock import monotonic
from evac.errors import GenerationError
from evac.generation import METADATA
from evac.side import POINTER_BYTES, pointed
from evac.store import Store
from evac.torch import rank_state
from evac.torch.damage import Unsound, sound
from evac.torch.gathering import Gathering
from evac.torch.origins import Origins
from evac.torch.reader_archive import payload
from evac.torch.reader_bodies import Contents, Span

# An archive's own bytes around a tensor's are one to four KiB; with more it is none of ours.
_MOST_FRAME = 64 * 1024


@dataclass(frozen=True)
class _Tensor:
    """Where a stored tensor's elements lie: at *payload* of its body, contiguous."""

    payload: int
    shape: torch.Size
    dtype: torch.dtype


class StoreReader(StorageReader):
    """Loads one generation.

    Args:
        source: Where its bytes come from: a store that has all of them, opened for each fetch, or
            several places.
        generation: For errors.
        contents: From `look` or `described`.

    Attributes:
        metadata: What DCP calls by this name.
        seconds: That reading and checking took.

    Raises:
        Unsound: Its `.metadata` cannot be read.
        GenerationError: It is no checkpoint of torch.
    """

    def __init__(
        self, source: Callable[[], Store] | Gathering, generation: str, contents: Contents
    ) -> None:
        if not contents.metadata:
            raise GenerationError(generation, "holds no checkpoint of torch")
        # As DCP does: these are the job's own files, and their SHA-256 is right.
        with sound(generation, f"{contents.folder}/{METADATA}", unpickles=True):
            self.metadata: Metadata = pickle.loads(contents.metadata)
        self.seconds = 0.0
        self._generation = generation
        self._bodies = source if isinstance(source, Gathering) else _whole_store(source, contents)
        self._tensors: dict[MetadataIndex, _Tensor] = {}
        self._loaded: dict[MetadataIndex, torch.Tensor] = {}
        # Of what had outgrown its place: where its bytes are, or of a rank's block the rest of them.
        self._elsewhere: dict[MetadataIndex, Span] = {}

    @property
    def nbytes(self) -> int:
        """What this rank has read."""
        return self._bodies.nbytes

    @property
    def origins(self) -> Origins:
        """Where this rank has read it."""
        return self._bodies.origins

    @property
    def unsummed(self) -> int:
        """Of how many bytes more there was no checksum yet."""
        return self._bodies.unsummed

    def drop(self) -> None:
        """Give back the memory of all that was read; planning again would read it again."""
        self._tensors.clear()
        self._loaded.clear()
        self._elsewhere.clear()
        self._bodies.drop()

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing: a reader is for one generation."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """What was read and checked before."""
        return self.metadata

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Nothing: it is what `read_metadata` gave."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Read and check all that *plan* needs; a collective of the ranks that *bodies* are for.

        Raises:
            Unsound: Some of it is not right, or cannot be read.
        """
        started = monotonic()
        # Told while they are fetched: no rank may fail by itself between two collectives.
        self._fetch(span for item in plan.items for span in self._spans(item))
        bytes_io = LoadItemType.BYTE_IO
        tensors = {item.storage_index for item in plan.items if item.type != bytes_io}
        objects = {item.storage_index for item in plan.items if item.type == bytes_io}
        strange: list[MetadataIndex] = []
        self._fetch(chain(self._strange(tensors, strange), self._outgrown(tensors, objects)))
        for index in strange:
            self._loaded[index] = self._load(index)
        self.seconds += monotonic() - started
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """As they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Hand out what `prepare_local_plan` has read."""
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                name = item.storage_index.fqn
                span = self._elsewhere.get(item.storage_index)
                with (
                    self._view(item.storage_index, span) as view,
                    sound(self._generation, name, unpickles=True),
                ):
                    planner.load_bytes(item, io.BytesIO(view))
                continue
            stored = narrow_tensor_by_index(
                self._tensor(item.storage_index), item.storage_offsets, item.lengths
            )
            target = planner.resolve_tensor(item).detach()
            if target.size() != stored.size():
                name = item.storage_index.fqn
                reason = f"{name} is {tuple(stored.size())}, expected {tuple(target.size())}"
                raise RuntimeError(reason)
            target.copy_(stored)
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """No: it is made for a generation, not for a path."""
        return False

    def _strange(
        self, tensors: Iterable[MetadataIndex], found: list[MetadataIndex]
    ) -> Iterator[Span]:
        """Of the tensors that do not lie as ours do all of their archives; adds them to *found*."""
        for index in tensors:
            if not self._locate(index):
                found.append(index)
                yield self._archive(index)

    def beyond(self, name: str) -> bytes:
        """What of the rank's block *name*, as it was read, had no place in its tensor; b"" for nothing."""
        for index, span in self._elsewhere.items():
            if index.fqn == name:
                with self._view(index, span) as view:
                    return view.tobytes()
        return b""

    def _outgrown(
        self, tensors: Iterable[MetadataIndex], objects: Iterable[MetadataIndex]
    ) -> Iterator[Span]:
        """Where what has outgrown its place lies; adds it to what lies elsewhere."""
        for index in objects:
            with self._view(index) as view:
                self._note(index, pointed(view[:POINTER_BYTES]))
        for index in tensors:
            block = self._tensors.get(index) if rank_state.is_name(index.fqn) else None
            if block is not None and block.dtype is torch.uint8:
                memory = self._bodies.memory(self._archive(index).body)
                end = block.payload + block.shape.numel()
                self._note(index, rank_state.beyond(memory[block.payload : end]))
        yield from self._elsewhere.values()

    def _note(self, index: MetadataIndex, where: tuple[int, int] | None) -> None:
        if where is not None:
            self._elsewhere[index] = Span(self._archive(index).body, *where)

    def _fetch(self, spans: Iterable[Span]) -> None:
        if problems := self._bodies.fetch(spans):
            raise Unsound(self._generation, problems)

    def _archive(self, index: MetadataIndex) -> Span:
        with sound(self._generation, index.fqn):
            info = self.metadata.storage_data[index]
            return Span(info.relative_path, info.offset, info.length)

    def _view(self, index: MetadataIndex, span: Span | None = None) -> memoryview:
        """Of *span*, or of the archive of *index*."""
        span = span or self._archive(index)
        with self._bodies.memory(span.body) as whole:
            return whole[span.offset : span.offset + span.nbytes]

    def _stored(self, index: MetadataIndex) -> tuple[torch.Size, torch.dtype]:
        """Shape and dtype of a tensor, or of the shard of one, as it was written."""
        with sound(self._generation, index.fqn):
            saved = self.metadata.state_dict_metadata[index.fqn]
            assert isinstance(saved, TensorStorageMetadata)
            (sizes,) = (one.sizes for one in saved.chunks if one.offsets == index.offset)
            return sizes, saved.properties.dtype

    def _spans(self, item: ReadItem) -> Iterator[Span]:
        """The bytes of an archive that *item* needs: of a large tensor maybe a few rows."""
        archive = self._archive(item.storage_index)
        if item.type == LoadItemType.BYTE_IO:
            yield archive
            return
        shape, dtype = self._stored(item.storage_index)
        frame = archive.nbytes - shape.numel() * dtype.itemsize
        if not 0 < frame <= _MOST_FRAME:
            yield archive
            return
        # How the frame is divided is written in it; so we take more than we need by its size.
        yield Span(archive.body, archive.offset, frame)
        yield Span(archive.body, archive.offset + archive.nbytes - frame, frame)
        begin, end = block(shape, item.storage_offsets, item.lengths)
        needed = (end - begin) * dtype.itemsize + frame
        yield Span(archive.body, archive.offset + begin * dtype.itemsize, needed)

    def _locate(self, index: MetadataIndex) -> bool:
        """Find the elements in an archive of which the frame is here; False where it is not as ours."""
        shape, dtype = self._stored(index)
        nbytes = shape.numel() * dtype.itemsize
        with self._view(index) as view, sound(self._generation, index.fqn):
            start = (
                payload(view, shape, nbytes) if 0 < view.nbytes - nbytes <= _MOST_FRAME else None
            )
        if start is None:
            return False
        self._tensors[index] = _Tensor(self._archive(index).offset + start, shape, dtype)
        return True

    def _load(self, index: MetadataIndex) -> torch.Tensor:
        """A tensor whose archive is whole here, and not as ours."""
        with self._view(index) as view, sound(self._generation, index.fqn):
            loaded: torch.Tensor = torch.load(
                io.BytesIO(view), map_location="cpu", weights_only=True
            )
            found, stored = (loaded.shape, loaded.dtype), self._stored(index)
            if found != stored:
                was, now = (f"{tuple(shape)} {dtype}" for shape, dtype in (stored, found))
                raise ValueError(f"is {now}, and {was} in .metadata")
        return loaded

    def _tensor(self, index: MetadataIndex) -> torch.Tensor:
        if index in self._loaded:
            return self._loaded[index]
        one = self._tensors[index]
        if not one.shape.numel():
            return torch.empty(one.shape, dtype=one.dtype)
        memory = self._bodies.memory(self._archive(index).body)
        count = one.shape.numel()
        flat = torch.frombuffer(memory, dtype=one.dtype, count=count, offset=one.payload)
        return flat.view(one.shape)


def _whole_store(store: Callable[[], Store], contents: Contents) -> Gathering:
    everything = replace(contents, stores={"": frozenset(contents.bodies)})
    return Gathering.alone(lambda _: store(), everything)


def block(shape: Sequence[int], offsets: Sequence[int], lengths: Sequence[int]) -> tuple[int, int]:
    """From the first to behind the last element of a block in a contiguous tensor."""
    if 0 in lengths:
        return 0, 0
    first, last, stride = 0, 0, 1
    for size, offset, length in reversed(list(zip(shape, offsets, lengths, strict=True))):
        first += offset * stride
        last += (offset + length - 1) * stride
        stride *= size
    return first, last + 1
