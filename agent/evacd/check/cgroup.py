"""How much memory this process's control groups allow, in version 1 and 2.

Shared memory is charged to whoever touches it first, and the daemon prefaults: a limit on its
own group, not on the workloads', is what staged state has to fit in.

Source: kernel documentation, admin-guide/cgroup-v2 and cgroup-v1/memory, read 2026-11-29.
"""

from collections.abc import Iterator
from pathlib import Path, PurePath

# Version 1 writes "no limit" as the largest page-aligned long.
_NO_LIMIT = 2**62


def limit(text: str, *, root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """The least limit in bytes over the group and all above it; None where there is none.

    Args:
        text: Of ``/proc/self/cgroup``.
    """
    found = [number for file in _files(text, root) if (number := _number(file)) is not None]
    return min((one for one in found if one < _NO_LIMIT), default=None)


def _files(text: str, root: Path) -> Iterator[Path]:
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        path = PurePath(group.lstrip("/"))
        for folder in (path, *path.parents):
            if controllers == "":
                yield root / folder / "memory.max"
            elif "memory" in controllers.split(","):
                yield root / "memory" / folder / "memory.limit_in_bytes"


def _number(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None  # "max"
