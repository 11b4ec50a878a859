"""A slot's header: what comes back is what was said, or it is refused."""

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evac.errors import SegmentError
from evac.segment import HEADER_BYTES, MAGIC, PAGE, VERSION, Header, SlotState, aligned

SLOT = 1 << 30


@st.composite
def headers(draw: st.DrawFn) -> Header:
    """Headers that are right for a slot of `SLOT` bytes."""
    body = draw(st.integers(0, SLOT - PAGE))
    regions = []
    for _ in range(2):
        offset = draw(st.integers(PAGE, SLOT))
        regions += [offset, draw(st.integers(0, SLOT - offset))]
    return Header(
        draw(st.sampled_from(SlotState)),
        draw(st.integers(0, 2**64 - 1)),
        draw(st.integers(0, 2**64 - 1)),
        body,
        *regions,
    )


@given(headers())
def test_what_was_packed_is_unpacked(header: Header) -> None:
    page = header.pack().ljust(PAGE, b"\0")

    assert Header.unpack(page, slot_nbytes=SLOT) == header


@given(headers(), st.integers(0, HEADER_BYTES - 1), st.integers(1, 255))
def test_a_changed_byte_is_noticed_wherever_it_is(header: Header, at: int, change: int) -> None:
    page = bytearray(header.pack().ljust(PAGE, b"\0"))
    page[at] ^= change

    with pytest.raises(SegmentError):
        Header.unpack(bytes(page), slot_nbytes=SLOT)


@given(st.binary(max_size=2 * HEADER_BYTES))
def test_any_bytes_are_refused_and_never_crash(page: bytes) -> None:
    with pytest.raises(SegmentError):
        Header.unpack(page, slot_nbytes=SLOT)


def signed(*, magic: bytes = MAGIC, version: int = VERSION, state: int = 2, **other: int) -> bytes:
    """A page whose CRC is right, whatever it says: what a hostile owner can write."""
    names = ("incarnation", "step", "body", "doff", "dlen", "moff", "mlen")
    body = struct.pack(
        "<8sIIQQQQQQQ", magic, version, state, *(other.get(name, 0) for name in names)
    )
    return (body + struct.pack("<I", zlib.crc32(body))).ljust(PAGE, b"\0")


@given(
    st.builds(
        signed,
        state=st.integers(0, 2**32 - 1),
        body=st.integers(0, 2**64 - 1),
        doff=st.integers(0, 2**64 - 1),
        dlen=st.integers(0, 2**64 - 1),
        moff=st.integers(0, 2**64 - 1),
        mlen=st.integers(0, 2**64 - 1),
    ),
    st.integers(0, 2**40),
)
def test_no_signed_header_points_outside_of_its_slot(page: bytes, slot_nbytes: int) -> None:
    try:
        header = Header.unpack(page, slot_nbytes=slot_nbytes)
    except SegmentError:
        return
    for offset, nbytes in (
        (PAGE, header.body_nbytes),
        (header.descriptor_offset, header.descriptor_nbytes),
        (header.metadata_offset, header.metadata_nbytes),
    ):
        assert nbytes == 0 or (offset >= PAGE and offset + nbytes <= slot_nbytes)


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        (b"", "header is 0 bytes"),
        (signed(magic=b"NOTASLOT"), "magic"),
        (signed(version=99), "version is 99"),
        (signed(state=3), "state is 3"),
        (signed(body=SLOT), "body at 4096"),
        (signed(dlen=1), "descriptor at 0"),
        (signed(moff=SLOT, mlen=1), "metadata at"),
    ],
)
def test_the_reason_says_what_is_wrong(page: bytes, reason: str) -> None:
    with pytest.raises(SegmentError, match=reason):
        Header.unpack(page, slot_nbytes=SLOT)


@given(st.integers(0, 2**50))
def test_aligned_is_the_next_page(nbytes: int) -> None:
    assert aligned(nbytes) % PAGE == 0
    assert 0 <= aligned(nbytes) - nbytes < PAGE
