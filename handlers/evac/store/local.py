"""A local directory: files written aside, synced, renamed, and their folder synced.

A key is the file's path below the root. Nobody ever sees half a file under its key, even
when the writer is killed: what it leaves is a temporary file, which `clean` removes later.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from threading import Event

from evac.errors import StoreMissing, StoreRejected, StoreUnavailable
from evac.store import Entry, Owner, aside, beneath, direct, keys
from evac.store.threads import Threads, in_thread

# `get` is for manifests and the like; a body is read by `read`.
GET_LIMIT = 256 * 1024 * 1024
# A prefix has two levels and a generation one; what lies deeper is not ours.
DEPTH = 16

# Opening a FIFO that somebody left in place of a file must not block.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}
_HOPELESS = {
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG,
    errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL, errno.EFAULT,
}  # fmt: skip


class LocalStore:
    """A `Store` in a directory.

    Args:
        root: Absolute; created when something is first put. A link here is followed, beneath it none.
        owner: Whose new files and folders become, where we are root.
        threads: That write one body at a time.
    """

    def __init__(self, root: str, *, owner: Owner | None = None, threads: int = 4) -> None:
        self._root = os.path.normpath(root)
        self._owner = owner
        self._threads = threads
        # Its own: on a mount whose server is gone they hang where nothing can end them.
        self._lender = Threads(f"file://{self._root}")

    @property
    def url(self) -> str:
        """``file:///absolute/path``."""
        return f"file://{self._root}"

    async def put(
        self, key: str, data: memoryview, *, progress: Callable[[int], None] | None = None
    ) -> None:
        """See `Store.put`. When cancelled, stops after the pieces in flight and leaves nothing."""
        await in_thread(partial(self._put, key, data, progress), self._lender)

    async def create(self, key: str, data: bytes) -> bool:
        """See `Store.create`; needs a file system that has hard links."""
        return await in_thread(partial(self._create, key, data), self._lender)

    async def get(self, key: str) -> bytes:
        """See `Store.get`; at most 256 MiB."""
        return await in_thread(partial(self._get, key), self._lender)

    async def read(self, key: str, offset: int, into: memoryview) -> int:
        """See `Store.read`."""
        return await in_thread(partial(self._read, key, offset, into), self._lender)

    async def list(self, prefix: str) -> Sequence[Entry]:
        """See `Store.list`; regular files only, our temporary ones left out."""
        return await in_thread(partial(self._list, prefix), self._lender)

    async def delete(self, key: str) -> None:
        """See `Store.delete`; folders that it empties go, too."""
        await in_thread(partial(self._delete, key), self._lender)

    async def prepare(self, prefix: str) -> None:
        """See `Store.prepare`: the folders that *prefix* names, those that are missing.

        Raises:
            StoreRejected: One of them is somebody else's, so that the owner may not write there.
        """
        await in_thread(partial(self._prepare, prefix), self._lender)

    async def clean(self, *, older_than: float = 60.0) -> int:
        """Remove what killed writers left; how many files that were.

        Args:
            older_than: Seconds since the last write to such a file.
        """
        return await in_thread(partial(self._clean, older_than), self._lender)

    def _put(
        self, key: str, data: memoryview, progress: Callable[[int], None] | None, stop: Event
    ) -> None:
        with self._written(key, data, progress, stop) as (folder, temporary, name):
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)

    def _create(self, key: str, data: bytes, stop: Event) -> bool:
        # Cheap, and the usual answer; the link below is what decides.
        if self._exists(key):
            return False
        with self._written(key, memoryview(data), None, stop) as (folder, temporary, name):
            try:
                os.link(
                    temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False
                )
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno in _NO_LINKS:
                    reason = "no hard links on this file system: cannot write conditionally"
                    raise StoreRejected(key, reason) from error
                raise
            os.fsync(folder)
            return True

    @contextmanager
    def _written(
        self,
        key: str,
        data: memoryview,
        progress: Callable[[int], None] | None,
        stop: Event,
    ) -> Iterator[tuple[int, str, str]]:
        """Synced bytes under a temporary name.

        Yields:
            The folder's fd, the temporary name and the name to give it.
        """
        *parts, name = _split(key)
        with (
            _translated(key, missing="its folder vanished while it was written"),
            data.cast("B") as view,
            ExitStack() as opened,
        ):
            folder, fd, temporary = self._temporary(parts, name, opened)
            try:
                direct.allocate(fd, view.nbytes)
                direct.write(
                    fd,
                    view,
                    helpers=self._lender.pool(),
                    threads=self._threads,
                    stop=stop,
                    progress=progress,
                )
                os.fsync(fd)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise StoreRejected(key, _full(fd, view.nbytes, error)) from error
                raise
            if stop.is_set():
                raise direct.Stopped
            yield folder, temporary, name

    def _temporary(
        self, parts: Sequence[str], name: str, opened: ExitStack
    ) -> tuple[int, int, str]:
        # A delete beside us may prune the folder between its making and the file's: again, then.
        for _ in range(3):
            with suppress(FileNotFoundError), ExitStack() as attempt:
                folder = attempt.enter_context(
                    beneath.folder(self._root, parts, make=True, owner=self._owner)
                )
                fd, temporary = attempt.enter_context(aside.temporary(folder, name, self._owner))
                opened.enter_context(attempt.pop_all())
                return folder, fd, temporary
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    def _exists(self, key: str) -> bool:
        *parts, name = _split(key)
        with _translated(key):
            try:
                with beneath.folder(self._root, parts) as folder:
                    os.stat(name, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                return False
            return True

    @contextmanager
    def _opened(self, key: str) -> Iterator[int]:
        *parts, name = _split(key)
        with _translated(key), beneath.folder(self._root, parts) as folder:
            fd = os.open(name, _READ, dir_fd=folder)
            try:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise StoreRejected(key, "not a regular file")
                yield fd
            finally:
                os.close(fd)

    def _get(self, key: str, stop: Event) -> bytes:
        with self._opened(key) as fd:
            nbytes = os.fstat(fd).st_size
            if nbytes > GET_LIMIT:
                raise StoreRejected(key, f"{nbytes} bytes, expected at most {GET_LIMIT}")
            buffer = bytearray(nbytes)
            with memoryview(buffer) as into:
                got = direct.read(fd, 0, into, stop=stop)
            return bytes(buffer[:got])

    def _read(self, key: str, offset: int, into: memoryview, stop: Event) -> int:
        with self._opened(key) as fd, into.cast("B") as view:
            return direct.read(fd, offset, view, stop=stop)

    def _list(self, prefix: str, stop: Event) -> Sequence[Entry]:
        found: list[Entry] = []
        with _translated(prefix or "."):
            for path, folder in self._walk(_split(prefix) if prefix else (), stop):
                with os.scandir(folder) as entries:
                    for entry in entries:
                        # What is not printable, or no UTF-8, is no key of ours.
                        if entry.name.isprintable() and not aside.is_temporary(entry.name):
                            with suppress(FileNotFoundError):
                                status = entry.stat(follow_symlinks=False)
                                if stat.S_ISREG(status.st_mode):
                                    key = "/".join((*path, entry.name))
                                    found.append(Entry(key, status.st_size))
        return sorted(found, key=lambda entry: entry.key)

    def _delete(self, key: str, stop: Event) -> None:
        *parts, name = _split(key)
        with _translated(key), suppress(FileNotFoundError):
            with beneath.folder(self._root, parts) as folder:
                os.unlink(name, dir_fd=folder)
                os.fsync(folder)
            for depth in range(len(parts), 0, -1):
                with beneath.folder(self._root, parts[: depth - 1]) as above:
                    try:
                        os.rmdir(parts[depth - 1], dir_fd=above)
                    except OSError as error:
                        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                            return
                        raise
                    os.fsync(above)

    def _prepare(self, prefix: str, stop: Event) -> None:
        parts = _split(prefix)
        with _translated(prefix):
            # What others may swap at any moment is looked at, never given away.
            for depth in range(1, len(parts) + 1):
                path = parts[:depth]
                with beneath.folder(self._root, path, make=True, owner=self._owner) as folder:
                    found = os.fstat(folder).st_uid
                if self._owner is None or found == self._owner.uid:
                    continue
                if found != os.geteuid() or (path == parts and found == 0):
                    reason = f"{'/'.join(path)} belongs to uid {found}, not to {self._owner.uid}"
                    raise StoreRejected(prefix, reason)

    def _clean(self, older_than: float, stop: Event) -> int:
        removed = 0
        with _translated("."):
            for _, folder in self._walk((), stop):
                removed += aside.remove_abandoned(folder, older_than=older_than)
                aside.remove_bare(folder, older_than=older_than)
        return removed

    def _walk(self, top: Sequence[str], stop: Event) -> Iterator[tuple[tuple[str, ...], int]]:
        """All folders from *top* down, each with its fd; nothing where there is none."""
        left = [tuple(top)]
        while left:
            if stop.is_set():
                raise direct.Stopped
            path = left.pop()
            try:
                with beneath.folder(self._root, path) as folder:
                    yield path, folder
                    if len(path) < DEPTH:
                        with os.scandir(folder) as entries:
                            left += [
                                (*path, e.name) for e in entries if e.is_dir(follow_symlinks=False)
                            ]
            except (FileNotFoundError, NotADirectoryError):
                continue  # gone meanwhile, or a link or a file by now
            except PermissionError:
                if path == tuple(top):
                    raise
                continue  # another owner's: not for us to see


def _split(key: str) -> tuple[str, ...]:
    parts = keys.split(key)
    if aside.is_temporary(parts[-1]):
        raise StoreRejected(key, "the name of a temporary file")
    return parts


def _full(fd: int, nbytes: int, error: OSError) -> str:
    """``No space left on device: 4096 bytes to write, 12 free``."""
    free = os.fstatvfs(fd)
    return f"{error.strerror}: {nbytes} bytes to write, {free.f_bavail * free.f_frsize} free"


@contextmanager
def _translated(key: str, *, missing: str = "") -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        if missing:
            raise StoreUnavailable(key, missing) from error
        raise StoreMissing(key, "no such object") from error
    except OSError as error:
        kind = StoreRejected if error.errno in _HOPELESS else StoreUnavailable
        raise kind(key, error.strerror or str(error)) from error
