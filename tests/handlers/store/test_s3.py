"""`S3Store` on SeaweedFS and on moto, and what it says when something is wrong."""

import os

import pytest

from evac.store import Store, open_store
from tests.handlers.store.conftest import fresh
from tests.handlers.store.contract import StoreContract
from tests.services.s3 import S3Server


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", f"{tmp_path}/no-config")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", f"{tmp_path}/no-credentials")


def opened(
    server: S3Server, monkeypatch: pytest.MonkeyPatch, *, bucket: str = "evac-test"
) -> Store:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return open_store(f"s3://{bucket}/{fresh()}?endpoint={server.endpoint}")


class TestS3StoreOnSeaweed(StoreContract):
    @pytest.fixture
    def store(self, aws: None, seaweed: S3Server, monkeypatch: pytest.MonkeyPatch) -> Store:
        return opened(seaweed, monkeypatch)


class TestS3StoreOnMoto(StoreContract):
    @pytest.fixture
    def store(self, aws: None, moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> Store:
        return opened(moto, monkeypatch)
