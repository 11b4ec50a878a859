"""Restore from a peer's memory, to the bit."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from evac.store import Store, open_store
from evacd.clock import SystemClock
from evacd.peer import PeerServer, PeerSettings
from tests.handlers.torch.training import Run, wait_committed

TOKEN = b"a token that nobody would guess"


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[str]:
    token = tmp_path / "token"
    token.write_bytes(TOKEN)
    settings = PeerSettings("127.0.0.1", 0, TOKEN, 256 << 20, 3600.0, 16)
    server = PeerServer(settings, SystemClock(), leaving=lambda: False, promised=lambda: 0)
    server.open()
    yield f"evac://127.0.0.1:{server.port}?token_file={token}"
    server.close()


def test_a_run_goes_on_from_a_peers_memory_and_walks_back_in_it(
    peer: str, store: str, caplog: pytest.LogCaptureFixture
) -> None:
    saved = Run()
    digests = []
    with saved.saver(store=store) as saver:
        for step in (1, 2):
            saved.train()
            assert saver.step(step), saver.stats
            wait_committed(store, step)
            digests.append(saved.digest())
    root = Path(store.removeprefix("file://"))

    def files() -> dict[str, bytes]:
        found = (path for path in root.rglob("*") if path.is_file())
        return {str(path.relative_to(root)): path.read_bytes() for path in found}

    async def copy(there: Store) -> None:
        for name, data in files().items():
            await there.put(name, memoryview(data))

    async def damage(there: Store) -> None:
        [key] = [e.key for e in await there.list("") if e.key.endswith("step-2.1/__0_0.distcp")]
        data = bytearray(await there.get(key))
        data[len(data) // 2] ^= 1
        await there.put(key, memoryview(data))

    # The marker of the newer generation, last in line, has the peer forget the older one.
    (marker,) = root.rglob("evac-job.json")
    marker.unlink()
    asyncio.run(copy(open_store(peer)))
    run = Run(seed=99)
    assert run.saver(store=peer).restore() == 2
    assert run.digest() == digests[1]

    asyncio.run(copy(open_store(peer)))
    asyncio.run(damage(open_store(peer)))
    run = Run(seed=99)
    assert run.saver(store=peer).restore() == 1
    assert run.digest() == digests[0]
    assert "is not whole: walking back" in caplog.text
