"""The readers' token opens a peer's memory and changes nothing there."""

import hashlib
import hmac
from collections.abc import Iterator
from pathlib import Path

import pytest

from evac.errors import StoreRejected
from evac.store import Store, open_store
from evac.store import peer_wire as wire
from evac.store.peer_line import Line
from evac.store.peer_wire import Request, Status, Verb
from evacd.clock import SystemClock
from evacd.peer import PeerServer
from tests.agent.peer.test_hostile import SETTINGS, TOKEN, shaken

BODY = bytes(range(256)) * 4096
KEY = "me/job/step-9.1/__0_0.distcp"


@pytest.fixture
def server() -> Iterator[PeerServer]:
    made = PeerServer(SETTINGS, SystemClock(), leaving=lambda: False, promised=lambda: 0)
    made.open()
    yield made
    made.close()


def opened(server: PeerServer, folder: Path, token: bytes) -> Store:
    path = folder / hashlib.sha256(token).hexdigest()
    path.write_bytes(token + b"\n")
    return open_store(f"evac://127.0.0.1:{server.port}?token_file={path}")


def asked(line: Line, what: Request, body: bytes = b"") -> wire.Answer:
    line.send_header(wire.request(what))
    if body:
        line.send_chunks(memoryview(body))
    return wire.read_answer(line.receive_header(wire.ANSWER_NBYTES, wire.text_nbytes))


def test_it_is_what_openssl_makes_of_the_token_and_says_nothing_of_it() -> None:
    made = wire.reader_token(TOKEN)

    assert made.decode() == hmac.new(TOKEN, b"evac peer reader", "sha256").hexdigest()
    assert wire.reader_token(made) != made
    assert wire.reader_token(b"") == b""


async def test_who_may_only_read_reads(server: PeerServer, tmp_path: Path) -> None:
    await opened(server, tmp_path, TOKEN).put(KEY, memoryview(BODY))
    reader = opened(server, tmp_path, wire.reader_token(TOKEN))

    into = bytearray(len(BODY))
    assert await reader.read(KEY, 0, memoryview(into)) == len(BODY)
    assert into == BODY
    assert [one.key for one in await reader.list("me")] == [KEY]
    for work in (
        reader.put(KEY, memoryview(b"other")),
        reader.create("me/job/new", b"x"),
        reader.delete(KEY),
    ):
        with pytest.raises(StoreRejected, match="reading alone"):
            await work
    assert await reader.get(KEY) == BODY


async def test_who_may_only_read_can_change_nothing_whatever_it_asks_for(
    server: PeerServer, tmp_path: Path
) -> None:
    """Puts are known by numbers, that anybody can guess: those of others are no nearer."""
    await opened(server, tmp_path, TOKEN).put(KEY, memoryview(BODY))
    writer, reader = shaken(server), shaken(server, wire.reader_token(TOKEN))
    begin = Request(Verb.BEGIN, "me/job/step-10.1/__0_0.distcp", nbytes=len(BODY))
    number = asked(writer, begin).number

    other = bytes(len(BODY))
    for what, body in (
        (Request(Verb.BEGIN, KEY, nbytes=1), b""),
        (Request(Verb.PART, put=number, nbytes=len(other)), other),
        (Request(Verb.COMMIT, put=number), b""),
        (Request(Verb.CREATE, put=number), b""),
        (Request(Verb.ABORT, put=number), b""),
        (Request(Verb.DELETE, KEY), b""),
    ):
        assert asked(reader, what, body).status is Status.REFUSED, what.verb
    reader.close()

    part = Request(Verb.PART, put=number, nbytes=len(BODY))
    assert asked(writer, part, BODY).status is Status.OK
    assert asked(writer, Request(Verb.COMMIT, put=number)).status is Status.OK
    writer.close()
    store = opened(server, tmp_path, TOKEN)
    for key in (KEY, begin.key):
        assert await store.get(key) == BODY
