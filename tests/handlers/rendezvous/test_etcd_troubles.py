"""What an etcd says in trouble, or what answers in its place: nothing of a moment is taken for final."""

import http.client
import http.server
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from evac.rendezvous.address import ETCD, Address
from evac.rendezvous.etcd_access import Access
from evac.rendezvous.etcd_calls import Answer, EtcdCalls, Request
from evac.rendezvous.etcd_keys import EtcdKeys
from evac.rendezvous.etcd_login import Login, Ticket
from evac.rendezvous.keys import Denied, Unreachable
from tests.handlers.rendezvous.nodes import HOST, until
from tests.handlers.rendezvous.test_etcd_secured import look, once
from tests.services.etcd_secured import USER, Secured

# --- what it says ---------------------------------------------------------------------------

MOMENTARY = [
    (503, '{"error": "etcdserver: no leader", "code": 14, "message": "etcdserver: no leader"}'),
    (503, '{"message": "etcdserver: leader changed"}'),
    (503, '{"message": "etcdserver: request timed out, possibly due to connection lost"}'),
    (429, '{"message": "etcdserver: too many requests", "code": 8}'),
    (429, '{"message": "etcdserver: mvcc: database space exceeded", "code": 8}'),
    (503, '{"error": {"grpc_code": 14, "message": "etcdserver: server stopped"}}'),
    (400, '{"message": "etcdserver: mvcc: required revision has been compacted"}'),
    (200, '{"error": {"grpc_code": 14, "message": "transport is closing"}}'),
    (200, '{"responses": [{"response_ra'),
    (200, ""),
    (200, "<html>Sign in</html>"),
    (401, "<html>401 Authorization Required</html>"),
    (403, "<html>403 Forbidden</html>"),
    (404, "404 page not found"),
    (502, "<html>502 Bad Gateway</html>"),
    (503, "upstream connect error or disconnect/reset before headers"),
    (504, "<html>504 Gateway Time-out</html>"),
]


@pytest.mark.parametrize("token", [None, "good"])
@pytest.mark.parametrize(("status", "said"), MOMENTARY)
def test_what_may_be_otherwise_in_a_moment_turns_nobody_away(
    status: int, said: str, token: str | None
) -> None:
    """... and costs no token; asked for one, or for keys."""
    ticket = Ticket(token)
    steps = EtcdCalls("h:1", "evac/run", Login("me", "secret", ticket)).get(["a"])
    next(steps)

    with pytest.raises(Unreachable) as failed:
        steps.send(Answer(status, said.encode()))

    assert not isinstance(failed.value, Denied)
    assert ticket.token == token


# --- who shows what -------------------------------------------------------------------------


def test_a_password_that_was_refused_is_shown_seldom_and_another_one_at_once() -> None:
    ticket = Ticket()

    def shown(password: str) -> list[bool]:
        """Whether it was, in so many tries."""
        found = list[bool]()
        for _ in range(20):
            found.append(password in ticket.passwords(password))
            if found[-1]:
                ticket.refused(password)
        return found

    seldom = [True, False, True, *3 * [False], True, *5 * [False], True, *5 * [False], True, False]
    assert shown("wrong") == seldom
    assert ticket.passwords("right") == ("right",)
    ticket.took("right")
    # It knows nothing of it any more, and what was right is tried, too.
    assert ticket.passwords("wrong") == ("wrong", "right")


def test_a_password_that_is_in_its_file_already_and_in_etcd_not_yet_turns_nobody_away(
    etcd: Secured, address: Address
) -> None:
    etcd.as_root("/v3/auth/user/add", name="slow", password="old")
    etcd.as_root("/v3/auth/user/grant", user="slow", role=USER)
    files = etcd.user("slow", "old")
    access = Access(files)
    assert once(address, access, look) == [None]

    Path(files.password).write_text("new\n")
    # As where etcd was started anew: no token is known any more.
    etcd.as_root("/v3/auth/disable")
    etcd.ask("/v3/auth/enable")

    assert once(address, access, look) == [None]
    etcd.as_root("/v3/auth/user/changepw", name="slow", password="new")
    assert once(address, access, look) == [None]
    with pytest.raises(Denied, match="with this password"):
        once(address, Access(etcd.user("slow", "old")), look)


def test_a_certificate_of_etcds_that_is_half_renewed_turns_nobody_away(
    etcd: Secured, address: Address
) -> None:
    """It breaks off every handshake in the meantime."""
    key, access = etcd.folder / "server.key", Access(etcd.files)
    right = key.read_bytes()
    key.write_bytes((etcd.folder / "client.key").read_bytes())
    try:
        with pytest.raises(Unreachable) as failed:
            once(address, access, look)
    finally:
        key.write_bytes(right)

    assert not isinstance(failed.value, Denied)
    assert once(address, access, look) == [None]


# --- a watch --------------------------------------------------------------------------------


def test_a_watch_that_etcd_has_compacted_is_asked_for_anew(etcd: Secured, address: Address) -> None:
    with closing(EtcdKeys(address, Access(etcd.files), seconds=60.0)) as keys:
        assert keys.get(["a"]) == [None]
        steps = keys._calls.watch("a")  # pyright: ignore[reportPrivateUsage]
        before = keys._send(next(steps))  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(StopIteration) as asked:
            steps.send(before)
        for _ in range(3):
            keys.put("b", b"1")
        compact(etcd)

        with pytest.raises(Unreachable) as failed:
            watch(etcd, keys, asked.value.value)

        assert not isinstance(failed.value, Denied)
        keys.put("a", b"1")
        keys.wait("a")
        keys.clear()


def watch(etcd: Secured, keys: EtcdKeys, asked: Request) -> None:
    """As `EtcdKeys.wait` does, once it has looked."""
    context = ssl.create_default_context(cafile=etcd.files.ca)
    context.load_cert_chain(etcd.files.cert, etcd.files.key)
    line = http.client.HTTPSConnection(HOST, etcd.port, timeout=60, context=context)
    with closing(line):
        line.request("POST", asked.path, asked.body, asked.headers)
        with line.getresponse() as response:
            keys._follow(response, line.sock)  # pyright: ignore[reportPrivateUsage]


def compact(etcd: Secured) -> None:
    """All that is not the newest goes."""
    now = etcd.as_root("/v3/kv/range", key="AA==")["header"]["revision"]
    etcd.as_root("/v3/kv/compaction", revision=now, physical=True)


class Gateway(http.server.ThreadingHTTPServer):
    """What answers in etcd's place: a range with nothing, and a watch as it is told."""

    daemon_threads = True

    def __init__(self, status: int, answer: bytes, *, silent: bool) -> None:
        super().__init__((HOST, 0), Asked)
        self.status, self.answer = status, answer
        self.ends = threading.Event() if silent else None


class Asked(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Gateway

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/v3/watch" and self.server.ends is not None:
            self.server.ends.wait()
        told = (200, b'{"header": {"revision": "7"}}')
        status, text = (self.server.status, self.server.answer) if "watch" in self.path else told
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nobody wants to know."""


@contextmanager
def gateway(status: int, answer: bytes, *, silent: bool = False) -> Iterator[Address]:
    with Gateway(status, answer, silent=silent) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield Address(ETCD, HOST, server.server_address[1], "evac/run")
        finally:
            if server.ends is not None:
                server.ends.set()
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "answer", "told"),
    [
        (200, b'{"error": {"grpc_code": 14, "message": "etcdserver: no leader"}}\n', "no leader"),
        (200, b'{"result": {"created": true}}\n', "the watch ended"),
        (200, b'{"result": {"created": tr', "no etcd v3 gateway answers"),
        (200, b"<html>Sign in</html>\n", "no etcd v3 gateway answers"),
        (503, b'{"error": {"message": "etcdserver: server stopped"}}', "server stopped"),
        (405, b"<html>405 Not Allowed</html>", "answered 405: <html>405 Not Allowed"),
        (403, b'{"message": "etcdserver: permission denied"}', "permission denied"),
    ],
)
def test_a_watch_that_fails_is_told_as_it_was_and_turns_nobody_away(
    status: int, answer: bytes, told: str
) -> None:
    with (
        gateway(status, answer) as address,
        closing(EtcdKeys(address, seconds=60.0)) as keys,
        pytest.raises(Unreachable, match=told) as failed,
    ):
        keys.wait("a")

    assert not isinstance(failed.value, Denied)


def test_an_answer_that_something_holds_back_leaves_nobody_deaf() -> None:
    """A proxy that gathers answers would hand on what happened once it has enough of that."""
    said = ""

    def waited() -> bool:
        nonlocal said
        with closing(EtcdKeys(address, seconds=0.5)) as keys:
            try:
                keys.wait("a")
            except Unreachable as error:
                said = str(error)
        # On a busy machine it was not even asked to watch.
        return "does a proxy hold answers back?" in said

    with gateway(200, b"", silent=True) as address:
        until("it gives up", waited)
