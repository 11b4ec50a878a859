"""A slot's memory: one header page, the body, then the descriptor.

::

    0      header page (4 KiB): the struct below, then zeros
    4096   body: byte for byte the file that a flush writes
    tail   descriptor (JSON) and DCP's `.metadata` bytes, 4 KiB aligned

The workload writes all of it and may lie, so the daemon reads the header with `pread`,
checks it here, and takes identity from its roster, never from these bytes.
"""

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum

from evac.errors import SegmentError

PAGE = 4096
MAGIC = b"EVACSLOT"
VERSION = 1
_HEADER = struct.Struct("<8sIIQQQQQQQ")
_CRC = struct.Struct("<I")
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
        metadata_nbytes: Their length; 0 for a body that is no DCP file.
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


def aligned(nbytes: int) -> int:
    """*nbytes* rounded up to whole 4 KiB pages."""
    return -(-nbytes // PAGE) * PAGE
