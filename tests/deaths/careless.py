"""Writes one complete generation, as careful as it is told: run by test_power under strace."""

import os
import sys
from pathlib import Path

from evac.generation import METADATA, Generation
from tests.handlers.commit.made import PREFIX, whole


def main(root: str, care: str) -> None:
    """Write, and tell that it is done.

    Args:
        care: ``none``; ``files``: sync these and not their names; ``all``.
    """
    folder = Path(root, PREFIX, Generation(1, 1).directory)
    folder.mkdir(parents=True)
    files = whole(Generation(1, 1), 1)
    for name in sorted(files, key=lambda name: (name == METADATA, "manifest" in name)):
        fd = os.open(folder / f"{name}.new", os.O_WRONLY | os.O_CREAT, 0o600)
        os.pwrite(fd, files[name], 0)
        if care != "none":
            os.fsync(fd)
        os.close(fd)
        here = os.open(folder, os.O_RDONLY)
        os.rename(f"{name}.new", name, src_dir_fd=here, dst_dir_fd=here)
        os.close(here)
    above = folder
    while care == "all" and above != Path(root).parent:
        fd = os.open(above, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
        above = above.parent
    os.write(1, b"flush.finished step 1\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
