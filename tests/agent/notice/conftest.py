from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from blockbuster import BlockBuster, blockbuster_ctx

from evacd.notice.metadata import open_session
from evacd.notice.simulate.gcp import GcpMetadata
from tests.agent.notice.cells import COLUMNS, SOURCES, filled
from tests.matrix import Matrix


@pytest.fixture(autouse=True)
def no_blocking() -> Iterator[BlockBuster]:
    """Fail what blocks the event loop."""
    with blockbuster_ctx("evacd") as blocking:
        yield blocking


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with open_session() as session:
        yield session


@pytest.fixture
def gce() -> GcpMetadata:
    return GcpMetadata()


@pytest.fixture
async def gce_url(gce: GcpMetadata) -> AsyncIterator[str]:
    async with TestServer(gce.app) as server:
        yield str(server.make_url("")).rstrip("/")


# --- the table of source x fault, at the end of the run ---------------------------------


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(
        Matrix(
            name="matrix",
            title="source x fault",
            rows=SOURCES,
            columns=COLUMNS,
            here=Path(__file__).parent,
            elsewhere=tuple(filled()),
        )
    )
