"""A store of each kind behind a proxy that strikes its calls, and a small generation to flush into it."""

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType

import pytest

from evac.commit import State, finish, put_body, put_manifest, survey, verify
from evac.errors import StoreError
from evac.generation import Generation
from evac.store import Store
from evac.store.azure import AzureStore
from evac.store.blobs import RETRY
from evac.store.gcs import GcsStore
from evac.store.location import Location
from evac.store.s3 import S3Store
from evac.store.s3_keys import Chain
from tests.handlers.commit.made import METADATA_BYTES, PREFIX, manifest
from tests.services.azure import ACCOUNT, AzureServer
from tests.services.gcs import GcsServer
from tests.services.proxy import Proxy, proxy
from tests.services.s3 import S3Server

BUCKET = "evac-test"
KINDS = ("s3", "gs", "az")
ENVIRONMENTS = MappingProxyType({"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"})
GENERATION = Generation(incarnation=1, step=10)
# Real stores take real parts; these servers take any, so that a body of three needs few bytes.
PART = 16 * 1024
BODY = bytes(range(256)) * (2 * PART // 256) + b"and a bit"
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


@dataclass(frozen=True)
class Place:
    """A server, what stands before it, and where to ask it unharmed."""

    kind: str
    between: Proxy
    endpoint: str

    def store(self, mark: str, *, struck: bool = True, timeout: float = 60.0) -> Store:
        """A store below *mark*; one that is not *struck* asks the server itself."""
        endpoint = self.between.endpoint if struck else self.endpoint
        if self.kind == "az":
            endpoint = f"{endpoint}/{ACCOUNT}"
        options = {"endpoint": endpoint, "timeout": str(timeout)}
        location = Location(self.kind, BUCKET, mark, options)
        if self.kind == "s3":
            return SmallS3(location, chain=Chain())
        return SmallGcs(location) if self.kind == "gs" else SmallAzure(location)

    def requests(self, mark: str) -> int:
        """How many have come by for what lies below *mark*."""
        return sum(mark in one.path for one in self.between.seen)


@contextmanager
def place(kind: str, request: pytest.FixtureRequest, setenv: pytest.MonkeyPatch) -> Iterator[Place]:
    """One of each kind, on the lightest server that there is for it."""
    environment: Mapping[str, str] = {}
    server: S3Server | GcsServer | AzureServer
    if kind == "s3":
        server = request.getfixturevalue("moto")
        environment = {**server.environment, "AWS_EC2_METADATA_DISABLED": "true"}
    elif kind == "gs":
        server = request.getfixturevalue("fake_gcs")
    else:
        server = request.getfixturevalue("azurite")
        environment = server.environment
    for name, value in environment.items():
        setenv.setenv(name, value)
    with proxy(server.port) as between:
        yield Place(kind, between, f"http://127.0.0.1:{server.port}")


def fresh() -> str:
    """A prefix that no other has, nor begins with."""
    return f"faults-{next(_numbers)}-end"


async def flush(store: Store, *, body: bytes = BODY) -> None:
    """What the daemon does with a staged generation of one rank."""
    made = manifest(GENERATION, 0, 1, data=body)
    await put_body(store, PREFIX, GENERATION, made.body, memoryview(body), rank=0)
    await put_manifest(store, PREFIX, made, metadata=METADATA_BYTES)
    assert await finish(store, PREFIX, GENERATION, METADATA_BYTES)


async def attempt(store: Store) -> StoreError | None:
    """What a flush ends with."""
    try:
        await flush(store)
    except StoreError as error:
        return error
    return None


async def whole(store: Store) -> bool:
    """Whether the generation counts as whole there; fails where it does and is not."""
    found = await survey(store, PREFIX)
    if not found or found[0].state not in (State.COMPLETE, State.FINISHABLE):
        return False
    if found[0].state is State.FINISHABLE:
        assert await finish(store, PREFIX, GENERATION)
    assert await verify(store, PREFIX, GENERATION) == ()
    return True
