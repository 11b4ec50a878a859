from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from blockbuster import BlockBuster, blockbuster_ctx

from evacd.notice.metadata import open_session
from evacd.notice.simulate.gcp import GcpMetadata


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
