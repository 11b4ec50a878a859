"""The benches' byte sink says of S3 what a flush has to hear, or a daemon would flush to it for ever."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from evac.commit import State, retain, survey
from evac.store import open_store
from tests.handlers.commit.made import PREFIX
from tests.handlers.store.flushing import GENERATION, flush

BENCH = Path(__file__).parents[2] / "integration" / "bench"


@pytest.fixture
def port() -> Iterator[int]:
    command = [sys.executable, "-m", "sink.serve"]
    with subprocess.Popen(command, cwd=BENCH, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield int(server.stdout.readline())
        finally:
            server.kill()


async def test_what_is_flushed_there_is_whole_and_goes_again(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "any")
    store = open_store(f"s3://bench/prefix?endpoint=http://127.0.0.1:{port}")

    # Twice: what a second daemon writes is the same, and a body of many parts is there with its size.
    for _ in range(2):
        await flush(store, body=bytes(17 * 2**20))

    [status] = await survey(store, PREFIX)
    assert (status.generation, status.state) == (GENERATION, State.COMPLETE)
    assert await store.get(f"{PREFIX}/{GENERATION.directory}/__0.manifest.json")
    assert not await store.create(f"{PREFIX}/{GENERATION.directory}/.metadata", b"another")
    assert await retain(store, PREFIX, keep=1) == ()
    await store.delete(f"{PREFIX}/{GENERATION.directory}/.metadata")
    assert [one.state for one in await survey(store, PREFIX)] == [State.TORN]
