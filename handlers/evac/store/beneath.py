"""Walking a tree that its own users may tamper with, without ever leaving it.

The daemon is root and the folders belong to workloads, which can swap a folder for a
symbolic link at any moment. So no path is ever handed to the kernel whole: each component
is opened relative to the one before it, and a link is refused wherever it stands.
(`openat2` with RESOLVE_BENEATH does the same in one call, but has no binding in the
standard library and is refused by older container sandboxes.)
"""

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from evac.store import Owner

FILE_MODE = 0o640
FOLDER_MODE = 0o750
# The root itself holds one folder per owner and must let each of them pass.
ROOT_MODE = 0o755
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class NotGiven(PermissionError):
    """The file system gives no file to another user: the workload could not read what we saved for it."""


@contextmanager
def folder(
    root: str, parts: Sequence[str], *, make: bool = False, owner: Owner | None = None
) -> Iterator[int]:
    """The fd of the folder *parts* below *root*.

    Args:
        make: Create what is missing, durably and as *owner*'s.

    Raises:
        OSError: ENOENT where a part is missing; ENOTDIR or ELOOP where one is a link or a file.
    """
    here = _open_root(root, make=make)
    try:
        for part in parts:
            below = _open_part(here, part, make=make, owner=owner)
            os.close(here)
            here = below
        yield here
    finally:
        os.close(here)


def own(fd: int, owner: Owner | None) -> None:
    """Hand what we created to *owner*; only root can, so nobody else tries.

    Raises:
        NotGiven: The file system gives nothing away.
        OSError: Something else is in the way.
    """
    if owner is not None and os.geteuid() == 0:
        try:
            os.fchown(fd, owner.uid, owner.gid)
        except OSError as error:
            why = f"{error.strerror}: its files cannot be given to uid {owner.uid}"
            if error.errno in (errno.EPERM, errno.EACCES):
                raise NotGiven(error.errno, f"{why} (an NFS export with root_squash?)") from error
            raise OSError(error.errno, why) from error


def _open_part(here: int, part: str, *, make: bool, owner: Owner | None) -> int:
    try:
        return os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=here)
    except FileNotFoundError:
        if not make:
            raise
    try:
        os.mkdir(part, FOLDER_MODE, dir_fd=here)
    except FileExistsError:  # somebody else was quicker: it is theirs
        return os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=here)
    below = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=here)
    try:
        os.fchmod(below, FOLDER_MODE)  # whatever the umask
        own(below, owner)
        # The new folder itself is synced with its first entry: a folder's or, at the end, a file's.
        os.fsync(here)
    except BaseException:
        os.close(below)
        raise
    return below


def _open_root(root: str, *, make: bool) -> int:
    try:
        return os.open(root, _FOLDER)
    except FileNotFoundError:
        if not make:
            raise
    parent = os.path.dirname(root)
    if parent == root:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), root)
    above = _open_root(parent, make=True)
    try:
        name = os.path.basename(root)
        try:
            os.mkdir(name, ROOT_MODE, dir_fd=above)
        except FileExistsError:
            return os.open(root, _FOLDER)
        made = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=above)
        try:
            os.fchmod(made, ROOT_MODE)  # whatever the umask
            os.fsync(above)
        except BaseException:
            os.close(made)
            raise
        return made
    finally:
        os.close(above)
