"""Each etcd that is named is tried: what works, what does not and what cures it, and no secret is told."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trustme

from evac.rendezvous.etcd_access import NO_FILES, EtcdFiles
from evacd.check import Check, Finding, Verdict, checks, examine
from evacd.check.etcd import check_etcd
from evacd.clock import SystemClock
from evacd.config import Config, EtcdConfig
from tests.services.etcd import etcd as etcd_plain
from tests.services.etcd_secured import (
    PASSWORD,
    READER,
    STRANGER,
    USER,
    Secured,
    etcd_secured,
    write,
)
from tests.services.process import HOST
from tests.services.skipping import or_skip


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with or_skip(), etcd_secured(tmp_path_factory.mktemp("secured")) as made:
        yield made


def configured(files: EtcdFiles, *endpoints: str) -> Config:
    def path(text: str) -> Path | None:
        return Path(text) if text else None

    ca, cert, key, password = map(path, (files.ca, files.cert, files.key, files.password))
    return Config(etcd=EtcdConfig(endpoints, ca, cert, key, files.user, password))


def tried(config: Config, *, seconds: float = 120.0) -> Finding:
    endpoint = next(iter(config.etcd.endpoints), "")
    return asyncio.run(check_etcd(config, endpoint, seconds=seconds))


def test_what_works_is_told_and_nothing_is_left(etcd: Secured) -> None:
    Path(etcd.files.password).chmod(0o600)
    Path(etcd.files.key).chmod(0o600)
    endpoint = f"https://{HOST}:{etcd.port}"

    found = tried(configured(etcd.files, endpoint))

    assert found.detail == f"{endpoint}: reads, writes and deletes below evac/ as user 'job'"
    assert found.verdict is Verdict.OK
    assert etcd.keys() == []


def test_a_secret_that_anybody_may_read_is_told(etcd: Secured) -> None:
    files = etcd.user(USER, PASSWORD)
    Path(files.password).chmod(0o644)

    found = tried(configured(files, f"https://{HOST}:{etcd.port}"))

    assert found.verdict is Verdict.WARN
    assert found.cure == f"chmod o= {files.password}"
    assert PASSWORD not in found.detail


def wrong_password(etcd: Secured) -> EtcdFiles:
    return etcd.user(USER, "not this one")


def only_reads(etcd: Secured) -> EtcdFiles:
    return etcd.user(READER, READER)


def no_rights(etcd: Secured) -> EtcdFiles:
    return etcd.user(STRANGER, STRANGER)


def no_user(etcd: Secured) -> EtcdFiles:
    return replace(etcd.files, user="", password="")


def no_certificate(etcd: Secured) -> EtcdFiles:
    return replace(etcd.files, cert="", key="")


def wrong_certificate(etcd: Secured) -> EtcdFiles:
    cert, key = write(etcd.folder, "other", trustme.CA())
    return replace(etcd.files, cert=cert, key=key)


def wrong_ca(etcd: Secured) -> EtcdFiles:
    path = etcd.folder / "other-ca.pem"
    trustme.CA().cert_pem.write_to_path(str(path))
    return replace(etcd.files, ca=str(path))


@pytest.mark.parametrize(
    ("shown", "told", "cure"),
    [
        (wrong_password, "etcd knows no user 'job' with this password", "etcd.password_file"),
        (only_reads, "its user may not write below evac/", "role grant-permission ROLE"),
        (no_rights, "its user may not read below evac/", "role grant-permission ROLE"),
        (no_user, "etcd wants a user and a password", "give etcd.user"),
        (no_certificate, "it wants a client certificate, and not this one", "give etcd.cert_file"),
        (wrong_certificate, "it wants a client certificate", "give etcd.cert_file"),
        (wrong_ca, "its certificate is not to be trusted: ", "give etcd.ca_file"),
    ],
)
def test_what_does_not_work_is_told_with_its_cure(
    etcd: Secured, shown: Callable[[Secured], EtcdFiles], told: str, cure: str
) -> None:
    config = configured(shown(etcd), f"https://{HOST}:{etcd.port}")

    found = tried(config)
    for _ in range(20):
        # A busy machine may be too slow for once to hear why a connection is broken off.
        found = found if told in found.detail else tried(config)

    assert told in found.detail
    assert found.verdict is Verdict.FAIL
    assert cure in found.cure
    assert PASSWORD not in repr(found)
    assert "not this one" not in found.detail.replace("certificate, and not this one", "")
    assert etcd.keys() == []


def test_one_without_tls_and_users_is_tried_as_it_is(etcd: Secured, tmp_path: Path) -> None:
    with etcd_plain(tmp_path / "etcd") as port:
        works = tried(configured(NO_FILES, f"http://{HOST}:{port}"))
        fails = tried(configured(replace(NO_FILES, ca=etcd.files.ca), f"https://{HOST}:{port}"))

    told = "reads, writes and deletes below evac/ without a user, without TLS"
    assert works.detail.endswith(told)
    assert fails.verdict is Verdict.FAIL
    assert "as http or https" in fails.cure
    assert "object at" not in fails.detail


def test_where_nobody_answers_that_is_told(etcd: Secured) -> None:
    with socket.create_server((HOST, 0)) as mute:
        port = mute.getsockname()[1]
        silent = tried(configured(NO_FILES, f"http://{HOST}:{port}"), seconds=0.1)
    gone = tried(configured(NO_FILES, f"http://{HOST}:{port}"))
    metadata = tried(configured(NO_FILES, "http://169.254.169.254"))

    assert silent.detail.endswith("no answer within 0.1 s")
    assert "Connect call failed" in gone.detail
    assert metadata.detail.endswith("169.254.169.254 is no address of a store")
    assert {one.verdict for one in (silent, gone, metadata)} == {Verdict.FAIL}


def test_each_that_is_named_has_a_line_and_files_alone_are_looked_at(etcd: Secured) -> None:
    endpoint = f"https://{HOST}:{etcd.port}"

    def of_etcd(config: Config) -> list[Check]:
        return [one for one in checks(config, SystemClock()) if one.name == "etcd"]

    def told(files: EtcdFiles, *endpoints: str) -> Finding:
        (found,) = examine(of_etcd(configured(files, *endpoints))).findings
        return found

    assert len(of_etcd(configured(etcd.files, endpoint, f"https://{HOST}:1"))) == 2
    assert of_etcd(Config()) == []
    assert told(replace(NO_FILES, ca=etcd.files.ca)).verdict is Verdict.OK
    lost = told(replace(etcd.files, password=str(etcd.folder / "lost")), endpoint)
    assert lost.verdict is Verdict.FAIL
    assert "lost: No such file" in lost.cure
    half = told(replace(NO_FILES, user="me", password=etcd.files.password))
    assert (half.detail, half.verdict) == ("etcd.user cannot be used", Verdict.FAIL)
