"""One store of each kind: those that the tests use, each a server of its own on loopback behind a link of a steady rate.

The tests' servers are made for truth and not for speed: by themselves they do twice as much in one second as in the next, and
nobody's prediction could be right. What the link lets through they all can do.
"""

import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import TypeAlias

from asking import status

from evac.store.paced import Pace
from evacd.clock import SystemClock
from tests.services import azure, gcs, s3
from tests.services.process import HOST, free_port, process
from tests.services.relay import relay

BUCKET = "evac-bench"
# Of each link, bytes per second.
LINK = 20_000_000


@dataclass(frozen=True)
class Place:
    """A store, and what opens it.

    Attributes:
        beside: Further stores, that a node must have and prefers less.
    """

    url: str
    environment: Mapping[str, str] = field(default_factory=dict)
    beside: tuple[str, ...] = ()


Opens: TypeAlias = Callable[[Path, int], AbstractContextManager[Place]]


@contextmanager
def disk(folder: Path, size: int) -> Iterator[Place]:
    """A folder on a local disk."""
    yield Place(f"file://{folder}/store")


@contextmanager
def seaweed(folder: Path, size: int) -> Iterator[Place]:
    """SeaweedFS."""
    with s3.seaweed(folder) as server, link(server.port) as port:
        yield _s3(server, port)


@contextmanager
def moto(folder: Path, size: int) -> Iterator[Place]:
    """The server of moto."""
    with s3.moto(folder) as server, link(server.port) as port:
        yield _s3(server, port)


def _s3(server: s3.S3Server, port: int) -> Place:
    server.call("create_bucket", Bucket=BUCKET)
    settings = {**server.environment, "AWS_EC2_METADATA_DISABLED": "true"}
    return Place(f"s3://{BUCKET}/drill?endpoint=http://{HOST}:{port}", settings)


@contextmanager
def fake_gcs(folder: Path, size: int) -> Iterator[Place]:
    """fake-gcs-server."""
    with gcs.fake_gcs(folder) as server, link(server.port) as port:
        server.make_bucket(BUCKET)
        yield Place(f"gs://{BUCKET}/drill?endpoint=http://{HOST}:{port}")


@contextmanager
def azurite(folder: Path, size: int) -> Iterator[Place]:
    """Azurite."""
    with azure.azurite(folder) as server, link(server.port) as port:
        server.make_container(BUCKET)
        endpoint = f"http://{HOST}:{port}/{azure.ACCOUNT}"
        yield Place(f"az://{BUCKET}/drill?endpoint={endpoint}", server.environment)


@contextmanager
def peer(folder: Path, size: int) -> Iterator[Place]:
    """Another node's evacd, with room for what is there and what comes."""
    folder.mkdir(parents=True)
    token, socket, port = folder / "token", folder / "evacd.sock", free_port()
    token.write_text(secrets.token_hex(32))
    command = [
        sys.executable, "-m", "evacd", "run", "--store", f"file://{folder}/store",
        "--cloud", "none", "--no-http", "--no-quiet", "--store-is-durable",
        "--socket", str(socket), "--admin-socket", str(folder / "admin.sock"),
        "--state-dir", str(folder / "state"), "--memory-budget", "1MiB",
        "--peer-listen", f"{HOST}:{port}", "--peer-budget", f"{3 * size // 2**20 + 64}MiB",
    ]  # fmt: skip
    settings = {"EVAC_PEER_TOKEN_FILE": str(token)}

    with (
        process(command, folder=folder / "log", ready=lambda: bool(status(socket)), env=settings),
        link(port) as way,
    ):
        # Memory alone is no store that a node would start with.
        yield Place(f"evac://{HOST}:{way}", settings, (f"file://{folder}/beside",))


@contextmanager
def link(port: int) -> Iterator[int]:
    """The port at which whoever comes is let through to *port*, all together no faster than `LINK`."""
    steady, lock, clock = Pace(LINK), Lock(), SystemClock()

    def pace(nbytes: int) -> None:
        with lock:
            due = steady.due(nbytes, clock.monotonic())
        time.sleep(max(due - clock.monotonic(), 0.0))

    with relay(port, pace=pace) as between:
        yield between.port


# Each with the share of the size that it takes.
PLACES: Mapping[str, tuple[Opens, float]] = MappingProxyType(
    {
        "file": (disk, 1.0),
        "s3 seaweed": (seaweed, 0.1),
        "s3 moto": (moto, 0.1),
        "gs": (fake_gcs, 0.1),
        "az": (azurite, 0.1),
        "evac": (peer, 0.1),
    }
)
