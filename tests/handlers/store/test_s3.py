"""`S3Store` on SeaweedFS and on moto, and what it says when something is wrong."""

import asyncio
import json
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from evac.errors import (
    ConfigError,
    StoreError,
    StoreMissing,
    StoreRejected,
    StoreUnavailable,
)
from evac.store import Store, open_store
from tests.handlers.store.asking import failures
from tests.handlers.store.contract import MIB, StoreContract
from tests.handlers.store.in_s3 import BODY, BUCKET, at, xml
from tests.services.proxy import Fate, Proxy, Rule, proxy
from tests.services.s3 import S3Server


class TestS3StoreOnSeaweed(StoreContract):
    @pytest.fixture
    def store(self, keys: None, seaweed: S3Server) -> Store:
        return at(seaweed.endpoint)


class TestS3StoreOnMoto(StoreContract):
    @pytest.fixture
    def store(self, keys: None, moto: S3Server) -> Store:
        return at(moto.endpoint)

    async def test_of_many_creators_exactly_one_wins(self, store: Store) -> None:
        """Moto looks and writes in two steps, so they take turns here; on SeaweedFS they race."""
        won = [number for number in range(4) if await store.create("a/b", str(number).encode())]
        assert won == [0]
        assert await store.get("a/b") == b"0"


@pytest.mark.parametrize(
    ("answer", "kind", "reason"),
    [
        ((403, xml("AccessDenied")), StoreRejected, "access denied (HTTP 403 AccessDenied)"),
        ((404, xml("NoSuchBucket")), StoreRejected, "no such bucket or container"),
        ((400, xml("ExpiredToken")), StoreUnavailable, "credentials have expired (ExpiredToken)"),
        ((429, xml("SlowDown")), StoreUnavailable, "throttled (HTTP 429 SlowDown)"),
        (
            (500, xml("InternalError")),
            StoreUnavailable,
            "the store failed (HTTP 500 InternalError)",
        ),
        ((503, xml("SlowDown")), StoreUnavailable, "throttled (HTTP 503 SlowDown)"),
        (Fate.RESET, StoreUnavailable, "connection lost"),
    ],
)
async def test_each_call_says_what_is_wrong_and_whether_to_try_again(
    between: Proxy, answer: tuple[int, bytes] | Fate, kind: type[StoreError], reason: str
) -> None:
    between.rules.append(Rule(answer))

    for name, error in (await failures(at(between.endpoint))).items():
        assert type(error) is kind, name
        assert error.reason == reason, name


async def test_a_host_without_a_name_or_an_answer_is_told_apart(keys: None) -> None:
    for endpoint, reason in (
        ("http://no-such-host.invalid", "its host name cannot be resolved"),
        ("http://127.0.0.1:1", "connection refused"),
    ):
        with pytest.raises(StoreUnavailable) as raised:
            await at(endpoint).get("a")
        assert raised.value.reason == reason


async def test_a_store_that_never_answers_is_given_up(between: Proxy) -> None:
    between.rules.append(Rule(Fate.SILENCE))

    with pytest.raises(StoreUnavailable, match="timed out"):
        await at(between.endpoint, more="&timeout=1").list("a")


async def test_a_body_survives_lost_parts_and_throttling(between: Proxy) -> None:
    data = os.urandom(40 * MIB + 3)
    between.rules += [
        Rule((503, xml("SlowDown")), "PUT", "partNumber=2", times=2),
        Rule(Fate.RESET, "PUT", "partNumber=3", times=1),
        Rule((500, xml("InternalError")), "POST", "uploadId=", times=1),
    ]
    store, seen = at(between.endpoint), list[int]()

    await store.put("a/b", memoryview(data), progress=seen.append)

    assert await store.get("a/b") == data
    assert sum(seen) == len(data)


async def test_half_an_answer_is_never_taken_for_a_whole_one(between: Proxy) -> None:
    store = at(between.endpoint)
    data = os.urandom(3 * MIB)
    await store.put("a/b", memoryview(data))
    into = bytearray(len(data))
    for times in (1, -1):
        for read in (lambda: store.get("a/b"), lambda: store.read("a/b", 0, memoryview(into))):
            between.rules[:] = [Rule(Fate.HALF, "GET", "/a/b", times=times)]
            try:
                got = await read()
            except StoreUnavailable:
                continue
            assert got in (data, len(data))


async def test_a_refused_part_leaves_nothing_behind(between: Proxy, seaweed: S3Server) -> None:
    between.rules.append(Rule((403, xml("AccessDenied")), "PUT", "partNumber=3"))
    store = at(between.endpoint)
    data = bytearray(64 * MIB)

    with memoryview(data) as view, pytest.raises(StoreRejected, match="access denied"):
        await store.put(BODY, view)
    data.clear()

    assert await store.list("") == []
    assert await asyncio.to_thread(seaweed.uploads, BUCKET) == []


async def test_a_wrong_secret_is_said_and_shown_nowhere(
    keys: None, seaweed: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    store = at(seaweed.endpoint)

    for name, error in (await failures(store)).items():
        assert type(error) is StoreRejected, name
        assert error.reason == "access denied (HTTP 403 SignatureDoesNotMatch)", name
        assert error.__cause__ is None
    shown = f"{store!r} {store.url} {store._chain._keys!r}"
    assert "secret" not in shown
    assert seaweed.access not in shown


async def test_a_missing_bucket_is_said_by_every_call(keys: None, moto: S3Server) -> None:
    store = at(moto.endpoint, bucket="nobody-made-it")

    for name, error in (await failures(store)).items():
        assert type(error) is StoreRejected, name
        assert error.reason == "no such bucket or container", name
    with pytest.raises(StoreRejected):
        await store.preflight()
    await at(moto.endpoint).preflight()


async def test_without_any_keys_the_first_call_says_so(aws: None, moto: S3Server) -> None:
    with pytest.raises(StoreRejected, match="no credentials found"):
        await at(moto.endpoint).get("a")


async def test_keys_come_from_a_profile(
    aws: None, seaweed: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "credentials").write_text(
        f"[evac]\naws_access_key_id = {seaweed.access}\naws_secret_access_key = {seaweed.secret}\n"
    )
    monkeypatch.setenv("AWS_PROFILE", "evac")
    store = at(seaweed.endpoint)

    await store.put("a", memoryview(b"x"))

    assert await store.get("a") == b"x"


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def encrypted(keys: None, seaweed: S3Server, authority: trustme.CA) -> Iterator[Proxy]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with proxy(seaweed.port, tls=context) as made:
        yield made


async def test_over_tls_a_body_is_neither_signed_nor_summed(
    encrypted: Proxy, authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "ca.pem"))
    store = at(encrypted.endpoint)
    data = os.urandom(17 * MIB)

    await store.put("a/b", memoryview(data))

    assert await store.get("a/b") == data
    parts = [one.head.lower() for one in encrypted.seen if "partNumber=" in one.path]
    assert len(parts) == 3
    for head in parts:
        assert "x-amz-content-sha256: unsigned-payload" in head
        assert "checksum" not in head


async def test_a_certificate_that_nobody_vouches_for_is_refused(encrypted: Proxy) -> None:
    with pytest.raises(StoreRejected, match="TLS: its certificate is not trusted"):
        await at(encrypted.endpoint).put("a", memoryview(b"x"))


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "s3:///prefix",
        "s3://user:hunter2@bucket/prefix",
        "s3://bucket/a//b",
        "s3://bucket/../b",
        "s3://bucket?secret=hunter2",
        "s3://bucket?endpoint=ftp://host",
        "s3://bucket?endpoint=http://user:hunter2@host",
        "s3://bucket?connections=0",
        "s3://bucket?timeout=soon",
    ],
)
def test_a_malformed_url_is_a_config_error_that_repeats_no_secret(url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        open_store(url)
    assert "hunter2" not in str(raised.value)


def test_a_url_is_the_same_however_it_was_written() -> None:
    one = open_store("s3://bucket/a/b/?region=eu-west-1&endpoint=http://127.0.0.1:9")
    assert one.url == "s3://bucket/a/b?endpoint=http://127.0.0.1:9&region=eu-west-1"
    assert open_store(one.url).url == one.url
    assert open_store("s3://bucket").url == "s3://bucket"


async def test_stores_of_two_prefixes_do_not_see_each_other(keys: None, moto: S3Server) -> None:
    one, other = at(moto.endpoint), at(moto.endpoint)
    await one.put("a", memoryview(json.dumps({}).encode()))

    assert await other.list("") == []
    with pytest.raises(StoreMissing):
        await other.get("a")


def test_a_program_whose_last_act_is_a_listing_ends_well(keys: None, moto: S3Server) -> None:
    script = """
import asyncio, sys
from evac.store import open_store
async def last() -> None:
    store = open_store(sys.argv[1])
    await store.put("a", memoryview(b"x"))
    await store.list("")
asyncio.run(last())
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    for _ in range(12):  # without the wait at the end every fourth one is killed
        subprocess.run(
            [sys.executable, "-c", script, at(moto.endpoint).url], check=True, timeout=60, env=env
        )
