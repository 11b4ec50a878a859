"""A second place for what was staged where memory has room for one slot: a file on a local disk.

With one slot, either the newest generation is kept or the next one is written. So the staged
one is copied to the disk, and the slot is free again while the copy is what a flush would take.
The file has no name (O_TMPFILE): it goes with the daemon, however that ends, and nothing is
ever left to be cleaned. The disk need not outlive the machine; such a copy is never durable.
"""

import errno
import os
from collections.abc import Callable
from pathlib import Path

from evacd.workloads.memory import Region, Stopped

# Written out and dropped from the page cache at this pace: memory is what is short.
_CHUNK = 64 * 1024 * 1024


def spill(source: Region, folder: Path, stop: Callable[[], bool]) -> Region:
    """A copy of *source* in *folder*, whole and written out. Blocks; releases the GIL.

    Raises:
        OSError: The disk is full, broken, or knows no files without a name.
        Stopped: *stop* became true meanwhile.
    """
    fd = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        # All of its room first: a disk that is full later would end in a half copy.
        os.posix_fallocate(fd, 0, source.nbytes)
        done = 0
        while done < source.nbytes:
            if stop():
                raise Stopped
            length = min(_CHUNK, source.nbytes - done)
            _copy(source.fd, fd, done, length)
            os.fdatasync(fd)
            os.posix_fadvise(fd, done, length, os.POSIX_FADV_DONTNEED)
            done += length
        return Region(fd, source.nbytes)
    except BaseException:
        os.close(fd)
        raise


def _copy(source: int, target: int, offset: int, nbytes: int) -> None:
    os.lseek(target, offset, os.SEEK_SET)
    end = offset + nbytes
    while offset < end:
        copied = os.sendfile(target, source, offset, end - offset)
        if not copied:
            raise OSError(errno.EIO, "the slot ended before its size")
        offset += copied
