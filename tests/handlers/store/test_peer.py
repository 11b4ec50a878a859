"""`PeerStore` on a real peer: the server that evacd runs, in threads of this process."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from evac.store import Store, open_store
from evacd.clock import SystemClock
from evacd.peer import PeerServer, PeerSettings
from tests.handlers.store.conftest import fresh
from tests.handlers.store.contract import MIB, StoreContract

TOKEN = b"a token that nobody would guess"
SETTINGS = PeerSettings("127.0.0.1", 0, TOKEN, 1024 * MIB, 3600.0, 16)


@contextmanager
def running(settings: PeerSettings = SETTINGS, *, leaving: bool = False) -> Iterator[PeerServer]:
    server = PeerServer(settings, SystemClock(), leaving=lambda: leaving, promised=lambda: 0)
    server.open()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("peer") / "token"
    path.write_bytes(TOKEN + b"\n")
    return path


@pytest.fixture(scope="module")
def peer() -> Iterator[PeerServer]:
    with running() as server:
        yield server


def at(server: PeerServer, token: Path | None, *, prefix: str = "", more: str = "") -> Store:
    opened = f"token_file={token}" if token else "connections=2"
    return open_store(f"evac://127.0.0.1:{server.port}/{prefix or fresh()}?{opened}{more}")


class TestPeerStore(StoreContract):
    @pytest.fixture
    def store(self, peer: PeerServer, token: Path) -> Store:
        return at(peer, token)
