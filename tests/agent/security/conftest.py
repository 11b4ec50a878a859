"""One node with a daemon of root's, and a bystander whom no attack may disturb."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.agent.daemon.nodes import Node, Workload, node_at, until

NBYTES = 64 * 1024


@dataclass
class Scene:
    """A node with a bystander.

    Attributes:
        step: What the bystander staged last.
    """

    node: Node
    bystander: Workload
    step: int = 1
    socket: str = field(init=False)

    def __post_init__(self) -> None:
        self.socket = str(self.node.socket)

    def comes_back(self) -> None:
        """The daemon was restarted: the bystander finds it, however long that takes."""
        self.step += 1
        until("it is back", lambda: self.bystander.do("stage", step=self.step) == {})

    def goes_on(self) -> None:
        """The bystander stages once more, and the daemon has it."""
        self.step += 1
        assert self.bystander.do("stage", step=self.step) == {}
        self.node.knows("bystander", self.step)


@pytest.fixture(scope="module")
def shared() -> Iterator[Scene]:
    """For all tests of a file; in a folder that everybody may pass through."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to be somebody else")
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    folder.chmod(0o755)
    for node in node_at(folder / "node"):
        node.store.mkdir(mode=0o755)
        node.start(
            "--policy-max-priority", "100", "--policy-max-bytes-per-user", "64MiB",
            "--http", "--http-port", "0",
        )  # fmt: skip
        yield Scene(node, node.staged(1, "bystander", nbytes=NBYTES))
    shutil.rmtree(folder)


@pytest.fixture
def scene(shared: Scene) -> Iterator[Scene]:
    """The bystander is checked after each test."""
    yield shared
    shared.goes_on()
