"""A generation's weights as safetensors: whole tensors, one at a time, each byte checked.

No more is in memory than one tensor and the chunks that it lies in. The format is eight bytes of
length, a JSON of names, dtypes, shapes and offsets, and the data end to end (safetensors 0.8,
"Format"); writing it here lets the data stream, where the library wants all tensors at once.
"""

import hashlib
import json
import os
import struct
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from evac.errors import GenerationError
from evac.torch.damage import Unsound
from evac.torch.gathering import Gathering
from evac.torch.reader import StoreReader
from evac.torch.reader_bodies import Contents, opened
from evac.torch.state import MODEL

INDEX = "model.safetensors.index.json"
_LENGTH = struct.Struct("<Q")
_ALIGN = 8
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


@dataclass(frozen=True)
class _Weight:
    name: str
    key: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    nbytes: int


class Weights:
    """What a generation holds below the key ``model``.

    Args:
        where: The generation, for errors.
        contents: From `look`.

    Attributes:
        left_out: Names of what is no tensor, and so has no place in the format.

    Raises:
        GenerationError: It has no weights.
    """

    def __init__(self, where: str, contents: Contents) -> None:
        self._where = where
        self._reader = StoreReader(Gathering.alone(opened, contents), where, contents)
        self._weights, self.left_out = _weights(self._reader.metadata, where)
        if not self._weights:
            raise GenerationError(where, "holds no weights: nothing lies under the key 'model'")

    @property
    def nbytes(self) -> int:
        """Of all tensors."""
        return sum(one.nbytes for one in self._weights)

    def write(
        self,
        folder: Path,
        *,
        shard: int,
        once: bool,
        progress: Callable[[int], None],
    ) -> Mapping[str, str]:
        """Write them to *folder*, which exists; fsynced.

        Args:
            shard: Most bytes of one file; a tensor that is larger has a file of its own.
            once: Leave out what is equal, byte for byte, to another tensor of its shape, unless
                all of it is one number: such are tied. Else they are written each.
            progress: Told of further bytes.

        Returns:
            What was left out as tied, and what it is tied to.

        Raises:
            GenerationError: What was read is not what was written.
        """
        tied = self._tied() if once else {}
        kept = [one for one in self._weights if one.name not in tied]
        shards = list(_shards(kept, shard))
        where: dict[str, str] = {}
        for number, part in enumerate(shards, start=1):
            name = "model.safetensors"
            if len(shards) > 1:
                name = f"model-{number:05}-of-{len(shards):05}.safetensors"
            self._write(folder / name, part, tied, progress)
            where.update({one.name: name for one in part})
        if len(shards) > 1:
            total = {"total_size": sum(one.nbytes for one in kept)}
            index = {"metadata": total, "weight_map": dict(sorted(where.items()))}
            with (folder / INDEX).open("w") as file:
                json.dump(index, file, indent=2)
                file.flush()
                os.fsync(file.fileno())
        return tied

    def _write(
        self,
        path: Path,
        part: Sequence[_Weight],
        tied: Mapping[str, str],
        progress: Callable[[int], None],
    ) -> None:
        header: dict[str, Any] = {"__metadata__": {"format": "pt", **tied}}
        at = 0
        for one in part:
            offsets = [at, at + one.nbytes]
            header[one.name] = {
                "dtype": _DTYPES[one.dtype],
                "shape": list(one.shape),
                "data_offsets": offsets,
            }
            at += one.nbytes
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _ALIGN)
        with path.open("wb") as file:
            file.write(_LENGTH.pack(len(text)) + text)
            for one in part:
                file.write(self._bytes(one))
                progress(one.nbytes)
            file.flush()
            os.fsync(file.fileno())

    def _bytes(self, one: _Weight) -> memoryview:
        target = torch.empty(one.shape, dtype=one.dtype)
        try:
            with warnings.catch_warnings():
                # One process is no accident.
                warnings.filterwarnings("ignore", "torch.distributed is")
                load({one.key: target}, storage_reader=self._reader, no_dist=True)
        except CheckpointException as error:
            causes = [cause for cause, _ in error.failures.values()]
            for cause in causes:
                if isinstance(cause, Unsound):
                    raise GenerationError(self._where, str(cause)) from error
            raise GenerationError(self._where, f"{one.name}: {causes[0]}") from error
        finally:
            self._reader.drop()
        flat: Any = target.reshape(-1).view(torch.uint8).numpy()
        return memoryview(flat)

    def _tied(self) -> dict[str, str]:
        alike: dict[tuple[Any, ...], list[_Weight]] = {}
        for one in self._weights:
            alike.setdefault((one.shape, one.dtype), []).append(one)
        tied: dict[str, str] = {}
        for group in alike.values():
            first: dict[bytes, str] = {}
            for one in group if len(group) > 1 else ():
                data = self._bytes(one)
                size = one.dtype.itemsize
                if data[size:] == data[:-size]:
                    continue
                digest = hashlib.sha256(data).digest()
                if (other := first.setdefault(digest, one.name)) != one.name:
                    tied[one.name] = other
        return tied


def _weights(metadata: Metadata, where: str) -> tuple[list[_Weight], tuple[str, ...]]:
    paths: Mapping[str, tuple[Any, ...]] = metadata.planner_data or {}
    found: list[_Weight] = []
    others: list[str] = []
    for key, path in paths.items():
        if path[0] != MODEL:
            continue
        name = ".".join(map(str, path[1:]))
        saved = metadata.state_dict_metadata[key]
        if not isinstance(saved, TensorStorageMetadata):
            others.append(name)
            continue
        dtype = saved.properties.dtype
        if dtype not in _DTYPES:
            raise GenerationError(where, f"{name}: safetensors has no name for {dtype}")
        shape = tuple(saved.size)
        found.append(_Weight(name, key, shape, dtype, saved.size.numel() * dtype.itemsize))
    # Wide ones first, so that each is aligned.
    found.sort(key=lambda one: (-one.dtype.itemsize, one.name))
    return found, tuple(sorted(others))


def _shards(weights: Sequence[_Weight], most: int) -> Iterator[list[_Weight]]:
    part: list[_Weight] = []
    nbytes = 0
    for one in weights:
        if part and nbytes + one.nbytes > most:
            yield part
            part, nbytes = [], 0
        part.append(one)
        nbytes += one.nbytes
    if part:
        yield part
