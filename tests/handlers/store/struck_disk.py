"""Flushes to a directory, one child each, of which strace lets one call fail: run by test_faults_of_disks.

strace strikes the n-th call of a kind that a thread makes. Child k wastes so many first that this is
the k-th of its flush, and tells on standard output how that ended, as JSON.
"""

import asyncio
import ctypes
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from evac.commit import verify
from evac.store import threads
from evac.store.local import LocalStore
from evac.store.threads import in_thread
from tests.handlers.commit.made import PREFIX
from tests.handlers.store.flushing import GENERATION, attempt, whole

# The call that strace strikes: no thread that only imports things makes so many.
WASTED = 400


def wasted(call: str) -> Callable[[], object]:
    """Makes one call of that kind that changes nothing."""
    spare = os.memfd_create("spare")
    root = os.open("/", os.O_RDONLY)
    libc = ctypes.CDLL(None)
    return {
        "fallocate": lambda: libc.fallocate(spare, 0, ctypes.c_long(0), ctypes.c_long(1)),
        "pwrite64": lambda: os.pwrite(spare, b"x", 0),
        "fsync": lambda: os.fsync(spare),
        "preadv2": lambda: os.preadv(spare, [bytearray(1)], 0),
        "mkdirat": lambda: os.mkdir("/", dir_fd=root),
        "linkat": lambda: os.link("no-such", "no", src_dir_fd=root, dst_dir_fd=root),
        "renameat": lambda: os.rename("no-such", "no", src_dir_fd=root, dst_dir_fd=root),
        "unlinkat": lambda: os.unlink("no-such-file", dir_fd=root),
    }[call]


def waste(call: str, times: int) -> None:
    one = wasted(call)
    for _ in range(times):
        with suppress(OSError):
            one()


def aside(root: Path) -> list[str]:
    """Temporary files that are left."""
    return [path.name for path in root.rglob("*.evac-tmp-*")]


async def life(root: Path, call: str, times: int) -> dict[str, object]:
    """One child's."""
    store = LocalStore(str(root))
    # In the one thread that the store has for its own calls.
    await in_thread(lambda _: waste(call, times), store._lender)
    before = len(os.listdir("/proc/self/fd"))
    error = await attempt(store)
    opened = len(os.listdir("/proc/self/fd")) - before
    was = await whole(store)
    left = aside(root)
    again = await attempt(store)
    await store.clean(older_than=-3600)
    return {
        "error": type(error).__name__ if error else "",
        "reason": error.reason if error else "",
        "opened": opened,
        "was_whole": was,
        "left": left,
        "again": str(again or ""),
        "problems": [one.reason for one in await verify(store, PREFIX, GENERATION)],
        "still": aside(root),
    }


def main(root: str, call: str, calls: int) -> None:
    """Let each child live, one after the other."""
    threads.LIMIT = 1  # calls are counted by thread: all of a child's are made by one
    for number in range(calls):
        child = os.fork()
        if child == 0:
            told = asyncio.run(life(Path(root) / str(number), call, WASTED - 1 - number))
            os.write(1, json.dumps(told).encode() + b"\n")
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
