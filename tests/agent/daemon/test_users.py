"""evacd as root, and workloads that are not: they stage, are saved, and resume."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evac.commit import State, survey
from evac.generation import Generation
from evac.store import open_store
from tests.agent.daemon import user_worker
from tests.agent.daemon.nodes import Node, node_at, until

NOBODY = 65534

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be a daemon for others")


@pytest.fixture
def node() -> Iterator[Node]:
    """In a folder that everybody may pass through: pytest's own is root's."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    folder.chmod(0o755)
    yield from node_at(folder / "node")
    shutil.rmtree(folder)


@pytest.fixture
def running(node: Node) -> Iterator[list["Worker"]]:
    """Workers that are gone at the end."""
    workers: list[Worker] = []
    yield workers
    for worker in workers:
        worker.close()


class Worker:
    """A `user_worker.py`; what it told when it had staged."""

    def __init__(self, node: Node, kind: str) -> None:
        command = [sys.executable, user_worker.__file__, kind, str(NOBODY), str(node.socket)]
        self._process = subprocess.Popen(
            [*command, f"file://{node.store}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        assert self._process.stdout
        self.told: dict[str, Any] = json.loads(self._process.stdout.readline() or "{}")

    def kill(self) -> None:
        """SIGKILL, and the corpse collected."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Gone, with its pipes."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe
            pipe.close()


@pytest.mark.parametrize("kind", ["plain", "torch"])
async def test_a_workload_that_is_not_root_stages_is_saved_and_resumes(
    node: Node, running: list[Worker], kind: str
) -> None:
    node.store.mkdir(mode=0o755)
    node.start()

    first = Worker(node, kind)
    running.append(first)
    assert (first.told.get("uid"), first.told.get("found")) == (NOBODY, 0)
    node.knows("job", 1)
    [prefix] = {one["unit"] for one in node.status()["workloads"]}
    node.drain()
    assert node.settled()[prefix]["kept"]
    first.kill()
    node.cancel()

    second = Worker(node, kind)
    running.append(second)
    assert (second.told.get("uid"), second.told.get("found")) == (NOBODY, 1)
    assert second.told.get("before", "") == first.told["state"]
    node.knows("job", 2)
    second.kill()

    # Whom no notice saved is saved at death.
    until("it is saved", lambda: list((node.store / prefix).glob("step-2.*/*.manifest.json")))
    found = await survey(open_store(f"file://{node.store}"), prefix)
    assert {one.generation for one in found if one.state is State.COMPLETE} >= {Generation(1, 1)}
    assert found[0].generation == Generation(2, 2)
    owners = {path.stat().st_uid for path in (node.store / prefix).rglob("*")}
    assert owners == {NOBODY}
