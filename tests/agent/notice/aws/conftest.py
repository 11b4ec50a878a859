from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from evacd.notice.simulate.aws import AwsMetadata
from tests.agent.notice.aws.scene import Clocks, Scene


@pytest.fixture
def theirs() -> Clocks:
    """The service's clocks."""
    return Clocks()


@pytest.fixture
def ec2(theirs: Clocks) -> Iterator[AwsMetadata]:
    """EC2; whatever a test is about, no client may send what a proxy or a bug would."""
    ec2 = AwsMetadata(clock=theirs)
    yield ec2
    assert ec2.wrongs == []


@pytest.fixture
async def scene(
    session: aiohttp.ClientSession, ec2: AwsMetadata, theirs: Clocks
) -> AsyncIterator[Scene]:
    async with TestServer(ec2.app) as server:
        url = str(server.make_url("")).rstrip("/")
        scene = Scene(session, url, ec2, Clocks(), theirs)
        ec2.fault = scene.faults
        yield scene
