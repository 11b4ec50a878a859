"""A table of small rows in a file, which outlives this process though not this boot.

::

    0        page: magic, version, boot id, CRC-32
    4096     one page per row: two halves, and the newer one that is whole counts

A row is copied into a shared mapping: no system call, and where the file lies in memory nothing that a disk could hold
up (on a disk that hangs or is frozen, the page fault does). A SIGKILL in the middle of a copy leaves the other half. Nothing is synced, for what outlives the
machine is of no use: its memory is gone. Turned down: SQLite, which does its I/O on the loop or in
a thread that the answer to a workload would have to wait for.
"""

import fcntl
import mmap
import os
import struct
import zlib
from pathlib import Path

from evacd.errors import AlreadyRunning, StateError

_MAGIC = b"EVACROWS"
_VERSION = 1
_PAGE = 4096
_HALF = _PAGE // 2
_HEAD = struct.Struct("<8sI36s")
_ROW = struct.Struct("<QI")
_CRC = struct.Struct("<I")
# So many rows more whenever it is full.
_MORE = 256
# A row of more is refused.
MOST = _HALF - _ROW.size - _CRC.size


class Table:
    """Rows by number, 0 and up. One process at a time.

    Args:
        salvage: Where the first page is damaged, the rows that are whole count all the same.

    Attributes:
        sound: All that was written there is here: false where it is damaged, or of another boot.

    Raises:
        AlreadyRunning: Another process has it.
        StateError: The file cannot be used.
    """

    def __init__(self, path: Path, *, boot: str, salvage: bool = False) -> None:
        self.path = path
        self.rows: dict[int, bytes] = {}
        self.sound = True
        self._count = 0
        self._newest: dict[int, int] = {}
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise StateError(str(path), error.strerror or str(error)) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._open(boot.encode()[:36], salvage=salvage)
        except BlockingIOError as error:
            os.close(self._fd)
            raise AlreadyRunning(str(path)) from error
        except (OSError, ValueError) as error:
            os.close(self._fd)
            reason = getattr(error, "strerror", None) or str(error)
            raise StateError(str(path), reason) from error

    def put(self, number: int, row: bytes) -> None:
        """Write one row, in place of what it was.

        Raises:
            ValueError: It is longer than `MOST`.
            OSError: There is no room for more rows.
        """
        if len(row) > MOST:
            raise ValueError(f"a row of {len(row)} bytes, at most {MOST}")
        if number >= self._count:
            self._grow(number + 1)
        self._write(number, row)
        self.rows[number] = row

    def remove(self, number: int) -> None:
        """There is no such row any more."""
        if self.rows.pop(number, None) is not None:
            self._write(number, b"")

    def close(self) -> None:
        """Let go of the file, whose rows stay."""
        self._map.close()
        os.close(self._fd)

    def _open(self, boot: bytes, *, salvage: bool) -> None:
        head = _HEAD.pack(_MAGIC, _VERSION, boot)
        head += _CRC.pack(zlib.crc32(head))
        found = os.pread(self._fd, len(head), 0)
        if found != head:
            # Of another boot, or of none: its rows speak of memory that is gone.
            self.sound = not found
            if _whole(found) or not salvage:
                os.ftruncate(self._fd, 0)
            os.posix_fallocate(self._fd, 0, _PAGE * (1 + _MORE))
            os.pwrite(self._fd, head, 0)
        nbytes = os.fstat(self._fd).st_size // _PAGE * _PAGE
        self._map = mmap.mmap(self._fd, nbytes)
        self._count = nbytes // _PAGE - 1
        for number in range(self._count):
            row = self._read(number)
            if row:
                self.rows[number] = row

    def _grow(self, count: int) -> None:
        # Room first: a mapping of what the disk cannot hold would end in SIGBUS.
        count = -(-count // _MORE) * _MORE
        nbytes = _PAGE * (1 + count)
        os.posix_fallocate(self._fd, _PAGE, nbytes - _PAGE)
        # And the new mapping before the old one goes: there may be no memory for it.
        former, self._map = self._map, mmap.mmap(self._fd, nbytes)
        former.close()
        self._count = count

    def _read(self, number: int) -> bytes:
        self._newest[number], best = _newest(self._map, _PAGE * (1 + number))
        return best

    def _write(self, number: int, row: bytes) -> None:
        turn = self._newest.get(number, 0) + 1
        at = _PAGE * (1 + number) + turn % 2 * _HALF
        data = _ROW.pack(turn, len(row)) + row
        data = _CRC.pack(zlib.crc32(data)) + data
        self._map[at : at + len(data)] = data
        self._newest[number] = turn


def _whole(head: bytes) -> bool:
    """Whether it was written as it is, by some version in some boot."""
    end = len(head) - _CRC.size
    return end > 0 and _CRC.unpack_from(head, end)[0] == zlib.crc32(head[:end])


def rows_of(path: Path, *, boot: str) -> dict[int, bytes] | None:
    """What a table holds that cannot be written; None where it is not a whole one of this boot."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError:
        return None
    head = _HEAD.pack(_MAGIC, _VERSION, boot.encode()[:36])
    if data[: len(head)] != head:
        return None
    pages = range(_PAGE, len(data) - _PAGE + 1, _PAGE)
    found = {at // _PAGE - 1: _newest(data, at)[1] for at in pages}
    return {number: row for number, row in found.items() if row}


def _newest(data: "mmap.mmap | bytes", page: int) -> tuple[int, bytes]:
    """The newer whole half of a row's page, and its turn; 0 where there is none."""
    newest, best = 0, b""
    for at in (page, page + _HALF):
        turn, length = _ROW.unpack_from(data, at + _CRC.size)
        end = at + _CRC.size + _ROW.size + length
        if length > MOST or turn <= newest:
            continue
        if _CRC.unpack_from(data, at)[0] == zlib.crc32(data[at + _CRC.size : end]):
            newest, best = turn, data[end - length : end]
    return newest, best
