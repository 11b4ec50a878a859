"""Runs all tests, in as many pytest processes beside each other as there are shards.

Most of the time of these tests is waiting: for daemons, deadlines, machines that boot. Each
shard's output is printed whole, with its tables, when it ends; meanwhile a line tells how far
they are. Exits 1 where one of them failed.

    python tests/shards.py [arguments of pytest for each]
"""

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

_ROOT = Path(__file__).parent.parent
# About equally long. What boots machines and what counts a machine's resources do not meet.
_FIRST = ["tests/handlers", "tests/deaths", "tests/integration", "tests/test_demo.py"]
_SHARDS = {
    "handlers": _FIRST,
    "agent": ["tests", *(f"--ignore={path}" for path in _FIRST)],
}
_TOLD_SECONDS = 30.0
_PERCENT = re.compile(rb"\[ *(\d+)%\]")


class Shard:
    """One pytest process."""

    def __init__(self, name: str, arguments: list[str], output: IO[bytes]) -> None:
        self.name = name
        self.told = False
        self._output = output
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-o", f"cache_dir=.pytest_cache/{name}", *arguments],
            cwd=_ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
        )

    def ended(self) -> int | None:
        """Its exit code, once it has one."""
        return self._process.poll()

    def text(self) -> bytes:
        """All that it printed until now."""
        return Path(self._output.name).read_bytes()

    def progress(self) -> str:
        """How far it is."""
        found = _PERCENT.findall(self.text())
        return f"{self.name} {int(found[-1]) if found else 0} %"

    def kill(self) -> None:
        """End it, however far it is."""
        self._process.kill()
        self._process.wait()


def main() -> int:
    """Run them; returns the worst exit code."""
    worst = 0
    with tempfile.TemporaryDirectory() as folder:
        shards = [
            Shard(name, [*paths, *sys.argv[1:]], (Path(folder) / name).open("wb"))
            for name, paths in _SHARDS.items()
        ]
        try:
            quiet = 0.0
            while not all(shard.told for shard in shards):
                time.sleep(0.5)
                quiet += 0.5
                for shard in shards:
                    code = shard.ended()
                    if code is not None and not shard.told:
                        shard.told = True
                        worst = max(worst, abs(code))
                        _write(f"\n=== {shard.name} ===\n".encode() + shard.text())
                if quiet >= _TOLD_SECONDS:
                    quiet = 0.0
                    running = [shard.progress() for shard in shards if not shard.told]
                    _write(f"... {', '.join(running)}\n".encode())
        finally:
            for shard in shards:
                if shard.ended() is None:
                    shard.kill()
    return min(worst, 1)


def _write(text: bytes) -> None:
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
