from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.handlers.torch.cells import KILLS, MOVING, WORLDS
from tests.matrix import Matrix


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def no_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVAC_SOCKET", str(tmp_path / "no.sock"))
    monkeypatch.delenv("EVAC_STORE", raising=False)


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store"


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(
        Matrix(
            name="kills",
            title="state x kill: resumed to the bit",
            rows=tuple(WORLDS),
            columns=(*KILLS, *MOVING),
            here=Path(__file__).parent,
            elsewhere=(),
        )
    )
