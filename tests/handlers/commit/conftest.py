from pathlib import Path

import pytest

from evac.store import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(f"file://{tmp_path}/store")
