"""`GcsStore` on fake-gcs-server, and what it says when something is wrong."""

import pytest

from evac.store import Store, open_store
from tests.handlers.store.conftest import fresh
from tests.handlers.store.contract import StoreContract
from tests.services.gcs import GcsServer


class TestGcsStore(StoreContract):
    @pytest.fixture
    def store(self, fake_gcs: GcsServer) -> Store:
        return open_store(f"gs://evac-test/{fresh()}?endpoint={fake_gcs.endpoint}")
