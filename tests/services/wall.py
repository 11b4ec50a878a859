"""A wall clock that is one process's own and may be stepped; its monotonic clock stays the machine's.

The machine's clock is everybody's, and time namespaces have none of their own (time_namespaces(7)), so the C
library's calls are stood before: `wall.c`, which the machine's own compiler makes into a library.
"""

import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.services.process import Unavailable

_SOURCE = Path(__file__).with_name("wall.c")


class Wall:
    """Steps it.

    Attributes:
        environment: What a process is started with to live by it.
    """

    def __init__(self, library: Path, file: Path) -> None:
        self._file = file
        self.environment = {"LD_PRELOAD": str(library), "EVAC_TEST_CLOCK": str(file)}
        self.step(0)

    def step(self, seconds: int) -> None:
        """From now on it is so far ahead of the machine's; all who live by it see so at once."""
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("@l", seconds))


@contextmanager
def wall(folder: Path) -> Iterator[Wall]:
    """One that is right.

    Raises:
        Unavailable: There is no compiler here.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        raise Unavailable("there is no C compiler: apt-get install gcc libc6-dev")
    library = folder / "wall.so"
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise Unavailable(f"the C compiler makes no library: {done.stderr[-500:]}")
    yield Wall(library, folder / "ahead")
