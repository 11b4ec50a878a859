from collections.abc import Iterator
from pathlib import Path

import pytest
import torch


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
