"""What arrives as an fd: a slot to be mapped, or a sealed answer to be read.

A slot is mapped over an anonymous `mmap` of Python's. `mmap.mmap(fd)` would keep a copy of
the fd for as long as the mapping lives (until Python 3.13), and a forked data loader would
inherit it and pin the daemon's memory long after the job.
"""

import ctypes
import fcntl
import json
import mmap
import os
from typing import Any, cast

from evac import _fork
from evac.errors import ProtocolError, SegmentError
from evac.segment import HEADER_BYTES, PAGE, Header, SlotState

# The size can never change under a reader: neither SIGBUS nor a short read.
FIXED_SIZE = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
MAX_ANSWER = 64 * 2**20

# linux/mman.h and asm-generic/mman-common.h; not all are in Python 3.11's mmap module.
_MAP_FIXED, _MAP_NORESERVE, _MADV_POPULATE_WRITE = 0x10, 0x4000, 23
_RESERVED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
_FAILED = ctypes.c_void_p(-1).value
_CHUNK = 64 * 2**20

# ctypes lets go of the GIL around a call; mmap.madvise does not.
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Mapping(mmap.mmap):
    """A mapping that a forked child does not inherit."""

    @property
    def address(self) -> int:
        """Where it starts in this process."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self))

    def forget(self) -> None:
        """In a forked child: put plain zeros where the mapping is missing.

        Without it the addresses are free for others, and this object's end would unmap
        whatever came to lie there.
        """
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        _libc.mmap(self.address, len(self), protection, _RESERVED | _MAP_FIXED, -1, 0)


class SlotMemory:
    """One slot, mapped read-write.

    The memory stays valid for as long as somebody holds it, even when the daemon is gone;
    whether it is still worth writing to is for `Client.acquire` to say. In a forked child it
    reads as zeros, and what is written there is lost.

    Attributes:
        number: The slot's number on its connection.
        nbytes: Size of the whole slot.
        memory: The whole slot, header page included, as bytes.
        connection: `Client.connection` when the slot was handed out.
    """

    __slots__ = ("_address", "connection", "memory", "nbytes", "number")

    def __init__(self, number: int, connection: int, mapping: Mapping) -> None:
        self.number = number
        self.connection = connection
        self.nbytes = len(mapping)
        self.memory = memoryview(mapping)
        self._address = mapping.address

    def begin(self, incarnation: int) -> None:
        """Mark the body as being written: torn, until `complete`."""
        header = Header(SlotState.WRITING, incarnation, step=0, body_nbytes=0)
        self.memory[:HEADER_BYTES] = header.pack()

    def complete(self, header: Header) -> None:
        """Mark the body as whole. Nothing is told to the daemon: that is `Client.staged`.

        Raises:
            ValueError: The header does not say COMPLETE.
            SegmentError: It points outside of the slot.
        """
        if header.state is not SlotState.COMPLETE:
            raise ValueError(f"header.state: expected COMPLETE, got {header.state.name}")
        packed = header.pack()
        Header.unpack(packed, slot_nbytes=self.nbytes)
        self.memory[:HEADER_BYTES] = packed

    def populate(self) -> None:
        """Fill this process's page tables, so that the first stage takes no page faults.

        Slow (the order of a second for 10 GiB) and without the GIL. A kernel that cannot
        (before 5.14) costs the page faults and nothing else.
        """
        for offset in range(0, self.nbytes, _CHUNK):
            nbytes = min(_CHUNK, self.nbytes - offset)
            if _libc.madvise(self._address + offset, nbytes, _MADV_POPULATE_WRITE):
                return


def map_slot(fd: int, nbytes: int, *, writable: bool = True) -> Mapping:
    """Map all of a slot, after a look at what the fd really is; the fd stays the caller's.

    Args:
        writable: Else whoever writes to it is ended by SIGSEGV: Python does not know.

    Raises:
        SegmentError: It is not a sealed memfd of *nbytes*, or cannot be mapped.
    """
    if nbytes < PAGE:
        raise SegmentError(f"slot of {nbytes} bytes, expected at least {PAGE}")
    check_sealed(fd, nbytes)
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    try:
        mapping = Mapping(-1, nbytes, flags=_RESERVED, prot=protection)
    except OSError as error:
        raise SegmentError(f"cannot map {nbytes} bytes: {error.strerror}") from error
    flags = mmap.MAP_SHARED | _MAP_FIXED
    if not writable:
        protection = mmap.PROT_READ
    if _libc.mmap(mapping.address, nbytes, protection, flags, fd, 0) == _FAILED:
        reason = os.strerror(ctypes.get_errno())
        raise SegmentError(f"cannot map {nbytes} bytes: {reason}")
    # A forked data loader must not hold on to the daemon's memory.
    _libc.madvise(mapping.address, nbytes, mmap.MADV_DONTFORK)
    _fork.watch(mapping)
    return mapping


def check_sealed(fd: int, nbytes: int) -> None:
    """Look at the fd itself: it holds *nbytes*, and always will.

    Raises:
        SegmentError: It does not.
    """
    try:
        size = os.fstat(fd).st_size
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        raise SegmentError(f"not a memfd: {error.strerror}") from error
    if size != nbytes:
        raise SegmentError(f"memfd holds {size} bytes, {nbytes} were announced")
    if seals & FIXED_SIZE != FIXED_SIZE:
        raise SegmentError(f"memfd has seals {seals:#x}, expected at least {FIXED_SIZE:#x}")


def read_answer(fd: int, nbytes: int) -> dict[str, Any]:
    """The JSON object in a sealed memfd; the fd stays the caller's.

    Raises:
        ProtocolError: Not sealed, not of that size, above 64 MiB, or not a JSON object.
    """
    if nbytes > MAX_ANSWER:
        raise ProtocolError(f"answer of {nbytes} bytes, at most {MAX_ANSWER}")
    try:
        check_sealed(fd, nbytes)
        document: Any = json.loads(os.pread(fd, nbytes, 0))
    except (SegmentError, OSError, ValueError, RecursionError) as error:
        raise ProtocolError(f"answer cannot be read: {error}") from error
    if not isinstance(document, dict):
        raise ProtocolError("answer is not a JSON object")
    return cast("dict[str, Any]", document)
