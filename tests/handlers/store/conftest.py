"""The real servers, each once for a whole run; one that cannot run here skips its tests by name."""

import itertools
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

import pytest

from evac.store import Owner
from tests.handlers.store.cells import COLUMNS, ROWS, TESTS, filled
from tests.matrix import Matrix
from tests.services import azure, gcs, s3
from tests.services.proxy import Proxy, proxy
from tests.services.skipping import or_skip

ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not ROOT, reason="mounts and owners need root")
OWNER = Owner(uid=12345, gid=23456)
Server = TypeVar("Server")
_numbers = itertools.count()


def fresh() -> str:
    """A prefix that no other test uses."""
    return f"some/where-{next(_numbers)}"


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3.S3Server]:
    for server in _running(s3.seaweed, tmp_path_factory.mktemp("seaweed")):
        server.call("create_bucket", Bucket="evac-test")
        yield server


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3.S3Server]:
    for server in _running(s3.moto, tmp_path_factory.mktemp("moto")):
        server.call("create_bucket", Bucket="evac-test")
        yield server


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[azure.AzureServer]:
    for server in _running(azure.azurite, tmp_path_factory.mktemp("azurite")):
        server.make_container("evac-test")
        yield server


@pytest.fixture(scope="session")
def fake_gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[gcs.GcsServer]:
    for server in _running(gcs.fake_gcs, tmp_path_factory.mktemp("gcs")):
        server.make_bucket("evac-test")
        yield server


@pytest.fixture
def disk() -> Iterator[Path]:
    """A folder on a real disk: /tmp may be a tmpfs."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 24 MiB."""
    target = tmp_path / "mount"
    target.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"cannot mount: {done.stderr.strip()}")
    try:
        yield target
    finally:
        subprocess.run(["umount", "-l", str(target)], check=True)


@pytest.fixture
def strict_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No key, profile or instance that this machine may have by chance."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


@pytest.fixture
def keys(aws: None, seaweed: s3.S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both servers open with the same ones."""
    for name, value in seaweed.environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def between(keys: None, seaweed: s3.S3Server) -> Iterator[Proxy]:
    """What stands between us and SeaweedFS."""
    with proxy(seaweed.port) as made:
        yield made


def _running(
    server: Callable[[Path], AbstractContextManager[Server]], folder: Path
) -> Iterator[Server]:
    with or_skip(), server(folder) as running:
        yield running


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(
        Matrix(
            name="faults",
            title="fault x store",
            rows=ROWS,
            columns=COLUMNS,
            here=TESTS,
            elsewhere=tuple(filled()),
        )
    )
