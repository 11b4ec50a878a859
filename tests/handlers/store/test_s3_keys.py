"""What opens S3 is renewed in time, and nobody waits for it while the old keys are good."""

import asyncio
import os
import shlex
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from evac.errors import StoreRejected
from evac.store.retry import Retry
from evac.store.s3_keys import Chain
from tests.handlers.store.contract import MIB
from tests.handlers.store.in_s3 import at, xml
from tests.services.proxy import Rule, proxy
from tests.services.s3 import S3Server


def until(true: Callable[[], bool]) -> None:
    for _ in range(600):
        if true():
            return
        time.sleep(0.1)
    raise AssertionError("not within a minute")


@pytest.fixture
def asked(
    aws: None, seaweed: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], int]:
    """A credential process; the first keys that it gives end in five minutes, the others last.

    Returns:
        How often it was asked.
    """
    program, count = tmp_path / "keys.py", tmp_path / "count"
    program.write_text(
        "import json, pathlib, sys\n"
        f"count = pathlib.Path({str(count)!r})\n"
        "asked = int(count.read_text()) if count.exists() else 0\n"
        "count.write_text(str(asked + 1))\n"
        f"expires = {[(datetime.now(UTC) + timedelta(minutes=m)).isoformat() for m in (5, 600)]}\n"
        f"print(json.dumps({{'Version': 1, 'AccessKeyId': {seaweed.access!r}, 'SecretAccessKey':"
        f" {seaweed.secret!r}, 'Expiration': expires[min(asked, 1)]}}))\n"
    )
    command = shlex.join([sys.executable, str(program)])
    (tmp_path / "config").write_text(f"[default]\ncredential_process = {command}\n")
    return lambda: int(count.read_text())


async def test_keys_are_renewed_before_they_expire(
    asked: Callable[[], int], seaweed: S3Server
) -> None:
    store = at(seaweed.endpoint)

    await store.put("a", memoryview(b"x"))  # with keys that are about to expire
    for _ in range(3):
        assert await store.get("a") == b"x"

    # By the first put, and then once more beside whoever goes on with those that are good for five minutes.
    await asyncio.to_thread(until, lambda: asked() == 2)
    assert await store.get("a") == b"x"
    assert asked() == 2


async def test_keys_that_the_store_calls_expired_are_replaced_for_the_next_try(
    asked: Callable[[], int], seaweed: S3Server
) -> None:
    with proxy(seaweed.port) as between:
        store = at(between.endpoint)
        await store.put("a", memoryview(b"x"))
        before = asked()
        between.rules.append(Rule((400, xml("ExpiredToken")), "PUT", "partNumber=2", times=1))
        data = os.urandom(40 * MIB)

        await Retry(store, sleep=asyncio.sleep).put("a", memoryview(data))

        assert await store.get("a") == data
    assert asked() == before + 1


async def test_keys_that_were_replaced_in_their_file_open_the_store_without_a_restart(
    aws: None, seaweed: S3Server, tmp_path: Path
) -> None:
    def given(secret: str) -> None:
        text = (
            f"[default]\naws_access_key_id = {seaweed.access}\naws_secret_access_key = {secret}\n"
        )
        (tmp_path / "credentials").write_text(text)

    given("an-old-one")
    store = at(seaweed.endpoint)
    with pytest.raises(StoreRejected, match="access denied"):
        await store.put("a", memoryview(b"x"))

    given(seaweed.secret)

    await store.put("a", memoryview(b"x"))
    assert await store.get("a") == b"x"


def test_keys_that_are_good_for_minutes_are_used_while_new_ones_are_long_in_coming(
    aws: None, tmp_path: Path
) -> None:
    held, lasting = tmp_path / "held", tmp_path / "lasting"
    program = tmp_path / "keys.py"
    program.write_text(
        "import json, pathlib, time\n"
        f"held, lasting = pathlib.Path({str(held)!r}), pathlib.Path({str(lasting)!r})\n"
        "while held.exists():\n    time.sleep(0.05)\n"
        f"soon, late = {[(datetime.now(UTC) + timedelta(minutes=m)).isoformat() for m in (5, 600)]}\n"
        "new = lasting.exists()\n"
        "print(json.dumps({'Version': 1, 'AccessKeyId': 'new' if new else 'old',"
        " 'SecretAccessKey': 'secret', 'Expiration': late if new else soon}))\n"
    )
    command = shlex.join([sys.executable, str(program)])
    (tmp_path / "config").write_text(f"[default]\ncredential_process = {command}\n")
    chain = Chain()

    assert chain()["access_key_id"] == "old"
    held.touch()
    lasting.touch()
    for _ in range(3):
        assert chain()["access_key_id"] == "old"
    held.unlink()

    until(lambda: chain()["access_key_id"] == "new")
    until(lambda: not any(one.name == "evac-s3-keys" for one in threading.enumerate()))
