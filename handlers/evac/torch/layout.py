"""The plan of a static DCP image: where everything of a state lies, the same for every generation.

A DCP file is a row of independent `torch.save` archives, and `.metadata` says where each one
starts and how long it is. For a tensor, all bytes of its archive but the payload follow from
dtype and shape. So they are made once (`frame`), written once into every slot, and from then
on a generation is its payloads alone. What is not a tensor is an archive with zeros behind
it, in room enough to grow; what outgrows that goes to the end of its file (`evac.torch.sides`).

The weights, which is all that the model holds, have a file of their own before that of the rest, and
a `.metadata` of their own beside that of the whole: so they can be saved alone.

A payload of a page or more starts at a page of the body, so that it is aligned in memory
and in the file alike.
"""

import dataclasses
import hashlib
import io
import logging
import pickle
import struct
import zipfile
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlanner, WriteItemType
from torch.distributed.tensor import DTensor

from evac.errors import GenerationError
from evac.generation import WEIGHTS
from evac.manifest import COPY
from evac.segment import PAGE, BodyFile, aligned
from evac.torch import apart
from evac.torch.sharing import Batch, batches
from evac.torch.sides import Side, leave
from evac.torch.world import World

log = logging.getLogger("evac")

_Wrote: TypeAlias = list[tuple[MetadataIndex, _StorageInfo]]

# torch.load takes zeros behind an archive up to about 65,000 bytes (tried on torch 2.13);
# this far no version needs to be asked.
MOST_ZEROS = 32 * 1024
_LEAST_ROOM, _MOST_ROOM = 4 * 1024, 16 * 1024
# torch.load looks for the archive's end in windows of 4096 bytes from the end of the item, each
# 4093 below the last, and a window that would start before the item is an error ("negative
# seek", torch 2.13) even where one at its start would have found it. So one starts there.
_WINDOW, _STRIDE = 4096, 4093
# torch.save's own alignment inside an archive; enough for any dtype.
_FINE = 64
_LOCAL_HEADER = struct.Struct("<26xHH")


@dataclass(frozen=True)
class TensorItem:
    """A tensor (or this rank's shard of one) in the body.

    Attributes:
        offset: Of its archive in the body.
        nbytes: Of its archive.
        payload: Offset in the body of its elements, contiguous.
        prefix: The archive's bytes before the payload.
        suffix: Those behind it.
    """

    name: str
    offset: int
    nbytes: int
    payload: int
    dtype: torch.dtype
    shape: torch.Size
    prefix: bytes
    suffix: bytes


@dataclass(frozen=True)
class BytesItem:
    """Any other object in the body: an archive of at most *nbytes*, zeros behind it."""

    name: str
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Layout:
    """This rank's part of the plan.

    Attributes:
        name: Hex SHA-256 of *metadata*: equal on all ranks, and for equal plans only.
        body: Name of the file that holds the rest.
        files: All that the body consists of; whole pages each.
        nbytes: Length of the body.
        keys: All that the state held at planning; another rank may hold the bytes.
        metadata: The bytes of `.metadata`.
        weights_metadata: Those of the weights' own; b"" where the state has no model.
        own: Under which of *keys* lies what is this rank's own and not all ranks', by its plain key.
        sides: For what outgrows its place.
    """

    name: str
    body: str
    files: tuple[BodyFile, ...]
    nbytes: int
    tensors: tuple[TensorItem, ...]
    objects: tuple[BytesItem, ...]
    keys: frozenset[str]
    metadata: bytes
    weights_metadata: bytes
    own: Mapping[str, str] = field(default_factory=dict)
    sides: tuple[Side, ...] = ()

    def items(self) -> list[dict[str, Any]]:
        """The item table, as descriptor and manifest carry it."""
        table = [(one, "tensor") for one in self.tensors] + [(one, "bytes") for one in self.objects]
        return [
            {"name": one.name, "offset": one.offset, "nbytes": one.nbytes, "kind": kind}
            for one, kind in sorted(table, key=lambda pair: pair[0].offset)
        ]


def flatten(
    state: Mapping[str, Any], keys: Set[str], own: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """*state* by DCP's flat keys, as they were at planning; what is new goes under its plain one.

    DCP's own walk takes longer than all else that a stage does beside copying.

    Args:
        keys: See `Layout`, as *own*.
    """
    flat: dict[str, Any] = {}

    def walk(name: str, value: Any) -> None:
        name = own.get(name, name)
        if name in keys:
            flat[name] = value
        elif isinstance(value, dict):
            for key, one in value.items():
                walk(f"{name}.{key}", one)
        elif isinstance(value, list | tuple):
            for place, one in enumerate(value):
                walk(f"{name}.{place}", one)
        else:
            flat[name] = value

    for key, value in state.items():
        walk(key, value)
    return flat


def local(value: torch.Tensor) -> torch.Tensor:
    """What of *value* this rank holds."""
    return value.to_local() if isinstance(value, DTensor) else value


def plan(world: World, state: Mapping[str, Any], own: Set[tuple[str, ...]] = frozenset()) -> Layout:
    """Agree with all ranks on where everything lies. Collective; copies no state.

    Args:
        own: Beginnings of paths in *state* that are each rank's own, see `evac.torch.apart`.

    Raises:
        GenerationError: On all ranks alike; names the rank and the reason.
    """
    what = "layout"
    planner, renamed = _apart(world, state, own)
    shared = world.agree(what, lambda: (world.node, planner.create_local_plan()))
    nodes, proposals = [node for node, _ in shared], [proposal for _, proposal in shared]
    # DCP's own rules for who writes a tensor that several ranks hold.
    plans, metadata = world.led(what, lambda: planner.create_global_plan(proposals))

    def share() -> list[Batch]:
        planner.finish_plan(plans[world.rank])
        return batches(world.rank, nodes, proposals, plans, of_model(metadata))

    mine = world.each(what, share)
    laid = place(world, mine, planner, metadata, keys=frozenset(planner.state_dict), grows=True)
    return dataclasses.replace(laid, own=renamed)


def place(
    world: World,
    mine: Sequence[Batch],
    planner: SavePlanner,
    metadata: Metadata | None,
    *,
    keys: frozenset[str] = frozenset(),
    grows: bool = False,
) -> Layout:
    """Lay out what each rank has been given to stage. Collective; copies no state.

    Args:
        metadata: Of the whole plan; rank 0's counts.
        keys: See `Layout`.
        grows: It is not laid out anew as soon as something has outgrown its place.

    Raises:
        GenerationError: As `plan`.
    """
    body = f"__{world.rank}_0.distcp"
    placed = _Placed([], [], [], [], 0, grows)
    wrote = world.agree("layout", lambda: placed.fill(mine, planner))
    if not placed.files:
        # A rank that has nothing to stage has a share all the same: it is part of the whole.
        placed.files.append(BodyFile(body, 0, PAGE))
        placed.nbytes = PAGE

    def encoded() -> tuple[bytes, bytes]:
        assert metadata is not None
        return _metadata(metadata, wrote), _weights_metadata(metadata, wrote, of_model(metadata))

    whole, weights = world.led("layout", encoded)
    return Layout(
        name=hashlib.sha256(whole).hexdigest(),
        body=body,
        files=tuple(placed.files),
        nbytes=placed.nbytes,
        tensors=tuple(placed.tensors),
        objects=tuple(placed.objects),
        keys=keys,
        metadata=whole,
        weights_metadata=weights,
        sides=tuple(placed.sides),
    )


def encode(value: Any) -> bytes:
    """The archive of an object that is not a tensor."""
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def capacity(nbytes: int) -> int:
    """How much to set aside for an archive that is *nbytes* long at planning."""
    wanted = nbytes + min(max(nbytes, _LEAST_ROOM), _MOST_ROOM)
    return _WINDOW + -(-(wanted - _WINDOW) // _STRIDE) * _STRIDE


@lru_cache(maxsize=512)
def frame(dtype: torch.dtype, shape: torch.Size) -> tuple[bytes, bytes]:
    """A tensor's archive without its payload: what lies before it, what behind."""
    stream = io.BytesIO()
    before = torch.serialization.get_crc32_options()
    # The payload changes under the archive, so a checksum of it can only be wrong.
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(torch.empty(shape, dtype=dtype, device="cpu"), stream)
    finally:
        torch.serialization.set_crc32_options(before)
    with zipfile.ZipFile(stream) as archive:
        (record,) = (one for one in archive.infolist() if one.filename.endswith("/data/0"))
    buffer = stream.getbuffer()
    fixed, start = _LOCAL_HEADER.size, record.header_offset
    payload = start + fixed + sum(_LOCAL_HEADER.unpack_from(buffer, start))
    return bytes(buffer[:payload]), bytes(buffer[payload + record.file_size :])


@dataclass
class _Placed:
    files: list[BodyFile]
    tensors: list[TensorItem]
    objects: list[BytesItem]
    sides: list[Side]
    nbytes: int
    grows: bool

    def fill(self, mine: Sequence[Batch], planner: SavePlanner) -> _Wrote:
        """Lay everything out, file by file; where what lies that others may look for here."""
        wrote: _Wrote = []
        for batch in mine:
            start = self.nbytes
            for item in batch.items:
                value = planner.resolve_data(item)
                if item.type == WriteItemType.BYTE_IO:
                    assert isinstance(value, io.BytesIO)
                    one: TensorItem | BytesItem = self._object(item.index.fqn, value)
                else:
                    assert isinstance(value, torch.Tensor)
                    one = self._tensor(item.index.fqn, value.detach())
                if batch.kind != COPY:
                    info = _StorageInfo(batch.name, one.offset - start, one.nbytes)
                    wrote.append((item.index, info))
            self.nbytes = aligned(self.nbytes)
            if self.grows and (side := leave(start, self.nbytes, self.objects, self.tensors)):
                self.sides.append(side)
                self.nbytes += side.nbytes
            self.files.append(
                BodyFile(batch.name, start, self.nbytes - start, batch.kind, batch.held)
            )
        return wrote

    def _object(self, name: str, value: io.BytesIO) -> BytesItem:
        offset = _up(self.nbytes, _FINE)
        nbytes = value.getbuffer().nbytes
        item = BytesItem(name, offset, capacity(nbytes))
        self.nbytes = offset + item.nbytes
        self.objects.append(item)
        return item

    def _tensor(self, name: str, value: torch.Tensor) -> TensorItem:
        if value.layout != torch.strided or value.is_quantized:
            raise GenerationError(name, f"a {value.layout} tensor cannot be staged in place")
        prefix, suffix = frame(value.dtype, value.shape)
        to = PAGE if value.nbytes >= PAGE else _FINE
        payload = _up(_up(self.nbytes, _FINE) + len(prefix), to)
        offset = payload - len(prefix)
        nbytes = len(prefix) + value.nbytes + len(suffix)
        item = TensorItem(name, offset, nbytes, payload, value.dtype, value.shape, prefix, suffix)
        self.nbytes = offset + nbytes
        self.tensors.append(item)
        return item


def _apart(
    world: World, state: Mapping[str, Any], own: Set[tuple[str, ...]]
) -> tuple[DefaultSavePlanner, dict[str, str]]:
    """A planner that knows what is this rank's own by other names; and those names."""
    planner = DefaultSavePlanner()

    def look() -> tuple[apart.Held, dict[str, int]]:
        planner.set_up_planner(dict(state), None, world.rank == 0)
        if world.size == 1:
            return {}, {}  # nobody to differ from
        flat = planner.state_dict
        return apart.held(flat, planner.mappings, own), apart.shards(flat, world.size)

    everyone = world.agree("layout", look)

    def rename() -> tuple[dict[str, str], tuple[str, ...]]:
        renamed, differing = apart.decide(world.rank, [held for held, _ in everyone])
        for key, name in renamed.items():
            planner.state_dict[name] = planner.state_dict.pop(key)
            del planner.mappings[key]
            planner.mappings[name] = (apart.name(world.rank), key)
        return renamed, differing

    renamed, differing = world.each("layout", rename)
    if differing and world.rank == 0:
        text = "%d values differ between ranks that name them alike (%s): each rank keeps its own"
        log.warning(text, len(differing), ", ".join(differing[:3]))
    if world.rank == 0 and (lost := apart.unlike([shards for _, shards in everyone])):
        text = (
            "%d parts of DTensors differ between meshes that name them alike (%s): of these the "
            "checkpoint holds one mesh's; give each mesh's a name of its own"
        )
        log.warning(text, len(lost), ", ".join(lost[:3]))
    return planner, renamed


def _metadata(metadata: Metadata, wrote: Sequence[_Wrote]) -> bytes:
    storage = {index: info for rank in wrote for index, info in rank}
    return pickle.dumps(dataclasses.replace(metadata, storage_data=storage))


def of_model(metadata: Metadata) -> frozenset[str]:
    """The keys of weights, whichever rank holds them."""
    paths: Mapping[str, tuple[Any, ...]] = metadata.planner_data or {}
    return frozenset(key for key, path in paths.items() if apart.of_model(path))


def _weights_metadata(metadata: Metadata, wrote: Sequence[_Wrote], keys: Set[str]) -> bytes:
    """That of the weights' folder: DCP's plan with all else left out."""
    paths: Mapping[str, tuple[Any, ...]] = metadata.planner_data or {}
    if not keys:
        return b""
    storage = {
        index: dataclasses.replace(
            info, relative_path=info.relative_path.removeprefix(f"{WEIGHTS}/")
        )
        for rank in wrote
        for index, info in rank
        if index.fqn in keys
    }
    weights = dataclasses.replace(
        metadata,
        state_dict_metadata={
            key: one for key, one in metadata.state_dict_metadata.items() if key in keys
        },
        planner_data={key: path for key, path in paths.items() if key in keys},
        storage_data=storage,
    )
    return pickle.dumps(weights)


def _up(offset: int, to: int) -> int:
    return -(-offset // to) * to
