"""A daemon to talk to, and clients that are closed whatever happens."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import evac
from tests.handlers.client.honest import LIMIT, Daemon


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "evacd.sock"


@pytest.fixture
def daemon(path: Path) -> Iterator[Daemon]:
    one = Daemon(path)
    yield one
    one.stop()


@pytest.fixture
def connect(path: Path) -> Iterator[Callable[..., evac.Client]]:
    """Make clients of job ``job`` on the test's socket; all are closed at the end."""
    with ExitStack() as stack:

        def make(job: str = "job", **options: Any) -> evac.Client:
            return stack.enter_context(evac.connect(job, socket=path, **options))

        yield make


@pytest.fixture
def client(daemon: Daemon, connect: Callable[..., evac.Client]) -> evac.Client:
    one = connect()
    assert one.wait_connected(LIMIT)
    return one


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher around the tests must not name their jobs."""
    for name in ("EVAC_JOB", "EVAC_RANK", "EVAC_WORLD", "EVAC_PRIORITY", "EVAC_SOCKET", "RANK"):
        monkeypatch.delenv(name, raising=False)
    for name in ("WORLD_SIZE", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_JOB_NAME"):
        monkeypatch.delenv(name, raising=False)
    for name in ("SLURM_PROCID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
