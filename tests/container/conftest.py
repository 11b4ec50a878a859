"""Real kubectl and helm against the tests' API server; skipped by name where they are not."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kube.cluster import Cluster, program, running


@pytest.fixture(scope="session")
def binaries() -> None:
    for name in ("helm", "kubectl"):
        if program(name) is None:
            pytest.skip(f"{name} is not here: tests/container/prepare brings it")


@pytest.fixture(scope="module")
def cluster(binaries: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with two spot nodes, one for all tests of a file."""
    with running(tmp_path_factory.mktemp("cluster")) as cluster:
        for name in ("gpu-7", "gpu-8"):
            cluster.node(name, **{"cloud.google.com/gke-spot": "true"})
        yield cluster


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path
