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
from evac.generation import Generation
from evac.segment import HEADER_BYTES, Header, SlotState

MAX_DESCRIPTOR = 64 * 1024 * 1024
MAX_METADATA = 64 * 1024 * 1024
MAX_ITEMS = 1 << 18
# Parsed piece by piece: json holds the GIL, and one large document would freeze the loop.
_PIECE = 1 << 18
_LEVELS = 8
_SPACE = " \t\r\n"


@dataclass(frozen=True, eq=False)
class Inspection:
    """What lies in a slot, checked.

    Attributes:
        items: The descriptor's ``items``: mappings with ``name``, ``offset``, ``nbytes``.
        digest: Of descriptor and metadata, so that the next generation need not parse again.
    """

    body_nbytes: int
    items: tuple[Mapping[str, Any], ...]
    metadata: bytes
    digest: bytes


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
    items = parse_items(descriptor, body_nbytes=header.body_nbytes)
    return Inspection(header.body_nbytes, items, metadata, sums.digest())


def parse_items(descriptor: bytes, *, body_nbytes: int) -> tuple[Mapping[str, Any], ...]:
    """The items of a descriptor ``{"items": [{"name", "offset", "nbytes", ...}, ...]}``.

    "items" is the first and only field; an empty descriptor has no items. No item may be
    larger than 256 KiB or nest deeper than 8 levels.

    Raises:
        SegmentError: Not of that shape, or an item leaves the body.
    """
    if not descriptor:
        return ()
    try:
        text = descriptor.decode()
    except UnicodeDecodeError as error:
        raise SegmentError("descriptor is not UTF-8") from error
    at = 0
    for token in ("{", '"items"', ":", "["):
        at = _expect(text, at, token)
    items: list[Mapping[str, Any]] = []
    decoder = json.JSONDecoder(parse_constant=_no_number, parse_float=_finite)
    piece, piece_at = "", 0
    at = _skip(text, at)
    while text[at : at + 1] != "]":
        if items:
            at = _skip(text, _expect(text, at, ","))
        if at - piece_at + _PIECE // 2 > len(piece) and piece_at + len(piece) < len(text):
            piece, piece_at = text[at : at + _PIECE], at
        try:
            item, end = decoder.raw_decode(piece, at - piece_at)
        except (ValueError, RecursionError):
            piece, piece_at = text[at : at + _PIECE], at
            try:
                item, end = decoder.raw_decode(piece, 0)
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


def _expect(text: str, at: int, token: str) -> int:
    at = _skip(text, at)
    if not text.startswith(token, at):
        raise SegmentError('descriptor is not {"items": [...]}')
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
