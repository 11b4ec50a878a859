"""Passwords and certificates that are renewed while agents live: what is shown is what lies there by then."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
import trustme

from evac.rendezvous.address import Address
from evac.rendezvous.etcd_access import Access, EtcdFiles
from evac.rendezvous.etcd_keys import EtcdKeys
from evac.rendezvous.keys import Denied, Keys, Unreachable
from tests.handlers.rendezvous.nodes import Node, until, work_together
from tests.handlers.rendezvous.test_etcd_secured import depart, look, once
from tests.services.etcd_secured import USER, Secured, write

T = TypeVar("T")


def test_a_new_password_is_read_from_its_file(etcd: Secured, address: Address) -> None:
    etcd.as_root("/v3/auth/user/add", name="renewed", password="old")
    etcd.as_root("/v3/auth/user/grant", user="renewed", role=USER)
    files = etcd.user("renewed", "old")
    access = Access(files)
    with closing(EtcdKeys(address, access)) as keys:
        keys.put("a", b"1")
        etcd.as_root("/v3/auth/user/changepw", name="renewed", password="new")
        # The token that it has is worth nothing any more.
        with pytest.raises(Denied, match="with this password"):
            keys.get(["a"])
    Path(files.password).write_text("new\n")

    with closing(EtcdKeys(address, access)) as keys:
        assert keys.get(["a"]) == [b"1"]
        keys.clear()


def user_renewed(etcd: Secured, name: str) -> tuple[EtcdFiles, Callable[[], None]]:
    """A user's files, and what changes its password, as README says: in the file first."""
    etcd.as_root("/v3/auth/user/add", name=name, password="old")
    etcd.as_root("/v3/auth/user/grant", user=name, role=USER)
    files = etcd.user(name, "old")

    def renew() -> None:
        Path(files.password).write_text("new\n")
        etcd.as_root("/v3/auth/user/changepw", name=name, password="new")

    return files, renew


def test_a_password_that_is_changed_while_one_waits_is_used_from_then_on(
    etcd: Secured, address: Address
) -> None:
    files, renew = user_renewed(etcd, "waits")
    keys, other = (EtcdKeys(address, Access(files), seconds=60.0) for _ in range(2))
    with closing(keys), closing(other):
        waits = in_thread(lambda: keys.wait("b"))
        until_watched(keys)

        renew()

        other.put("b", b"1")
        assert waits() is None
        assert keys.get(["b"]) == [b"1"]
        keys.clear()


def test_a_spare_in_no_round_goes_on_where_its_password_is_changed(
    etcd: Secured, address: Address, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    files, renew = user_renewed(etcd, "spare")
    conf = {"etcd": files, "connect_seconds": 1e6}
    nodes = [Node(name, address, maximum=2, conf=conf).start() for name in "ab"]
    until("two work", work_together(nodes))
    spare = Node("c", address, maximum=2, conf=conf).start()
    until("the spare waits", lambda: spare.handler is not None and spare.handler.waits)

    renew()
    depart(etcd, address, "b")

    until("it is needed", work_together([nodes[0], spare]))
    for node in (nodes[0], spare):
        node.finish()
    assert [node.join() for node in (nodes[0], spare, nodes[1])] == ["finished", "finished", 0]
    assert "turns this agent away" not in caplog.text


@pytest.mark.parametrize(
    "act",
    [look, lambda keys: keys.put("a", b"1"), lambda keys: keys.wait("a")],
    ids=["get", "put", "wait"],
)
def test_who_came_while_users_were_switched_off_says_who_it_is_once_they_are_on(
    etcd: Secured, address: Address, act: Callable[[Keys], object]
) -> None:
    access = Access(etcd.files)
    etcd.as_root("/v3/auth/disable")
    try:
        once(address, access, lambda keys: keys.put("a", b"1"))
        assert access.read(tls=True).login.ticket.token == ""
    finally:
        etcd.ask("/v3/auth/enable")

    once(address, access, act)

    assert once(address, access, lambda keys: keys.get(["a"])) == [b"1"]
    once(address, access, lambda keys: keys.clear())


def test_users_that_are_switched_off_and_on_for_a_while_turn_nobody_away(
    etcd: Secured, address: Address
) -> None:
    """All agents of a node's jobs share a token, and each has a moment of its own for which it is nobody."""
    access, ends = Access(etcd.files), threading.Event()

    def ask_on(number: int) -> int:
        done = 0
        while not ends.is_set() or not done:
            with suppress(Unreachable) if not ends.is_set() else nullcontext():
                once(address, access, lambda keys: asks(keys, str(number)))
                done += 1
        return done

    def asks(keys: Keys, key: str) -> None:
        try:
            keys.put(key, b"1")
            keys.wait(key)
            keys.keep()
        except Denied as error:
            turned_away.append(str(error))

    turned_away: list[str] = []
    asking = [in_thread(partial(ask_on, number)) for number in range(4)]
    for _ in range(10):
        etcd.as_root("/v3/auth/disable")
        etcd.ask("/v3/auth/enable")
    ends.set()

    assert all(asked() for asked in asking)
    assert turned_away == []
    once(address, access, lambda keys: keys.clear())


def test_a_certificate_that_is_renewed_is_shown_by_whoever_waits_next(
    etcd: Secured, address: Address, tmp_path: Path
) -> None:
    files = replace(etcd.files, cert=str(tmp_path / "c.pem"), key=str(tmp_path / "c.key"))
    folder, access = etcd.folder, Access(files)

    def lay(name: str, *, key: str = "") -> None:
        Path(files.cert).write_bytes((folder / f"{name}.pem").read_bytes())
        Path(files.key).write_bytes((folder / f"{key or name}.key").read_bytes())

    def wait_denied(keys: EtcdKeys) -> bool:
        """A connection that breaks may do so before it says why."""
        try:
            in_thread(lambda: keys.wait("b"))()
        except Denied as error:
            return "not this one" in str(error)
        except Unreachable:
            return False
        return False

    write(folder, "over", trustme.CA())
    lay("client")
    with closing(EtcdKeys(address, access, seconds=60.0)) as keys:
        assert keys.get(["b"]) == [None]
        # As good as one that has expired.
        lay("over")
        until("the next connection shows it", lambda: wait_denied(keys))
        lay("server")

        waits = in_thread(lambda: keys.wait("b"))
        until_watched(keys)
        # Half renewed, the former is shown yet.
        lay("client", key="server")
        once(address, access, lambda other: other.put("b", b"1"))
        assert waits() is None
        assert "no certificate and its key" in access.wrong
        lay("client")
        once(address, access, lambda other: other.clear())
        assert access.wrong == ""


def test_what_was_right_is_shown_while_a_file_is_being_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    password = tmp_path / "password"
    password.write_text("old\n")
    access = Access(EtcdFiles(user="me", password=str(password)))
    shown = access.read(tls=False)

    for text, told in (("", "holds no password"), ("", "holds no password"), ("new\n", "")):
        password.write_text(text)
        assert access.read(tls=False).login.password == (text.strip() or shown.login.password)
        assert told in access.wrong
        assert bool(told) == bool(access.wrong)

    assert caplog.text.count("holds no password") == 1
    password.write_text("")
    with pytest.raises(ValueError, match="holds no password"):
        Access(access.files).read(tls=False)


def in_thread(act: Callable[[], T]) -> Callable[[], T]:
    """Begins *act*; what it gives is waited for."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(act)
    pool.shutdown(wait=False)
    return lambda: future.result(timeout=60)


def until_watched(keys: EtcdKeys) -> None:
    def probe() -> bool:
        line = keys._watch  # pyright: ignore[reportPrivateUsage]
        return line is not None and line.sock is not None

    until("it waits", probe)


def test_a_new_certificate_is_read_from_its_files(etcd: Secured, tmp_path: Path) -> None:
    files = replace(etcd.files, ca=str(tmp_path / "ca.pem"))
    access = Access(files)
    trustme.CA().cert_pem.write_to_path(files.ca)
    with pytest.raises(Denied, match="not to be trusted"):
        once(etcd.address(), access, look)
    Path(files.ca).write_bytes(Path(etcd.files.ca).read_bytes())

    assert once(etcd.address(), access, look) == [None]
    assert access.read(tls=True).context is access.read(tls=True).context
