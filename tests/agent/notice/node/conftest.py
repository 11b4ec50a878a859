import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest
import trustme
from aiohttp.test_utils import TestServer

from evacd.notice.longpoll import Pace
from evacd.notice.node import Access, Limits, NodeApi, NodeSource
from tests.agent.notice.hearing import MovedClock
from tests.agent.notice.node.api_server import ApiServer

FAST = Pace(poll=0.02, backoff_first=0.005, backoff_most=0.02)
QUICK = Limits(connect=1.0, read=0.5, hold=30.0, slack=1.0)

Make = Callable[[Access], NodeSource]


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    """This cluster's own CA."""
    return trustme.CA()


@pytest.fixture
def cluster() -> ApiServer:
    return ApiServer("gpu-7", "gpu-8")


@pytest.fixture
async def access(
    cluster: ApiServer, authority: trustme.CA, tmp_path: Path
) -> AsyncIterator[Access]:
    """The way to the cluster over TLS, with a service account's files."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    (tmp_path / "token").write_text("token-1\n")
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    server = TestServer(cluster.app, scheme="https")
    await server.start_server(ssl=context)
    try:
        yield Access(f"https://127.0.0.1:{server.port}", tmp_path / "token", tmp_path / "ca.crt")
    finally:
        await cluster.end_watches()
        await server.close()


@pytest.fixture
def make(session: aiohttp.ClientSession, clock: MovedClock) -> Make:
    return lambda access: NodeSource(
        NodeApi(session, access, "gpu-7", limits=QUICK), clock, pace=FAST, jitter=lambda: 0.0
    )


@pytest.fixture
def source(make: Make, access: Access) -> NodeSource:
    return make(access)
