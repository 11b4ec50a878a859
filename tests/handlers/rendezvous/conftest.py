"""Stores that the nodes of a job meet in."""

import json
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined] # public, but not in __all__

from evac.rendezvous.address import Address
from tests.handlers.rendezvous.cells import COLUMNS, ROWS, filled
from tests.handlers.rendezvous.nodes import HOST, local
from tests.matrix import Matrix
from tests.services.etcd import etcd
from tests.services.etcd_secured import Secured, etcd_secured
from tests.services.skipping import or_skip

# torch's TCPStore asks DNS for the name of every client, in its only thread. A test machine's DNS need
# not answer at all: wait for it as shortly as can be (resolv.conf(5)).
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(
        Matrix(
            name="departures",
            title="a node leaves: the others train on (in brackets: the handler without workers)",
            rows=ROWS,
            columns=COLUMNS,
            here=Path(__file__).parent,
            elsewhere=tuple(filled()),
        )
    )


@pytest.fixture(scope="session")
def etcd_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with or_skip(), etcd(tmp_path_factory.mktemp("etcd")) as port:
        yield port


@pytest.fixture
def tcpstore() -> Iterator[Address]:
    """A TCPStore that no agent serves, as `evac store` runs it."""
    server = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    yield local(server.port)
    del server


@pytest.fixture
def in_etcd(etcd_port: int) -> Iterator[Address]:
    yield local(etcd_port, "etcd")
    # The next test's job has the same name.
    body = json.dumps({"key": "AA==", "range_end": "AA=="}).encode()
    request = urllib.request.Request(f"http://{HOST}:{etcd_port}/v3/kv/deleterange", data=body)
    urllib.request.urlopen(request, timeout=10).close()


@pytest.fixture(params=["tcpstore", "in_etcd"])
def store(request: pytest.FixtureRequest) -> Address:
    """Each kind of store, served by nobody of the job."""
    found: Address = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module", name="etcd")
def etcd_with_users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with or_skip(), etcd_secured(tmp_path_factory.mktemp("secured")) as made:
        yield made


@pytest.fixture
def address(etcd: Secured, request: pytest.FixtureRequest) -> Address:
    """Of a job that no other test has."""
    return etcd.address(request.node.name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path
