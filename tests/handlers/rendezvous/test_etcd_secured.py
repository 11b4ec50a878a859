"""Agents in an etcd with TLS and users: who is let in, who is not and is told why, and no secret is."""

import http.server
import logging
import os
import re
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
import trustme
from torch.distributed.elastic.rendezvous import RendezvousConnectionError

from evac.rendezvous import log
from evac.rendezvous.address import ETCD, Address
from evac.rendezvous.etcd_access import NO_FILES, Access, EtcdFiles
from evac.rendezvous.etcd_keys import EtcdKeys
from evac.rendezvous.events import Depart, encode
from evac.rendezvous.keys import Denied, Keys, Unreachable
from tests.handlers.rendezvous.agents import Job, now
from tests.handlers.rendezvous.nodes import HOST, Node, until, work_together
from tests.services.etcd_secured import (
    PASSWORD,
    READER,
    STRANGER,
    USER,
    Secured,
    write,
)

T = TypeVar("T")


def look(keys: Keys) -> list[bytes | None]:
    return keys.get(["a"])


def depart(etcd: Secured, address: Address, node: str) -> None:
    """What its evacd writes."""
    with closing(EtcdKeys(address, Access(etcd.files))) as keys:
        found = log.snapshot(keys)
        assert found is not None
        log.append(keys, found.at, encode(Depart("leaving", node, "boot", 1)))


def once(address: Address, access: Access, act: Callable[[Keys], T]) -> T:
    """Over a connection of its own."""
    with closing(EtcdKeys(address, access, seconds=60.0)) as keys:
        return act(keys)


def tried(address: Address, access: Access, act: Callable[[Keys], object]) -> None:
    """The same, whatever becomes of a connection that breaks before it says why."""
    try:
        once(address, access, act)
    except Denied:
        raise
    except Unreachable:
        pass


def agents(
    etcd: Secured, address: Address, names: str, files: EtcdFiles | None = None
) -> list[Node]:
    conf = {"etcd": files or etcd.files, "connect_seconds": 1e6}
    return [Node(name, address, conf=conf).start() for name in names]


def test_agents_meet_over_tls_with_a_password_and_go_on_without_one_that_leaves(
    etcd: Secured, address: Address, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    nodes = agents(etcd, address, "abc")
    until("three work", work_together(nodes))
    # As where users are changed, or etcd was started anew: no token is known any more.
    etcd.as_root("/v3/auth/disable")
    etcd.ask("/v3/auth/enable")

    depart(etcd, address, "b")

    until("two go on", work_together([nodes[0], nodes[2]]))
    assert nodes[1].join() == 0
    for node in (nodes[0], nodes[2]):
        node.finish()
    assert [nodes[0].join(), nodes[2].join()] == ["finished", "finished"]
    assert etcd.keys(f"{address.prefix}/") == []
    assert PASSWORD not in caplog.text


@pytest.mark.skipif(os.environ.get("EVAC_NIGHTLY") != "1", reason="EVAC_NIGHTLY=1 runs it")
def test_torchrun_meets_over_tls_with_a_password(etcd: Secured, tmp_path: Path) -> None:
    job = Job(tmp_path / "job", port=etcd.port, scheme=ETCD, conf=etcd.conf(), run="torchrun")
    try:
        for node in "abc":
            job.start(node)
        job.trains("abc")
        before = now()
        assert job.address() == etcd.address("torchrun")

        depart(etcd, job.address(), "a")

        job.trains("bc", after=before)
        assert job.ended("a") == 0
        before = now()
        job.start("d", endpoint=f"https://{HOST}:{etcd.port}")
        job.trains("bcd", after=before)
        job.finish()
        assert [job.ended(node) for node in "bcd"] == [0, 0, 0]
        assert job.restarts() == 0
        assert etcd.keys("evac/torchrun/") == []
        assert all(PASSWORD not in job.log_of(node) for node in "abcd")
    finally:
        job.close()


def wrong_password(etcd: Secured) -> EtcdFiles:
    return etcd.user(USER, "not this one")


def no_permission(etcd: Secured) -> EtcdFiles:
    return etcd.user(STRANGER, STRANGER)


def no_user(etcd: Secured) -> EtcdFiles:
    return replace(etcd.files, user="", password="")


def wrong_ca(etcd: Secured) -> EtcdFiles:
    path = etcd.folder / "other-ca.pem"
    trustme.CA().cert_pem.write_to_path(str(path))
    return replace(etcd.files, ca=str(path))


def no_certificate(etcd: Secured) -> EtcdFiles:
    return replace(etcd.files, cert="", key="")


def wrong_certificate(etcd: Secured) -> EtcdFiles:
    cert, key = write(etcd.folder, "other", trustme.CA())
    return replace(etcd.files, cert=cert, key=key)


def no_file(etcd: Secured) -> EtcdFiles:
    return replace(etcd.files, ca=str(etcd.folder / "nothing.pem"))


def empty_password(etcd: Secured) -> EtcdFiles:
    return etcd.user(USER, "")


WRONG = pytest.mark.parametrize(
    ("shown", "told"),
    [
        (wrong_password, "etcd knows no user 'job' with this password"),
        (no_permission, "etcd gives 'stranger' no permission to read and write below evac/"),
        (no_user, "etcd wants a user and a password"),
        (wrong_ca, "its certificate is not to be trusted: "),
        (no_certificate, "it wants a client certificate, and not this one"),
        (wrong_certificate, "it wants a client certificate, and not this one"),
        (no_file, "nothing.pem: No such file or directory"),
        (empty_password, ": holds no password"),
    ],
)


@WRONG
def test_who_is_not_let_in_is_told_why(
    etcd: Secured, address: Address, shown: Callable[[Secured], EtcdFiles], told: str
) -> None:
    acts: list[Callable[[Keys], object]] = [
        look,
        lambda keys: keys.create("a", b"1"),
        lambda keys: keys.wait("a"),
    ]
    for act in acts:
        with pytest.raises(Denied) as denied:
            until("it is told", partial(tried, address, Access(shown(etcd)), act))
        assert told in str(denied.value)
        assert PASSWORD not in str(denied.value)


@pytest.mark.parametrize(
    ("shown", "told"),
    [(wrong_password, "with this password"), (wrong_ca, "not to be trusted")],
)
def test_an_agent_that_is_not_let_in_ends_at_once(
    etcd: Secured, address: Address, shown: Callable[[Secured], EtcdFiles], told: str
) -> None:
    """... and does not try for the 12 days that the store may take to answer here."""
    (node,) = agents(etcd, address, "a", shown(etcd))

    ended = node.join()

    assert isinstance(ended, RendezvousConnectionError)
    assert told in str(ended)


def test_an_agent_that_may_only_read_ends_at_once(etcd: Secured, address: Address) -> None:
    nodes = agents(etcd, address, "ab")
    until("two work", work_together(nodes))

    (reader,) = agents(etcd, address, "r", etcd.user(READER, READER))

    assert "no permission to read and write" in str(reader.join())
    for node in nodes:
        node.finish()
    assert [node.join() for node in nodes] == ["finished", "finished"]


def test_an_etcd_without_users_asks_for_no_password(
    in_etcd: Address, etcd: Secured, address: Address
) -> None:
    files = replace(NO_FILES, user=USER, password=etcd.files.password)
    with closing(EtcdKeys(in_etcd, Access(files))) as keys:
        assert keys.create("a", b"1") == b"1"


def test_an_etcd_with_tls_is_not_mistaken(etcd: Secured) -> None:
    with pytest.raises(Unreachable, match="does it want https"):
        once(replace(etcd.address(), scheme=ETCD), Access(), look)


def test_a_stranger_that_repeats_what_it_was_told_gets_no_secret_into_a_message(
    tmp_path: Path,
) -> None:
    heard: list[str] = []

    class Parrot(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            said = self.rfile.read(int(self.headers["Content-Length"])).decode()
            said = f"{said} {self.headers.get('Authorization', '')}"
            heard.append(said)
            if self.path.endswith("authenticate") and len(heard) > 1:
                status, answer = 200, b'{"token": "t0ken.7"}'
            else:
                status, answer = 400, said.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *arguments: object) -> None:
            """Nobody wants to know."""

    (tmp_path / "password").write_text("hunter2")
    files = EtcdFiles(user="me", password=str(tmp_path / "password"))
    with http.server.ThreadingHTTPServer((HOST, 0), Parrot) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        access = Access(files)
        keys = EtcdKeys(Address(ETCD, HOST, server.server_address[1], "evac/run"), access)
        told = []
        for _ in range(2):
            with pytest.raises(Unreachable) as failed:
                keys.get(["a"])
            told += [str(failed.value), repr(failed.value)]
        keys.close()
        server.shutdown()
        thread.join()

    assert "hunter2" in heard[0]
    assert "t0ken.7" in heard[-1]
    for text in (*told, repr(access), repr(access.read(tls=False))):
        assert not re.search("hunter2|t0ken", text)
