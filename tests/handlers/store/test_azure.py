"""`AzureStore` on Azurite, and what it says when something is wrong."""

import os

import pytest

from evac.store import Store, open_store
from tests.handlers.store.conftest import fresh
from tests.handlers.store.contract import StoreContract
from tests.services.azure import AzureServer


@pytest.fixture
def environment(azurite: AzureServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("AZURE_"):
            monkeypatch.delenv(name)
    for name, value in azurite.environment.items():
        monkeypatch.setenv(name, value)


class TestAzureStore(StoreContract):
    @pytest.fixture
    def store(self, environment: None, azurite: AzureServer) -> Store:
        return open_store(f"az://evac-test/{fresh()}?endpoint={azurite.endpoint}")
