"""Reads what a workload says it has staged, and believes none of it.

By pread and with limits: the bytes are the workload's, and may change while they are read.
"""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evac.errors import SegmentError
from evac.generation import WEIGHTS, Generation
from evac.segment import HEADER_BYTES, MOST_FILES, BodyFile, Header, SlotState, check_files

MAX_DESCRIPTOR = 64 * 1024 * 1024
MAX_METADATA = 64 * 1024 * 1024
MAX_ITEMS = 1 << 18
# Parsed piece by piece: json holds the GIL, and one large document would freeze the loop.
_PIECE = 1 << 18
_HEAD = 1 << 19
_LEVELS = 8
_SHAPE = 'descriptor is not {"files": ..., "weights_metadata_nbytes": ..., "items": [...]}'
_SPACE = " \t\r\n"


@dataclass(frozen=True, eq=False)
class Inspection:
    """What lies in a slot, checked.

    Attributes:
        files: That the body consists of; none where it is one, of the name that was reserved.
        items: The descriptor's ``items``: mappings with ``name``, ``offset``, ``nbytes``.
        metadata: The bytes of `.metadata`.
        weights_metadata: Those of the weights' own.
        digest: Of descriptor and metadata, so that the next generation need not parse again.
    """

    body_nbytes: int
    files: tuple[BodyFile, ...]
    items: tuple[Mapping[str, Any], ...]
    metadata: bytes
    weights_metadata: bytes
    digest: bytes

    @property
    def weights_nbytes(self) -> int | None:
        """Of the body; None where weights do not lie apart from the rest."""
        weights = [file.nbytes for file in self.files if file.kind == WEIGHTS]
        return sum(weights) if weights or self.weights_metadata else None


@dataclass(frozen=True)
class Description:
    """A descriptor, checked.

    Attributes:
        weights_metadata_nbytes: How much at the end of the metadata is the weights' own.
    """

    files: tuple[BodyFile, ...] = ()
    weights_metadata_nbytes: int = 0
    items: tuple[Mapping[str, Any], ...] = ()


def inspect(
    fd: int, slot_nbytes: int, expected: Generation, known: Inspection | None
) -> Inspection:
    """Read a slot's header, descriptor and metadata. May block.

    Args:
        known: What the same workload staged before.

    Raises:
        SegmentError: It is not *expected*, whole and in shape.
    """
    header = Header.unpack(_read(fd, 0, HEADER_BYTES), slot_nbytes=slot_nbytes)
    if header.state is not SlotState.COMPLETE:
        raise SegmentError(f"state is {header.state.name}, expected COMPLETE")
    said = Generation(header.incarnation, header.step)
    if said != expected:
        raise SegmentError(f"header says {said}, expected {expected}")
    if header.body_nbytes == 0:
        raise SegmentError("the body is empty")
    for what, nbytes, limit in (
        ("descriptor", header.descriptor_nbytes, MAX_DESCRIPTOR),
        ("metadata", header.metadata_nbytes, MAX_METADATA),
    ):
        if nbytes > limit:
            raise SegmentError(f"{what} is {nbytes} bytes, at most {limit}")
    descriptor = _read(fd, header.descriptor_offset, header.descriptor_nbytes)
    metadata = _read(fd, header.metadata_offset, header.metadata_nbytes)
    sums = hashlib.blake2b(len(descriptor).to_bytes(8, "big"), digest_size=32)
    sums.update(header.body_nbytes.to_bytes(8, "big"))
    sums.update(descriptor)
    sums.update(metadata)
    if known is not None and known.digest == sums.digest():
        return known
    found = parse(descriptor, body_nbytes=header.body_nbytes)
    if found.weights_metadata_nbytes > len(metadata):
        raise SegmentError(
            f"the weights' metadata is {found.weights_metadata_nbytes} bytes of {len(metadata)}"
        )
    end = len(metadata) - found.weights_metadata_nbytes
    return Inspection(
        header.body_nbytes,
        found.files,
        found.items,
        metadata[:end],
        metadata[end:],
        sums.digest(),
    )


def parse(descriptor: bytes, *, body_nbytes: int) -> Description:
    """Read ``{"files": [...], "weights_metadata_nbytes": ..., "items": [...]}``.

    In this order, and with no other field; all but the items may be left out. An empty descriptor
    says nothing. No item may be larger than 256 KiB or nest deeper than 8 levels.

    Raises:
        SegmentError: Not of that shape, the files are not the body, or an item leaves it.
    """
    if not descriptor:
        return Description()
    try:
        text = descriptor.decode()
    except UnicodeDecodeError as error:
        raise SegmentError("descriptor is not UTF-8") from error
    at = _expect(text, 0, "{")
    files: tuple[BodyFile, ...] = ()
    weights_metadata_nbytes = 0
    if _is_next(text, at, '"files"'):
        value, at = _value(text, _expect(text, _expect(text, at, '"files"'), ":"))
        files = _files(value)
        check_files(files, body_nbytes=body_nbytes)
        at = _expect(text, at, ",")
    if _is_next(text, at, '"weights_metadata_nbytes"'):
        at = _expect(text, _expect(text, at, '"weights_metadata_nbytes"'), ":")
        value, at = _value(text, at)
        if type(value) is not int or value < 1:
            raise SegmentError("descriptor: weights_metadata_nbytes must be a number > 0")
        weights_metadata_nbytes, at = value, _expect(text, at, ",")
    for token in ('"items"', ":", "["):
        at = _expect(text, at, token)
    return Description(files, weights_metadata_nbytes, _items(text, at, body_nbytes))


def _value(text: str, at: int) -> tuple[object, int]:
    """One JSON value that is short, and where it ends."""
    piece = text[_skip(text, at) :][:_HEAD]
    try:
        value, end = _DECODER.raw_decode(piece)
    except (ValueError, RecursionError) as error:
        raise SegmentError(_SHAPE) from error
    return value, _skip(text, at) + end


def _files(value: object) -> tuple[BodyFile, ...]:
    if not isinstance(value, list) or len(value) > MOST_FILES:
        raise SegmentError(f"descriptor: files must be a list of at most {MOST_FILES}")
    return tuple(_file(one, index) for index, one in enumerate(value))


def _file(value: object, index: int) -> BodyFile:
    types = {"name": str, "offset": int, "nbytes": int, "kind": str, "held": bool}
    if not isinstance(value, dict) or value.keys() != types.keys():
        raise SegmentError(f"descriptor file {index} is not {', '.join(types)}")
    if any(type(value[key]) is not kind for key, kind in types.items()):
        raise SegmentError(f"descriptor file {index} holds something of another type")
    return BodyFile(**value)


def _items(text: str, at: int, body_nbytes: int) -> tuple[Mapping[str, Any], ...]:
    """What follows the bracket at *at*, up to the descriptor's end."""
    items: list[Mapping[str, Any]] = []
    piece, piece_at = "", 0
    at = _skip(text, at)
    while text[at : at + 1] != "]":
        if items:
            at = _skip(text, _expect(text, at, ","))
        if at - piece_at + _PIECE // 2 > len(piece) and piece_at + len(piece) < len(text):
            piece, piece_at = text[at : at + _PIECE], at
        try:
            item, end = _DECODER.raw_decode(piece, at - piece_at)
        except (ValueError, RecursionError):
            piece, piece_at = text[at : at + _PIECE], at
            try:
                item, end = _DECODER.raw_decode(piece, 0)
            except (ValueError, RecursionError) as error:
                raise SegmentError(f"descriptor item {len(items)} is no JSON object") from error
        items.append(_checked(item, len(items), body_nbytes))
        at = _skip(text, piece_at + end)
    at = _skip(text, _expect(text, _skip(text, at + 1), "}"))
    if at != len(text):
        raise SegmentError("descriptor goes on after its end")
    return tuple(items)


def _checked(item: object, index: int, body_nbytes: int) -> Mapping[str, Any]:
    if index >= MAX_ITEMS:
        raise SegmentError(f"descriptor has more than {MAX_ITEMS} items")
    if not isinstance(item, dict) or not isinstance(item.get("name"), str):
        raise SegmentError(f"descriptor item {index} has no name")
    offset, nbytes = item.get("offset"), item.get("nbytes")
    if type(offset) is not int or type(nbytes) is not int or offset < 0 or nbytes < 0:
        raise SegmentError(f"descriptor item {index}: offset and nbytes must be numbers >= 0")
    if not _shallow(item, _LEVELS):
        raise SegmentError(f"descriptor item {index} nests deeper than {_LEVELS} levels")
    if offset + nbytes > body_nbytes:
        raise SegmentError(f"descriptor item {index} leaves a body of {body_nbytes} bytes")
    return item


def _shallow(value: object, levels: int) -> bool:
    """Whether a value nests no deeper than *levels*: whoever copies it later recurses."""
    if isinstance(value, dict):
        return levels > 0 and all(_shallow(one, levels - 1) for one in value.values())
    if isinstance(value, list):
        return levels > 0 and all(_shallow(one, levels - 1) for one in value)
    return True


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _no_number(text)


def _no_number(text: str) -> float:
    # Python reads and writes NaN and infinities, which is no JSON to anybody else.
    raise ValueError(text)


_DECODER = json.JSONDecoder(parse_constant=_no_number, parse_float=_finite)


def _is_next(text: str, at: int, token: str) -> bool:
    return text.startswith(token, _skip(text, at))


def _expect(text: str, at: int, token: str) -> int:
    at = _skip(text, at)
    if not text.startswith(token, at):
        raise SegmentError(_SHAPE)
    return at + len(token)


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def _read(fd: int, offset: int, nbytes: int) -> bytes:
    pieces = []
    while nbytes:
        piece = os.pread(fd, min(nbytes, 1 << 24), offset)
        if not piece:
            raise SegmentError("the slot ends early")
        pieces.append(piece)
        offset += len(piece)
        nbytes -= len(piece)
    return b"".join(pieces)
