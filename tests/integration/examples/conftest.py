from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No daemon, no hub, and no launcher that names the job."""
    monkeypatch.setenv("EVAC_SOCKET", str(tmp_path / "no.sock"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("EVAC_JOB", "EVAC_STORE", "RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
