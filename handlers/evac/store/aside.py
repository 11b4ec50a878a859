"""Files under a temporary name: ``.<name>.evac-tmp-<random>``, in the folder they are for.

A killed writer leaves one behind. Each is locked while its writer lives, so the cleaner
never takes a live one; where a file system has no locks, it goes by age alone.
"""

import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from evac.generation import MARKER, Generation
from evac.store import Owner, beneath

_NAME = re.compile(r"\..+\.evac-tmp-[0-9a-f]{16}")
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Opening a FIFO that somebody left in place of a file must not block.
_OLD = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def is_temporary(name: str) -> bool:
    """Whether a file name is one of ours."""
    return _NAME.fullmatch(name) is not None


@contextmanager
def temporary(folder: int, name: str, owner: Owner | None) -> Iterator[tuple[int, str]]:
    """A new file beside *name*, which is gone at the end unless it was renamed.

    Yields:
        Its fd and its temporary name.
    """
    aside = f".{name}.evac-tmp-{secrets.token_hex(8)}"
    fd = os.open(aside, _NEW, beneath.FILE_MODE, dir_fd=folder)
    try:
        with suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.fchmod(fd, beneath.FILE_MODE)  # whatever the umask
        beneath.own(fd, owner)
        yield fd, aside
    finally:
        os.close(fd)
        with suppress(FileNotFoundError):
            os.unlink(aside, dir_fd=folder)


def remove_abandoned(folder: int, *, older_than: float) -> int:
    """Remove what killed writers left in one folder; how many files that were.

    Args:
        older_than: Seconds since the last write.
    """
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if is_temporary(entry.name)]
    if not names:
        return 0
    before = _now(folder) - older_than
    return sum(_remove(folder, name, before) for name in names)


def remove_bare(folder: int, *, older_than: float) -> None:
    """Remove, of a job's folder, those of generations in which nothing is: whoever made or emptied one was killed.

    Args:
        older_than: Seconds since something was in it. Who is about to write there tries again.
    """
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries]
    bare = [name for name in names if Generation.parse(name) and _is_bare(folder, name)]
    if MARKER not in names or not bare:
        return
    before = _now(folder) - older_than
    for name in bare:
        with suppress(OSError):  # gone, or something is in it by now
            if os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime <= before:
                os.rmdir(name, dir_fd=folder)


def _now(folder: int) -> float:
    """By the file system's clock, which may be another machine's: it is what a new file gets."""
    with temporary(folder, "clock", None) as (fd, _):
        return os.fstat(fd).st_mtime


def _is_bare(folder: int, name: str) -> bool:
    try:
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
    except OSError:  # gone, or no folder
        return False
    try:
        with os.scandir(fd) as entries:
            return next(entries, None) is None
    finally:
        os.close(fd)


def _remove(folder: int, name: str, before: float) -> bool:
    try:
        fd = os.open(name, _OLD, dir_fd=folder)
    except OSError:  # gone, or a link: not a file that we wrote
        return False
    try:
        if os.fstat(fd).st_mtime > before:
            return False
        with suppress(FileNotFoundError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(name, dir_fd=folder)
            return True
    except BlockingIOError:  # its writer lives
        return False
    finally:
        os.close(fd)
    return False
