"""`AzureStore` on Azurite, and what it says when something is wrong."""

import os
import traceback
from collections.abc import Iterator

import pytest

from evac.errors import ConfigError, StoreError, StoreRejected, StoreUnavailable
from evac.store import Store, open_store
from evac.store.azure import AzureStore
from tests.handlers.store.asking import failures
from tests.handlers.store.conftest import fresh
from tests.handlers.store.contract import MIB, StoreContract
from tests.services.azure import ACCOUNT, KEY, AzureServer
from tests.services.proxy import Fate, Proxy, Rule, proxy

CONTAINER = "evac-test"


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


@pytest.fixture
def between(environment: None, azurite: AzureServer) -> Iterator[Proxy]:
    """What stands between us and Azurite."""
    with proxy(azurite.port) as made:
        yield made


def at(endpoint: str, *, container: str = CONTAINER, more: str = "") -> AzureStore:
    return AzureStore.from_url(f"az://{container}/{fresh()}?endpoint={endpoint}{more}")


def xml(code: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code></Error>".encode()


@pytest.mark.parametrize(
    ("answer", "kind", "reason"),
    [
        (
            (403, xml("AuthorizationFailure")),
            StoreRejected,
            "access denied (HTTP 403 AuthorizationFailure)",
        ),
        ((404, xml("ContainerNotFound")), StoreRejected, "no such bucket or container"),
        ((503, xml("ServerBusy")), StoreUnavailable, "throttled (HTTP 503 ServerBusy)"),
        (
            (500, xml("InternalError")),
            StoreUnavailable,
            "the store failed (HTTP 500 InternalError)",
        ),
        (Fate.RESET, StoreUnavailable, "connection lost"),
    ],
)
async def test_each_call_says_what_is_wrong_and_whether_to_try_again(
    between: Proxy, answer: tuple[int, bytes] | Fate, kind: type[StoreError], reason: str
) -> None:
    between.rules.append(Rule(answer))

    for name, error in (await failures(at(f"{between.endpoint}/{ACCOUNT}"))).items():
        assert type(error) is kind, name
        assert error.reason == reason, name


async def test_a_host_without_a_name_is_told_apart(environment: None) -> None:
    with pytest.raises(StoreUnavailable) as raised:
        await at("http://no-such-host.invalid").get("a")
    assert raised.value.reason == "its host name cannot be resolved"


async def test_a_body_survives_lost_blocks_and_throttling(between: Proxy) -> None:
    data = os.urandom(40 * MIB + 3)
    between.rules += [
        Rule((503, xml("ServerBusy")), "PUT", "comp=block&", times=2),
        Rule(Fate.RESET, "PUT", "comp=block&", times=1),
        Rule((500, xml("InternalError")), "PUT", "comp=blocklist", times=1),
    ]
    store, seen = at(f"{between.endpoint}/{ACCOUNT}"), list[int]()

    await store.put("a/b", memoryview(data), progress=seen.append)

    assert await store.get("a/b") == data
    assert sum(seen) == len(data)


async def test_a_refused_block_leaves_nothing_behind(between: Proxy) -> None:
    between.rules.append(Rule((403, xml("AuthorizationFailure")), "PUT", "comp=blocklist"))
    store = at(f"{between.endpoint}/{ACCOUNT}")
    data = bytearray(40 * MIB)

    with memoryview(data) as view, pytest.raises(StoreRejected, match="access denied"):
        await store.put("a/b", view)
    data.clear()

    assert await store.list("") == []


async def test_a_wrong_key_is_said_and_shown_nowhere(
    environment: None, azurite: AzureServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = f"AAAA{KEY[4:]}"
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", wrong)
    store = at(azurite.endpoint)

    for name, error in (await failures(store)).items():
        assert type(error) is StoreRejected, name
        assert error.reason == "access denied (HTTP 403 AuthorizationFailure)", name
        assert error.__cause__ is None
    assert wrong not in f"{store!r} {store.url}"


async def test_a_signature_in_the_environment_is_never_repeated(
    environment: None, azurite: AzureServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY")
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=2021-12-02&sp=rw&sig=hunter2")

    for name, error in (await failures(at(azurite.endpoint))).items():
        assert isinstance(error, StoreRejected), name
        assert "hunter2" not in "".join(traceback.format_exception(error))


async def test_a_missing_container_is_said_by_every_call(
    environment: None, azurite: AzureServer
) -> None:
    found = await failures(at(azurite.endpoint, container="nobody-made-it"))
    del found["delete"]  # nothing is there, as asked
    for name, error in found.items():
        assert type(error) is StoreRejected, name
        assert error.reason == "no such bucket or container", name


def test_half_a_key_is_a_config_error_that_does_not_repeat_it(
    environment: None, azurite: AzureServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "hunter2=")

    with pytest.raises(ConfigError, match="a whole AZURE_STORAGE_ACCOUNT_KEY") as raised:
        at(azurite.endpoint)
    assert "hunter2" not in "".join(traceback.format_exception(raised.value))


def test_without_an_account_a_url_says_too_little(
    environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME")

    with pytest.raises(ConfigError, match="account=name"):
        open_store("az://container/prefix")
    assert open_store("az://container?account=one").url == "az://container?account=one"
