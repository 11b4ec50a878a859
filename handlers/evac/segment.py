"""A slot's memory: one header page, the body, then the descriptor.

::

    0      header page (4 KiB): the struct below, then zeros
    4096   body: byte for byte the file that a flush writes, or several of them end to end
    tail   descriptor (JSON) and DCP's `.metadata` bytes, 4 KiB aligned; behind these may stand
           those of the `.metadata` of the weights alone

The workload writes all of it and may lie, so the daemon reads the header with `pread`,
checks it here, and takes identity from its roster, never from these bytes.
"""

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any

from evac.errors import SegmentError
from evac.generation import WEIGHTS
from evac.manifest import COPY, FILE_KINDS, REST, is_file_name

PAGE = 4096
MAGIC = b"EVACSLOT"
VERSION = 1
_HEADER = struct.Struct("<8sIIQQQQQQQ")
_CRC = struct.Struct("<I")
MOST_FILES = 4096
KINDS = (*FILE_KINDS, COPY)
HEADER_BYTES = _HEADER.size + _CRC.size


class SlotState(IntEnum):
    """What the owner says of the body."""

    EMPTY = 0
    WRITING = 1
    COMPLETE = 2


@dataclass(frozen=True)
class Header:
    """The header page.

    Attributes:
        state: COMPLETE only after the last byte of the body is in place.
        incarnation: Of the job, as claimed by rank 0.
        step: Training step of the body.
        body_nbytes: Length of the body, which starts at byte 4096.
        descriptor_offset: Where the descriptor (JSON, UTF-8) starts.
        descriptor_nbytes: Its length; 0 where there is none.
        metadata_offset: Where the bytes of DCP's `.metadata` start.
        metadata_nbytes: Their length, those of the weights' own included; 0 for a body that is
            no DCP file.
    """

    state: SlotState
    incarnation: int
    step: int
    body_nbytes: int
    descriptor_offset: int = 0
    descriptor_nbytes: int = 0
    metadata_offset: int = 0
    metadata_nbytes: int = 0

    def pack(self) -> bytes:
        """The header as it stands at byte 0 of a slot, CRC-32 last."""
        body = _HEADER.pack(
            MAGIC,
            VERSION,
            self.state,
            self.incarnation,
            self.step,
            self.body_nbytes,
            self.descriptor_offset,
            self.descriptor_nbytes,
            self.metadata_offset,
            self.metadata_nbytes,
        )
        return body + _CRC.pack(zlib.crc32(body))

    @classmethod
    def unpack(cls, page: bytes, *, slot_nbytes: int) -> "Header":
        """Read and check a header against the size of its slot.

        Raises:
            SegmentError: Not a header, another version, or it points outside the slot.
        """
        if len(page) < HEADER_BYTES:
            raise SegmentError(f"header is {len(page)} bytes, expected {HEADER_BYTES}")
        body = page[: _HEADER.size]
        magic, version, state, *numbers = _HEADER.unpack(body)
        if magic != MAGIC:
            raise SegmentError(f"magic is {magic!r}, expected {MAGIC!r}")
        if version != VERSION:
            raise SegmentError(f"layout version is {version}, expected {VERSION}")
        if _CRC.unpack(page[_HEADER.size : HEADER_BYTES])[0] != zlib.crc32(body):
            raise SegmentError("header CRC does not match")
        if state not in set(SlotState):
            raise SegmentError(f"state is {state}, expected 0, 1 or 2")
        header = cls(SlotState(state), *numbers)
        for what, offset, nbytes in (
            ("body", PAGE, header.body_nbytes),
            ("descriptor", header.descriptor_offset, header.descriptor_nbytes),
            ("metadata", header.metadata_offset, header.metadata_nbytes),
        ):
            if nbytes and (offset < PAGE or offset + nbytes > slot_nbytes):
                raise SegmentError(f"{what} at {offset}+{nbytes} leaves a slot of {slot_nbytes}")
        return header


@dataclass(frozen=True)
class BodyFile:
    """One of the files that a body consists of.

    Attributes:
        name: In the generation's folder; weights lie in ``weights/`` below it.
        offset: From the body's start.
        kind: ``weights``, ``rest``, or ``copy`` of a file that another rank writes: it is not
            flushed.
        held: Other nodes hold all that is in it, too.
    """

    name: str
    offset: int
    nbytes: int
    kind: str = REST
    held: bool = False


def check_files(files: Sequence[BodyFile], *, body_nbytes: int) -> None:
    """Check that *files* are a body: end to end, each from a page of it, weights first.

    Raises:
        SegmentError: Says what is wrong with which.
    """
    if not 0 < len(files) <= MOST_FILES:
        raise SegmentError(f"the body has {len(files)} files, expected 1 to {MOST_FILES}")
    at = 0
    for one in files:
        if not is_file_name(one.name):
            raise SegmentError(f"{one.name[:80]!r} is no name for a file of the body")
        if one.kind not in KINDS:
            raise SegmentError(f"{one.name} is of kind {one.kind[:80]!r}, expected one of {KINDS}")
        if one.kind != COPY and (one.kind == WEIGHTS) != one.name.startswith(f"{WEIGHTS}/"):
            raise SegmentError(f"{one.name} is no place for what is {one.kind}")
        if one.nbytes < 1 or one.offset % PAGE:
            raise SegmentError(f"{one.name} is empty, or does not start at a page")
        if one.offset != at:
            what = "overlaps" if one.offset < at else "leaves a gap behind"
            raise SegmentError(f"{one.name} at {one.offset} {what} the file before, to {at}")
        at += one.nbytes
    if at != body_nbytes:
        raise SegmentError(f"the files are {at} bytes, the body is {body_nbytes}")
    if len({one.name for one in files}) < len(files):
        raise SegmentError("two files of the body have one name")
    kinds = [one.kind for one in files]
    if kinds != sorted(kinds, key=KINDS.index):
        raise SegmentError(f"the files are not in the order {', '.join(KINDS)}")
    if kinds[0] == COPY:
        raise SegmentError("the body holds nothing but copies")


def describe(
    items: Sequence[Mapping[str, Any]],
    files: Sequence[BodyFile] = (),
    weights_metadata_nbytes: int = 0,
) -> bytes:
    """The descriptor of a slot.

    Args:
        items: What the body holds; see PROTOCOL.md.
        files: That it consists of; none where it is one, of the name that was reserved.
        weights_metadata_nbytes: How much at the end of the metadata is the weights' own `.metadata`.
    """
    document: dict[str, Any] = {}
    if files:
        document["files"] = [asdict(one) for one in files]
    if weights_metadata_nbytes:
        document["weights_metadata_nbytes"] = weights_metadata_nbytes
    # The items last: a reader takes what precedes them whole, and them one by one.
    return json.dumps({**document, "items": [*items]}, separators=(",", ":")).encode()


def aligned(nbytes: int) -> int:
    """*nbytes* rounded up to whole 4 KiB pages."""
    return -(-nbytes // PAGE) * PAGE
