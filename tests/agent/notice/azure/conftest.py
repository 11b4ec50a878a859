from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from evacd.notice.azure import AzureSource, sources
from evacd.notice.metadata import Limits
from evacd.notice.simulate.azure import AzureMetadata
from tests.agent.notice.hearing import MovedClock

QUICK = Limits(connect=1.0, read=0.5)

Make = Callable[..., AzureSource]


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


@pytest.fixture
def azure(clock: MovedClock) -> AzureMetadata:
    # On the source's clock, so that both agree about the date.
    return AzureMetadata(clock=clock, rate=None)


@pytest.fixture
async def azure_url(azure: AzureMetadata) -> AsyncIterator[str]:
    async with TestServer(azure.app) as server:
        yield str(server.make_url("")).rstrip("/")


@pytest.fixture
def make(session: aiohttp.ClientSession, clock: MovedClock) -> Make:
    """A source that asks the server at this URL."""

    def make(url: str, **settings: Any) -> AzureSource:
        settings = {
            "patient": QUICK,
            "prompt": QUICK,
            "period": 0.02,
            "jitter": lambda: 0.0,
            **settings,
        }
        (source,) = sources(session, clock, url=url, **settings)
        return source

    return make


@pytest.fixture
def source(make: Make, azure_url: str) -> AzureSource:
    return make(azure_url)
