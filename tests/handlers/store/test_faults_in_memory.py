"""More rows: what reaches a store as it was told to, and must not count all the same.

A slot's bit that flips after it was summed, and the acknowledgements of a zombie. And a peer without a name.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType

import pytest

from evac.commit import State, finish, put_body, put_manifest, survey, verify
from evac.errors import GenerationError, StoreUnavailable
from evac.generation import METADATA, Generation, manifest_name
from evac.manifest import CHUNK
from evac.store import Store, open_store
from evacd.clock import SystemClock
from evacd.peer import PeerServer, PeerSettings
from tests.handlers.commit.made import METADATA_BYTES, PREFIX, commit, manifest
from tests.handlers.store.asking import failures
from tests.handlers.store.conftest import fresh
from tests.services.azure import AzureServer
from tests.services.gcs import GcsServer
from tests.services.s3 import S3Server

Record = Callable[[str, object], None]
SERVERS = MappingProxyType({"s3": "seaweed", "gs": "fake_gcs", "az": "azurite"})

OLD, NEW = Generation(incarnation=1, step=10), Generation(incarnation=2, step=10)


@pytest.fixture(params=["file", *SERVERS, "evac"])
def kind(request: pytest.FixtureRequest) -> str:
    found = request.param
    assert isinstance(found, str)
    return found


@pytest.fixture
def store(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Store]:
    if kind == "file":
        yield open_store(f"file://{tmp_path}")
        return
    if kind == "evac":
        token = tmp_path / "token"
        token.write_text("a token that nobody would guess")
        settings = PeerSettings("127.0.0.1", 0, token.read_bytes(), 64 * 2**20, 3600.0, 16)
        server = PeerServer(settings, SystemClock(), leaving=lambda: False, promised=lambda: 0)
        server.open()
        try:
            yield open_store(f"evac://127.0.0.1:{server.port}/{fresh()}?token_file={token}")
        finally:
            server.close()
        return
    bucket: S3Server | GcsServer | AzureServer = request.getfixturevalue(SERVERS[kind])
    if not isinstance(bucket, GcsServer):
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
    yield open_store(f"{kind}://evac-test/{fresh()}?endpoint={bucket.endpoint}")


async def test_a_bit_that_flips_in_memory_after_it_was_summed_is_named_by_its_chunk(
    store: Store, kind: str, record_property: Record
) -> None:
    record_property("faults", ("bit flip in memory", kind))
    slot = bytearray(CHUNK + 8192)
    made = manifest(NEW, 0, 1, data=bytes(slot))
    slot[CHUNK + 5] ^= 4

    await put_body(store, PREFIX, NEW, made.files[0].name, memoryview(slot), rank=0)
    await put_manifest(store, PREFIX, made, metadata=METADATA_BYTES)
    await finish(store, PREFIX, NEW, METADATA_BYTES)

    [problem] = await verify(store, PREFIX, NEW)
    assert f"the first at byte {CHUNK}" in problem.reason


async def test_what_a_zombie_acknowledges_finishes_nothing_of_a_newer_incarnation(
    store: Store, kind: str, record_property: Record
) -> None:
    record_property("faults", ("stale ack", kind))
    # Rank 0 is there; of rank 1 its dead predecessor says, in the very same folder, that it is.
    mine, stale = manifest(NEW, 0, 2), manifest(OLD, 1, 2)
    for made in (mine, stale):
        data = memoryview(f"rank {made.rank} ".encode() * 1000)[:1000]
        await put_body(store, PREFIX, NEW, made.files[0].name, data, rank=made.rank)
    await put_manifest(store, PREFIX, mine, metadata=METADATA_BYTES)
    folder = f"{PREFIX}/{NEW.directory}"
    await store.put(f"{folder}/{manifest_name(1)}", memoryview(stale.encode()))

    try:
        finished = await finish(store, PREFIX, NEW, METADATA_BYTES)
    except GenerationError:
        finished = False

    assert not finished
    assert [one.state for one in await survey(store, PREFIX)] == [State.MIXED]
    names = {entry.key.rpartition("/")[2] for entry in await store.list(folder)}
    assert METADATA not in names


async def test_a_zombie_that_ends_late_ends_its_own_generation_and_beats_nothing(
    store: Store, kind: str, record_property: Record
) -> None:
    record_property("faults", ("stale ack", kind))
    await commit(store, NEW)
    await commit(store, OLD)

    assert [one.generation for one in await survey(store, PREFIX)] == [NEW, OLD]
    with pytest.raises(GenerationError, match="fenced"):
        await put_manifest(store, PREFIX, manifest(NEW, 1, 2, run="a zombie's"))
    assert await verify(store, PREFIX, NEW) == ()


async def test_a_peer_without_a_name_is_told_by_every_call(
    tmp_path: Path, record_property: Record
) -> None:
    record_property("faults", ("no name", "evac"))
    token = tmp_path / "token"
    token.write_text("a token that nobody would guess")
    store = open_store(f"evac://no-such-host.invalid:7000/job?token_file={token}")

    for name, error in (await failures(store)).items():
        assert isinstance(error, StoreUnavailable), name
        assert error.reason == "its host name cannot be resolved"
