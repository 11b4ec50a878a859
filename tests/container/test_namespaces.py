"""Memory is handed over and saved whatever namespaces a workload lives in."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.daemon.nodes import Node, Workload, node_at, until

NAMESPACES = {
    "pid": ["--pid", "--fork", "--kill-child"],
    "mount": ["--mount"],
    "user": ["--user", "--map-user=1000"],
    "all": [
        "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc",
        "--net", "--ipc", "--uts", "--cgroup",
    ],
}  # fmt: skip


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    yield from node_at(tmp_path / "node")


@pytest.mark.parametrize("flags", NAMESPACES.values(), ids=NAMESPACES)
def test_a_workload_s_memory_crosses_and_outlives_it(node: Node, flags: list[str]) -> None:
    unshare = ["unshare", *flags]
    if subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("this machine makes no such namespace")
    node.start()
    workload = Workload(unshare, job="train", socket=str(node.socket))
    try:
        workload.ready()
        assert workload.do("stage", step=4) == {}
        node.knows("train", 4)
    finally:
        workload.close()
    until("its death is known", lambda: "workload.died" in node.log.read_text())

    node.drain()
    assert node.settled()["root/train"]["kept"]
    assert "root/train/step-4.1/__0.manifest.json" in node.files()
