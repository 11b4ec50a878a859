"""Memory to a file's blocks without the page cache, a few pieces at a time.

`pwrite` with O_DIRECT straight from the shared memory costs 0.02-0.03 CPU seconds per GB,
a tenth or less of any way through the page cache, and releases the GIL; a few threads keep the
device's queue full. io_uring was measured and gives nothing over threads at 16 MiB a piece.
Where the kernel refuses O_DIRECT (EINVAL: some FUSE and overlay file systems, memory that is not
aligned) a piece goes through the page cache instead.
"""

import ctypes
import errno
import os
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from threading import Event, Lock

PIECE = 16 * 1024 * 1024
# What every block device accepts; a file's last bytes below it go through the page cache.
BLOCK = 4096
# Below this, opening a second descriptor costs more than it saves.
SMALL = 1024 * 1024

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]


class Stopped(Exception):
    """The caller has set *stop*: nobody waits for this write any more."""


def allocate(fd: int, nbytes: int) -> None:
    """Reserve all blocks at once: a full disk says so now, and extents stay long.

    Raises:
        OSError: ENOSPC, EDQUOT, EFBIG and other refusals that are about this file.
    """
    if nbytes == 0:
        return
    # Not os.posix_fallocate: where the file system has no fallocate, glibc writes a byte
    # into every block instead, which over a network takes longer than the data itself.
    while _libc.fallocate(fd, 0, 0, nbytes) != 0:
        code = ctypes.get_errno()
        if code in (errno.EOPNOTSUPP, errno.ENOSYS):
            os.ftruncate(fd, nbytes)
            return
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))


def write(
    fd: int,
    data: memoryview,
    *,
    helpers: Executor,
    threads: int,
    stop: Event,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Write all of *data* to the file behind *fd*, from its start. Not synced yet.

    Args:
        fd: Open for writing, buffered.
        data: 1-D, contiguous, uint8.
        helpers: Lends up to *threads* - 1 threads, if it has any idle; the calling thread works too.
        stop: Checked between pieces.
        progress: Called from any thread with the number of further bytes written.

    Raises:
        Stopped: *stop* was set. No thread touches *data* any more.
        OSError: The first one that any thread met.
    """
    direct = _open_direct(fd) if data.nbytes >= SMALL else None
    try:
        work = _Work(fd, direct, data, stop, progress)
        wanted = min(threads, -(-data.nbytes // PIECE)) - 1
        lent: list[Future[None]] = []
        # While the interpreter shuts down nobody lends any more: then this thread writes it all.
        with suppress(RuntimeError):
            lent.extend(helpers.submit(work.drain) for _ in range(wanted))
        work.drain()
        for helper in lent:
            # One that never got a thread has nothing left to do. The others are in their last piece.
            if not helper.cancel():
                helper.result()
        if work.error is not None:
            raise work.error
    finally:
        if direct is not None:
            os.close(direct)


def read(fd: int, offset: int, into: memoryview, *, stop: Event) -> int:
    """Fill *into* from byte *offset* on; returns the bytes read, fewer only at the end.

    Raises:
        Stopped: *stop* was set.
    """
    got = 0
    while got < into.nbytes:
        if stop.is_set():
            raise Stopped
        with into[got : got + PIECE] as piece:
            step = os.preadv(fd, [piece], offset + got)
        if step == 0:
            break
        got += step
    return got


class _Work:
    """The pieces that are left, shared by the threads that write them."""

    def __init__(
        self,
        fd: int,
        direct: int | None,
        data: memoryview,
        stop: Event,
        progress: Callable[[int], None] | None,
    ) -> None:
        self.error: Exception | None = None
        self._fd = fd
        self._direct = direct
        self._data = data
        self._stop = stop
        self._progress = progress
        self._lock = Lock()
        self._next = 0

    def drain(self) -> None:
        """Write pieces until none is left or one has failed; never raises."""
        try:
            while (start := self._take()) is not None:
                if self._stop.is_set():
                    raise Stopped
                end = min(start + PIECE, self._data.nbytes)
                self._write(start, end)
                if self._progress is not None:
                    self._progress(end - start)
        except Exception as error:  # noqa: BLE001 - handed to the thread that asked
            with self._lock:
                self.error = self.error or error

    def _take(self) -> int | None:
        with self._lock:
            if self.error is not None or self._next >= self._data.nbytes:
                return None
            start = self._next
            self._next += PIECE
            return start

    def _write(self, start: int, end: int) -> None:
        aligned = end - end % BLOCK
        direct = self._direct  # read once: another thread may find out that it is refused
        if direct is not None and start < aligned:
            try:
                start = self._pwrite(direct, start, aligned)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._direct = None
        if start < end:
            self._pwrite(self._fd, start, end)
            # Starts the write-back of this piece, so that the fsync at the end finds little to do.
            os.posix_fadvise(self._fd, start, end - start, os.POSIX_FADV_DONTNEED)

    def _pwrite(self, fd: int, start: int, end: int) -> int:
        while start < end:
            # Released at once: an exported slice would keep the owner from unmapping.
            with self._data[start:end] as piece:
                start += os.pwrite(fd, piece, start)
        return start


def _open_direct(fd: int) -> int | None:
    """A second description of the same file: O_DIRECT set on *fd* would hit the tail, too."""
    try:
        # Through /proc, so that it is this inode whatever its name means by now.
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError:
        return None
