"""A generation's whole life in an object store, as commit and `evac` see it."""

import asyncio
import os
import subprocess
import sys

import pytest

from evac.commit import (
    State,
    claim_incarnation,
    finish_all,
    foreign,
    jobs,
    newest_complete,
    put_body,
    put_manifest,
    retain,
    survey,
    verify,
    was_ever_complete,
)
from evac.errors import GenerationError
from evac.generation import Generation
from evac.store import Store, open_store
from tests.handlers.commit.made import METADATA_BYTES, PREFIX, commit, manifest
from tests.handlers.store.conftest import fresh
from tests.services.azure import AzureServer
from tests.services.gcs import GcsServer
from tests.services.s3 import S3Server

OLD, NEW = Generation(incarnation=1, step=10), Generation(incarnation=2, step=5)


@pytest.fixture(params=["s3", "gs", "az"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Store:
    endpoint = ""
    if request.param == "s3":
        seaweed: S3Server = request.getfixturevalue("seaweed")
        endpoint, environment = seaweed.endpoint, seaweed.environment
    elif request.param == "gs":
        fake_gcs: GcsServer = request.getfixturevalue("fake_gcs")
        endpoint, environment = fake_gcs.endpoint, {}
    else:
        azurite: AzureServer = request.getfixturevalue("azurite")
        endpoint, environment = azurite.endpoint, azurite.environment
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return open_store(f"{request.param}://evac-test/{fresh()}?endpoint={endpoint}")


async def test_generations_are_committed_found_verified_and_retained(store: Store) -> None:
    for generation in (OLD, NEW):
        await commit(store, generation)

    assert [status.state for status in await survey(store, PREFIX)] == [State.COMPLETE] * 2
    assert await newest_complete(store, PREFIX) == NEW
    assert await verify(store, PREFIX, NEW) == ()
    assert await jobs(store) == (PREFIX,)
    assert await foreign(store, PREFIX) == ()
    assert await was_ever_complete(store, PREFIX)
    assert await retain(store, PREFIX, keep=1) == (OLD,)
    assert [status.generation for status in await survey(store, PREFIX)] == [NEW]


async def test_a_generation_of_large_bodies_is_verified_chunk_by_chunk(store: Store) -> None:
    data = os.urandom(33 * 1024 * 1024 + 5)
    made = manifest(NEW, 0, 1, data=data)
    await put_body(store, PREFIX, NEW, made.files[0].name, memoryview(data), rank=0)
    await put_manifest(store, PREFIX, made, metadata=METADATA_BYTES)
    assert await finish_all(store, PREFIX) == (NEW,)
    assert await verify(store, PREFIX, NEW) == ()

    damaged = bytearray(data)
    damaged[9 * 1024 * 1024] ^= 1
    # What is committed is not written over by us: somebody else did this.
    await store.put(f"{PREFIX}/{NEW.directory}/{made.files[0].name}", memoryview(damaged))

    [problem] = await verify(store, PREFIX, NEW)
    assert "the first at byte 8388608" in problem.reason


async def test_a_zombie_cannot_replace_what_counts(store: Store) -> None:
    await commit(store, NEW)

    with pytest.raises(GenerationError, match="fenced"):
        await put_manifest(store, PREFIX, manifest(NEW, 0, 2, run="a zombie's"))

    assert await verify(store, PREFIX, NEW) == ()


async def test_no_two_starts_get_the_same_number(store: Store) -> None:
    async with asyncio.TaskGroup() as tasks:
        claims = [
            tasks.create_task(claim_incarnation(store, PREFIX, claim={"run": str(number)}))
            for number in range(6)
        ]

    assert sorted(claim.result() for claim in claims) == list(range(1, 7))


async def test_evac_lists_and_verifies_what_lies_in_a_bucket(store: Store) -> None:
    await commit(store, NEW)

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "evac", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )

    listed = await asyncio.to_thread(run, "ls", store.url)
    assert listed.returncode == 0, listed.stderr
    assert PREFIX in listed.stdout
    assert NEW.directory in listed.stdout
    verified = await asyncio.to_thread(run, "verify", store.url)
    assert verified.returncode == 0, verified.stdout + verified.stderr


async def test_a_put_that_the_interpreters_end_overtakes_is_still_whole(store: Store) -> None:
    """A trainer's last generation is on its way when the script's last line has run."""
    script = """
import asyncio, sys, threading
from evac.store import open_store
data = memoryview(bytearray(160 << 20))
begun = threading.Event()
put = open_store(sys.argv[1]).put("a/b", data, progress=lambda _: begun.set())
threading.Thread(target=lambda: asyncio.run(put)).start()
begun.wait()
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", script, store.url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=env,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert [entry.nbytes for entry in await store.list("a")] == [160 << 20]
