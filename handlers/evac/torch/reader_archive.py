"""Finds a tensor's elements in its `torch.save` archive, without loading or copying it.

`torch.load` copies them twice before they are where they shall be. What is not a contiguous tensor
as `layout.frame` makes them is left to it. The archive is a zip of stored records; ``data.pkl``
in it is one call of `torch._utils._rebuild_tensor_v2` or ``_v3`` (read in torch 2.9 to 2.14).
"""

import io
import os
import pickle
import struct
import zipfile
from collections.abc import Callable, Sequence
from typing import Any

_LOCAL_HEADER = struct.Struct("<26xHH")
# Of each: storage, offset, size, stride, requires_grad, hooks; v3 adds a dtype. One more would say
# that the elements are not to be taken as they are.
_REBUILDS = {"_rebuild_tensor_v2": 6, "_rebuild_tensor_v3": 7}
# What a pickle of something else may raise: unpacking two records of one name, calling a name...
_NOT_OURS = (
    pickle.UnpicklingError, AttributeError, EOFError, IndexError, KeyError, TypeError, ValueError,
)  # fmt: skip


def payload(archive: memoryview, shape: Sequence[int], nbytes: int) -> int | None:
    """Where the elements start, all of them in order; None where it is not such an archive.

    Args:
        archive: The payload itself need not be there yet.
        nbytes: Of all elements.
    """
    try:
        with zipfile.ZipFile(_File(archive)) as opened:
            records = opened.infolist()
        (pickled,) = (one for one in records if one.filename.endswith("/data.pkl"))
        (elements,) = (one for one in records if "/data/" in one.filename)
        # Not through ZipFile: `layout.frame` leaves no CRC-32, and every byte is checked already.
        start = _start(archive, pickled)
        rebuilt = _Outline(io.BytesIO(archive[start : start + pickled.file_size])).load()
        start = _start(archive, elements)
    except (zipfile.BadZipFile, struct.error, *_NOT_OURS):
        return None
    if rebuilt != (0, tuple(shape), _contiguous(shape)) or elements.file_size != nbytes:
        return None
    return start if start + nbytes <= archive.nbytes else None


def _start(archive: memoryview, record: zipfile.ZipInfo) -> int:
    if record.compress_type != zipfile.ZIP_STORED:
        raise zipfile.BadZipFile(record.filename)
    header = record.header_offset
    name, extra = _LOCAL_HEADER.unpack_from(archive, header)
    return header + _LOCAL_HEADER.size + int(name) + int(extra)


class _Outline(pickle.Unpickler):
    """Offset, size and stride of a pickled tensor; calls nothing that the pickle names."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch._utils" and name in _REBUILDS:
            return _take(_REBUILDS[name])
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        return f"{module}.{name}"

    def persistent_load(self, pid: Any) -> Any:
        return pid


def _take(count: int) -> Callable[..., tuple[Any, ...] | None]:
    return lambda *given: given[1:4] if len(given) == count else None


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """The stride that torch gives: as if an empty dimension had one."""
    stride, found = 1, []
    for size in reversed(shape):
        found.append(stride)
        stride *= max(size, 1)
    return tuple(reversed(found))


class _File(io.RawIOBase):
    """Memory as a file, without a copy of it."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = (0, self._at, self._memory.nbytes)[whence]
        if start + offset < 0:
            raise OSError("before the start")
        self._at = start + offset
        return self._at

    def readinto(self, into: Any) -> int:
        with self._memory[self._at : self._at + len(into)] as piece:
            into[: piece.nbytes] = piece
            self._at += piece.nbytes
            return piece.nbytes
