"""Where what is read of a generation lies until it is loaded: each rank's own, or one for a node.

Ranks of a node find each other's memory through ``/proc``, which works where they are of one user and
see each other as processes; who does not (ranks in pods of their own) reads for itself. The memory has no
name that could stay behind, and goes with the last process that maps it.

Turned down: to hand bytes from rank to rank over the process group. Each of N ranks would hold a
copy of its own, and eight of them on loopback are slower than a good store.
"""

import fcntl
import mmap
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from evac._memory import FIXED_SIZE
from evac.segment import aligned
from evac.torch.world import World

# Python 3.11 has no name for it; a body is mapped whole, and only what is read takes memory.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
_TOKEN_BYTES = 16


class Room:
    """Memory of this rank alone, of each file as long as the file: zeros where nothing was read.

    In small pages: huge ones save faults where there are any, and where the kernel has to make
    room for them first they took 1.5 s per GiB (Linux 6.18).
    """

    def __init__(self, nbytes: Mapping[str, int]) -> None:
        self._nbytes = nbytes
        self._maps: dict[str, mmap.mmap] = {}

    def memory(self, body: str) -> memoryview:
        """All of *body*."""
        if body not in self._maps:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
            self._maps[body] = mmap.mmap(-1, self._nbytes[body], flags=flags)
        return memoryview(self._maps[body])

    def drop(self) -> None:
        """Give the memory back, as soon as nobody looks at it any more."""
        self._maps.clear()


class CommonRoom(Room):
    """The same in memory that other ranks of this node have mapped, too."""

    def __init__(self, fd: int, nbytes: Mapping[str, int]) -> None:
        super().__init__(nbytes)
        flags = mmap.MAP_SHARED | _NO_RESERVE
        self._whole: mmap.mmap | None = mmap.mmap(fd, _total(nbytes), flags=flags)
        self._starts: dict[str, int] = {}
        at = 0
        for body in sorted(nbytes):
            self._starts[body] = at
            at += aligned(nbytes[body])

    def memory(self, body: str) -> memoryview:
        """See `Room.memory`."""
        assert self._whole is not None
        start = self._starts[body]
        return memoryview(self._whole)[start : start + self._nbytes[body]]

    def drop(self) -> None:
        """See `Room.drop`."""
        self._whole = None


def meet(world: World) -> list[int]:
    """For each rank the lowest one whose memory it can open: those of one number can share. Collective."""
    token = secrets.token_bytes(_TOKEN_BYTES)
    with _made(_TOKEN_BYTES) as fd:
        if fd is not None:
            os.pwrite(fd, token, 0)
        everybody = world.gather((world.node, os.getpid(), fd, token))
        found = world.rank
        for rank, (node, pid, its, word) in enumerate(everybody[: world.rank]):
            if node == world.node and _opens(pid, its, word):
                found = rank
                break
        # Nobody closes before all have looked.
        return grouped(world.gather(found))


def grouped(lowest: Sequence[int]) -> list[int]:
    """Who opens one that itself opens another stays alone: not all would see the same."""
    return [one if lowest[one] == one else rank for rank, one in enumerate(lowest)]


def common(
    world: World, groups: Sequence[int], nbytes: Mapping[str, int]
) -> tuple[Room, Sequence[int]]:
    """Memory for files of these lengths, and who shares it: *groups*, as far as they can. Collective.

    Where one of a group cannot have it, each of that group has its own.
    """
    mine = groups[world.rank]
    several = groups.count(mine) > 1
    with _made(_total(nbytes) if several and mine == world.rank else 0) as fd:
        where = world.gather((os.getpid(), fd))[mine]
        room = _mapped(where, nbytes) if several else None
        opened = world.gather(room is not None)
    alone = {group for group, there in zip(groups, opened, strict=True) if not there}
    sharing = [rank if group in alone else group for rank, group in enumerate(groups)]
    return (Room(nbytes) if room is None or mine in alone else room), sharing


def _mapped(where: tuple[int, int | None], nbytes: Mapping[str, int]) -> CommonRoom | None:
    try:
        with _opened(*where) as fd:
            return CommonRoom(fd, nbytes)
    except OSError:
        return None


def _opens(pid: int, fd: int | None, token: bytes) -> bool:
    try:
        with _opened(pid, fd) as its:
            return os.pread(its, len(token) + 1, 0) == token
    except OSError:
        return False


@contextmanager
def _opened(pid: int, fd: int | None) -> Iterator[int]:
    """A file that another process has open, or this one.

    Raises:
        OSError: It cannot be had.
    """
    its = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        yield its
    finally:
        os.close(its)


@contextmanager
def _made(nbytes: int) -> Iterator[int | None]:
    """Memory that others can open while this lasts; None where it is not to be had, or of no bytes."""
    fd = None
    try:
        with suppress(OSError):
            if nbytes:
                fd = os.memfd_create("evac-restore", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
                os.ftruncate(fd, nbytes)
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, FIXED_SIZE | fcntl.F_SEAL_SEAL)
        yield fd
    finally:
        if fd is not None:
            os.close(fd)


def _total(nbytes: Mapping[str, int]) -> int:
    return sum(map(aligned, nbytes.values()))
