"""A store of each kind behind a proxy that strikes its calls."""

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType

import pytest

from evac.store import Store
from evac.store.azure import AzureStore
from evac.store.blobs import RETRY
from evac.store.gcs import GcsStore
from evac.store.location import Location
from evac.store.s3 import S3Store
from evac.store.s3_keys import Chain
from tests.handlers.store.flushing import PART
from tests.services.azure import ACCOUNT, AzureServer
from tests.services.gcs import GcsServer
from tests.services.proxy import Proxy, proxy
from tests.services.s3 import S3Server

BUCKET = "evac-test"
KINDS = ("s3", "gs", "az")
ENVIRONMENTS = MappingProxyType({"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"})
_numbers = itertools.count()


BRIEF = MappingProxyType(
    {
        **RETRY,
        "backoff": {
            "init_backoff": timedelta(milliseconds=1),
            "max_backoff": timedelta(milliseconds=10),
            "base": 2,
        },
    }
)


class SmallS3(S3Store):
    single, part, retry = PART, PART, BRIEF


class SmallGcs(GcsStore):
    single, part, pause = PART, PART, 0.001


class SmallAzure(AzureStore):
    single, part, retry = PART, PART, BRIEF


def store_at(kind: str, endpoint: str, mark: str, *, timeout: float = 60.0) -> Store:
    """A store below *mark* on the server there, whose parts are small."""
    if kind == "az":
        endpoint = f"{endpoint}/{ACCOUNT}"
    location = Location(kind, BUCKET, mark, {"endpoint": endpoint, "timeout": str(timeout)})
    if kind == "s3":
        return SmallS3(location, chain=Chain())
    return SmallGcs(location) if kind == "gs" else SmallAzure(location)


@dataclass(frozen=True)
class Place:
    """A server, what stands before it, and where to ask it unharmed."""

    kind: str
    between: Proxy
    endpoint: str

    def store(self, mark: str, *, struck: bool = True, timeout: float = 60.0) -> Store:
        """A store below *mark*; one that is not *struck* asks the server itself."""
        endpoint = self.between.endpoint if struck else self.endpoint
        return store_at(self.kind, endpoint, mark, timeout=timeout)

    def requests(self, mark: str) -> int:
        """How many have come by for what lies below *mark*."""
        return sum(mark in one.path for one in self.between.seen)


@contextmanager
def place(kind: str, request: pytest.FixtureRequest, setenv: pytest.MonkeyPatch) -> Iterator[Place]:
    """One of each kind, on the lightest server that there is for it."""
    environment: Mapping[str, str] = {}
    if kind == "s3":
        s3: S3Server = request.getfixturevalue("moto")
        port = s3.port
        environment = {**s3.environment, "AWS_EC2_METADATA_DISABLED": "true"}
    elif kind == "gs":
        gcs: GcsServer = request.getfixturevalue("fake_gcs")
        port = gcs.port
    else:
        azure: AzureServer = request.getfixturevalue("azurite")
        port, environment = azure.port, azure.environment
    for name, value in environment.items():
        setenv.setenv(name, value)
    with proxy(port) as between:
        yield Place(kind, between, f"http://127.0.0.1:{port}")


def fresh() -> str:
    """A prefix that no other has, nor begins with."""
    return f"faults-{next(_numbers)}-end"
