"""CRC-32C of a whole from those of its parts, without reading a byte again.

Appending n zero bytes to a message is a linear map of its CRC over GF(2); with it,
``crc(a + b) = zeros(crc(a), len(b)) ^ crc(b)``. Squaring the map of one zero bit gives it for any n.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache

# Castagnoli's polynomial, bits reversed (RFC 3720, appendix B.4).
_POLYNOMIAL = 0x82F63B78


def combined(parts: Iterable[tuple[int, int]]) -> int:
    """The checksum of parts laid end to end.

    Args:
        parts: Of each, its CRC-32C and its length in bytes.
    """
    total = 0
    for crc, nbytes in parts:
        total = _with_zeros(total, nbytes) ^ crc
    return total


def _with_zeros(crc: int, nbytes: int) -> int:
    return _apply(_zeros(nbytes), crc)


@lru_cache(maxsize=16)
def _zeros(nbytes: int) -> Sequence[int]:
    """The map of so many zero bytes; kept, since all parts of a body but the last are of one length."""
    step = [_POLYNOMIAL, *(1 << bit for bit in range(31))]  # one zero bit
    for _ in range(3):
        step = [_apply(step, row) for row in step]  # two, four, eight: a byte
    total = [1 << bit for bit in range(32)]
    while nbytes:
        if nbytes & 1:
            total = [_apply(step, row) for row in total]
        nbytes >>= 1
        if nbytes:
            step = [_apply(step, row) for row in step]
    return tuple(total)


def _apply(matrix: Sequence[int], vector: int) -> int:
    out = 0
    for row in matrix:
        if vector & 1:
            out ^= row
        vector >>= 1
    return out
