"""What lies in a store, or answers in its place, may be anything: no agent ends of it."""

import base64
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evac.rendezvous import log
from evac.rendezvous.address import ETCD, TCPSTORE, Address
from evac.rendezvous.etcd_keys import EtcdKeys
from evac.rendezvous.events import Confirm, Depart, Join, Open, decode, encode
from evac.rendezvous.keys import Keys, Unreachable
from evac.rendezvous.rounds import after
from evac.rendezvous.snapshot import Snapshot, dump, load
from evac.rendezvous.state import State
from evac.rendezvous.succession import place
from tests.handlers.rendezvous.nodes import HOST
from tests.handlers.rendezvous.test_events import json_values

ADDRESS = Address(TCPSTORE, HOST, 1, "evac/run")


def whole() -> dict[str, Any]:
    """A snapshot as it lies in a store."""
    state = State()
    for event in (
        Join("a", "a", "boot", 1, 3, standby="a:1", hosts=True),
        Join("b", "b", "boot", 1, 3, standby="b:1"),
        Join("c", "c", "boot", 1, 3, standby="[::1]:1"),
        Open("a", 1, "a:7"),
        *(Confirm(agent, 1) for agent in "abc"),
        Depart("leaving", "b", "boot", 1, job="me/run"),
    ):
        state = after(state, event)
    document: dict[str, Any] = json.loads(dump(Snapshot(9, 0, state)))
    return document


def usable(snapshot: Snapshot | None) -> None:
    """Whatever an agent does with it first."""
    if snapshot is None:
        return
    for agent in snapshot.state.successors():
        place(ADDRESS, agent.standby)
    assert 0 <= snapshot.since <= snapshot.at
    for at in (snapshot.state.origin, snapshot.state.moved and snapshot.state.moved.at):
        if at:
            place(ADDRESS, at)
    dump(snapshot)


@given(st.sampled_from(sorted(whole())), json_values)
@settings(max_examples=300)
def test_a_snapshot_with_any_field_turned_into_anything_is_none_or_usable(
    field: str, value: object
) -> None:
    usable(load(json.dumps({**whole(), field: value}).encode()))


@pytest.mark.parametrize("value", ["Infinity", "-Infinity", "NaN", "1e400", "-1", "9" * 400])
@pytest.mark.parametrize("field", ["at", "since", "last", "minimum", "maximum"])
def test_numbers_that_are_none_are_refused(field: str, value: str) -> None:
    text = json.dumps({**whole(), field: "here"}).replace('"here"', value)
    usable(load(text.encode()))


def test_a_snapshot_that_lets_nobody_delete_for_ever_is_none() -> None:
    assert load(json.dumps({**whole(), "since": 0, "at": 2**53}).encode()) is None


@pytest.mark.parametrize(
    "place_of", ["[", "h:99999", "h:x", "h:0", "h", "http://h:1", "a b:1", "h:-1", "[::1", "@:1"]
)
def test_an_address_that_cannot_be_one_says_nothing(place_of: str) -> None:
    assert decode(encode(Open("a", 1, place_of))) is None
    assert decode(encode(Join("a", "n", "b", 1, 2, standby=place_of))) is None
    document = whole()
    document["round"]["at"] = place_of
    assert load(json.dumps(document).encode()) is None


def test_real_addresses_are_understood() -> None:
    for one in ("h:1", "node-1.local:65535", "10.0.0.1:29400", "[fe80::1]:29400"):
        assert decode(encode(Open("a", 1, one))) == Open("a", 1, one)


# --- who answers in etcd's place ------------------------------------------------------------

ANSWERS = (
    b"{}",
    b"[]",
    b"null",
    b"<html>",
    b"",
    b"[" * 100_000,
    b'{"succeeded":false}',
    b'{"succeeded":false,"responses":[]}',
    b'{"responses":[{"response_range":{"kvs":[{"value":"@@@"}]}}]}',
    b'{"responses":[{"response_range":{"kvs":[7]}}]}',
    b'{"responses":[null]}',
    b'{"error":"permission denied","code":7}',
    b'{"header":{"revision":"x"}}',
    b'{"header":{"revision":"5"},"result":7}',
    b'{"header":{"revision":"5"},"result":{"canceled":true,"compact_revision":"9"}}',
)


@pytest.fixture(params=ANSWERS, ids=lambda answer: answer[:40].decode())
def stranger(request: pytest.FixtureRequest) -> Iterator[EtcdKeys]:
    """Some other HTTP server."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(200)
            self.send_header("Content-Length", str(len(request.param)))
            self.end_headers()
            self.wfile.write(request.param)

        def log_message(self, format: str, *arguments: object) -> None:
            """Nobody wants to know."""

    with http.server.ThreadingHTTPServer((HOST, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        keys = EtcdKeys(Address(ETCD, HOST, server.server_address[1], "evac/run"))
        yield keys
        keys.close()
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    "act",
    [
        lambda keys: keys.create("k", b"v"),
        lambda keys: keys.get(["k"]),
        lambda keys: keys.wait("k"),
        lambda keys: keys.put("k", b"v"),
        lambda keys: keys.delete("k"),
        log.snapshot,
    ],
    ids=["create", "get", "wait", "put", "delete", "snapshot"],
)
def test_a_stranger_in_etcds_place_is_a_store_that_cannot_be_reached(
    stranger: EtcdKeys, act: Callable[[Keys], object]
) -> None:
    with suppress(Unreachable):
        act(stranger)


def test_etcds_own_answers_are_read(in_etcd: Address) -> None:
    keys = EtcdKeys(in_etcd)
    assert keys.get(["one", "two"]) == [None, None]
    value = base64.b64encode(bytes(range(256)))
    assert keys.create("one", value) == value
    assert keys.create("one", b"other") == value
    assert keys.get(["two", "one"]) == [None, value]
    keys.wait("one")
    keys.close()
