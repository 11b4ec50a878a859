import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.agent.daemon.nodes import Node, node_at


@pytest.fixture
def small_disk() -> Iterator[Callable[[Path, int], None]]:
    """Mounts a small file system at a path; gone at the end."""
    mounted: list[Path] = []

    def mount(path: Path, nbytes: int) -> None:
        path.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={nbytes}", "tmpfs", str(path)]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("needs the right to mount a small tmpfs")
        mounted.append(path)

    yield mount
    for path in mounted:
        subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node whose daemon is not started yet."""
    yield from node_at(tmp_path / "node")
