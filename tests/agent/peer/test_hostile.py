"""What comes to a peer's port and is no peer: it disturbs nobody and is gone soon."""

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from evac.errors import StoreUnavailable
from evac.store import open_store
from evac.store import peer_wire as wire
from evac.store.peer_line import Line
from evacd.clock import SystemClock
from evacd.peer import PeerServer, PeerSettings

MIB = 1024 * 1024
TOKEN = b"a token that nobody would guess"
SETTINGS = PeerSettings("127.0.0.1", 0, TOKEN, 64 * MIB, 3600.0, 4)


@pytest.fixture
def server() -> Iterator[PeerServer]:
    made = PeerServer(SETTINGS, SystemClock(), leaving=lambda: False, promised=lambda: 0)
    made.open()
    yield made
    made.close()


async def works(server: PeerServer, tmp_path: Path) -> None:
    """An honest peer is served as if nothing were."""
    token = tmp_path / "token"
    token.write_bytes(TOKEN)
    store = open_store(f"evac://127.0.0.1:{server.port}?token_file={token}&connections=1")
    await store.put("honest/body", memoryview(bytes(MIB)))
    assert await store.get("honest/body") == bytes(MIB)
    await store.delete("honest/body")
    assert await store.list("") == []


def connect(server: PeerServer) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", server.port))
    made.settimeout(30)
    return made


def ended(plain: socket.socket) -> bool:
    """The server has hung up, within the socket's time limit."""
    with suppress(ConnectionError):
        while plain.recv(65536):
            pass
    return True


def shaken(server: PeerServer, token: bytes = TOKEN) -> Line:
    """One that holds the token, and means ill."""
    line = Line(connect(server), lambda: False)
    ours = os.urandom(wire.NONCE)
    line.send(wire.hello(ours))
    _, theirs = wire.read_welcome(line.receive(wire.WELCOME_NBYTES))
    both = wire.Secrets(token, ours, theirs)
    line.send(both.of_client)
    assert wire.read_verdict(line.receive(wire.VERDICT_NBYTES)) == both.of_server
    line.seal(wire.Seal(both.session, b"c"), wire.Seal(both.session, b"s"))
    return line


def ask(line: Line, what: wire.Request) -> wire.Answer:
    line.send_header(wire.request(what))
    return wire.read_answer(line.receive_header(wire.ANSWER_NBYTES, wire.text_nbytes))


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b"x" * 64,
        bytes(4096),
        os.urandom(4096),
        b"EVACPEER" + struct.pack("!H", 99) + bytes(32),
        wire.hello(bytes(32)) + bytes(32),
        wire.hello(bytes(32)) + os.urandom(MIB),
    ],
    ids=["http", "zeros", "noise", "version 99", "no proof", "noise for a proof"],
)
async def test_garbage_is_hung_up_on(server: PeerServer, tmp_path: Path, said: bytes) -> None:
    with connect(server) as plain:
        with suppress(ConnectionError):
            plain.sendall(said)
        assert ended(plain)

    await works(server, tmp_path)


def test_a_handshake_that_was_overheard_opens_nothing(server: PeerServer) -> None:
    """Nor does what the server itself said, sent back to it."""
    ours = os.urandom(wire.NONCE)
    with connect(server) as plain:
        plain.sendall(wire.hello(ours))
        _, theirs = wire.read_welcome(plain.recv(wire.WELCOME_NBYTES, socket.MSG_WAITALL))
        both = wire.Secrets(TOKEN, ours, theirs)
        plain.sendall(both.of_client)
        assert plain.recv(wire.VERDICT_NBYTES, socket.MSG_WAITALL)[0] == 0

    for proof in (both.of_client, both.of_server, both.session):
        with connect(server) as plain:
            plain.sendall(wire.hello(ours))
            plain.recv(wire.WELCOME_NBYTES, socket.MSG_WAITALL)
            plain.sendall(proof)
            assert wire.read_verdict(plain.recv(wire.VERDICT_NBYTES, socket.MSG_WAITALL)) is None
            assert ended(plain)


def test_a_token_never_crosses_the_wire_and_a_stranger_learns_nothing_of_it() -> None:
    """The server proves nothing to whoever has not proved it first."""
    both = wire.Secrets(TOKEN, bytes(32), bytes(32))

    for said in (both.of_client, both.of_server, both.session):
        assert TOKEN not in said
    assert len({both.of_client, both.of_server, both.session}) == 3


async def test_a_peer_that_has_no_token_of_ours_gets_no_byte(tmp_path: Path) -> None:
    """Who listens where a peer was has to prove itself, too."""
    token = tmp_path / "token"
    token.write_bytes(TOKEN)
    heard: list[int] = []

    def play() -> None:
        client, _ = listening.accept()
        with client:
            client.recv(wire.HELLO_NBYTES, socket.MSG_WAITALL)
            client.sendall(wire.welcome(wire.Door.OPEN, bytes(32)))
            client.recv(wire.PROOF, socket.MSG_WAITALL)
            client.sendall(wire.verdict(bytes(32)))
            heard.append(len(client.recv(65536)))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        playing = threading.Thread(target=play)
        playing.start()
        port = listening.getsockname()[1]
        with pytest.raises(Exception, match="does not know our token"):
            await open_store(f"evac://127.0.0.1:{port}?token_file={token}").put(
                "a", memoryview(b"secret")
            )
        playing.join()
    assert heard == [0]


async def test_a_flood_of_strangers_keeps_no_peer_out(server: PeerServer, tmp_path: Path) -> None:
    strangers = [connect(server) for _ in range(60)]

    await works(server, tmp_path)

    for one in strangers:
        one.close()


def unknown_verb(line: Line) -> None:
    line.send_header(struct.pack("!BxHQQQ", 77, 0, 0, 0, 0))


def long_key(line: Line) -> None:
    line.send_header(struct.pack("!BxHQQQ", wire.Verb.DELETE, 65535, 0, 0, 0))


def no_text(line: Line) -> None:
    line.send_header(struct.pack("!BxHQQQ", wire.Verb.DELETE, 2, 0, 0, 0) + b"\xff\xff")


def unmarked(line: Line) -> None:
    line.send(wire.request(wire.Request(wire.Verb.LIST)) + bytes(wire.MAC))


def huge_part(line: Line) -> None:
    line.send_header(wire.request(wire.Request(wire.Verb.PART, put=1, nbytes=2**60)))


def empty_part(line: Line) -> None:
    line.send_header(wire.request(wire.Request(wire.Verb.PART, put=1)))


def foreign_part(line: Line) -> None:
    begun = ask(line, wire.Request(wire.Verb.BEGIN, "a/b", nbytes=MIB))
    line.send_header(wire.request(wire.Request(wire.Verb.PART, put=begun.number, nbytes=MIB - 1)))


@pytest.mark.parametrize(
    "crime",
    [unknown_verb, long_key, no_text, unmarked, huge_part, empty_part, foreign_part],
)
async def test_who_breaks_the_protocol_is_hung_up_on(
    server: PeerServer, tmp_path: Path, crime: Callable[[Line], None]
) -> None:
    line = shaken(server)
    crime(line)

    assert line.wait(30)
    with pytest.raises(Exception, match="connection lost"):
        line.receive(1)
    line.close()
    await works(server, tmp_path)


def test_a_request_that_was_overheard_does_nothing_a_second_time(server: PeerServer) -> None:
    line = shaken(server)
    seen: list[bytes] = []
    real = line.send

    def send(data: bytes | memoryview, *, patience: float = 1.0) -> None:
        seen.append(bytes(data))
        real(data)

    line.send = send  # type: ignore[method-assign]  # a man in between, who listens
    assert ask(line, wire.Request(wire.Verb.DELETE, "a")).status is wire.Status.OK
    real(seen[-1])

    with pytest.raises(Exception, match="connection lost"):
        line.receive(1)
    line.close()


@pytest.mark.parametrize("key", ["", "/a", "a/../b", "a//b", "a\0b"])
def test_a_key_that_is_no_path_is_refused(server: PeerServer, key: str) -> None:
    line = shaken(server)
    for verb in (wire.Verb.BEGIN, wire.Verb.DELETE):
        assert ask(line, wire.Request(verb, key, nbytes=1)).status is wire.Status.REFUSED
    line.close()


def test_no_request_takes_memory_beyond_the_budget(server: PeerServer) -> None:
    line = shaken(server)
    for nbytes in (65 * MIB, 2**45, 2**63):
        answer = ask(line, wire.Request(wire.Verb.BEGIN, "a/b", nbytes=nbytes))
        assert answer.status in (wire.Status.FULL, wire.Status.REFUSED)
    for number in range(16):
        assert ask(line, wire.Request(wire.Verb.BEGIN, f"a/{number}", nbytes=1)).number
    more = ask(line, wire.Request(wire.Verb.BEGIN, "a/16", nbytes=1))
    assert more.status is wire.Status.REFUSED
    line.close()


async def test_half_a_body_is_no_body_and_its_memory_comes_back(
    server: PeerServer, tmp_path: Path
) -> None:
    line = shaken(server)
    begun = ask(line, wire.Request(wire.Verb.BEGIN, "a/b", nbytes=60 * MIB))
    part = wire.Request(wire.Verb.PART, put=begun.number, nbytes=wire.PART)
    line.send_header(wire.request(part))
    line.send(bytes(MIB))
    assert ask_used(server) == 60 * MIB
    # Elsewhere one tries to call it whole.
    other = shaken(server)
    done = ask(other, wire.Request(wire.Verb.COMMIT, put=begun.number))
    assert done.status is wire.Status.GONE
    line.close()

    while ask_used(server):
        assert ask(other, wire.Request(wire.Verb.DELETE, "a/b")).status is wire.Status.OK
    other.close()
    await works(server, tmp_path)


def test_a_part_for_nobody_is_taken_off_the_line_and_refused(server: PeerServer) -> None:
    line = shaken(server)
    line.send_header(wire.request(wire.Request(wire.Verb.PART, put=12345, nbytes=5 * MIB)))
    with memoryview(bytes(5 * MIB)) as body:
        line.send_chunks(body)

    got = wire.read_answer(line.receive_header(wire.ANSWER_NBYTES, wire.text_nbytes))
    assert got.status is wire.Status.GONE
    assert ask(line, wire.Request(wire.Verb.DELETE, "a")).status is wire.Status.OK
    line.close()


async def test_more_peers_than_may_be_are_told_to_come_later(
    server: PeerServer, tmp_path: Path
) -> None:
    lines = [shaken(server) for _ in range(SETTINGS.connections)]
    # Each is in the middle of something by now.
    for line in lines:
        ask(line, wire.Request(wire.Verb.BEGIN, "a", nbytes=1))

    with pytest.raises(StoreUnavailable, match="all the connections that it takes"):
        await works(server, tmp_path)

    for line in lines:
        line.close()


def all_idle(server: PeerServer) -> None:
    """Each answer is out before its thread has noted that nothing more is under way."""
    for _ in range(6000):
        if all(since < float("inf") for since in server._peers.values()):
            return
        time.sleep(0.01)
    raise AssertionError("one is busy for a minute")


async def test_one_that_idles_makes_room_for_one_that_has_something_to_say(
    server: PeerServer, tmp_path: Path
) -> None:
    lines = [shaken(server) for _ in range(SETTINGS.connections)]
    for line in (*lines, lines[0]):
        ask(line, wire.Request(wire.Verb.DELETE, "a"))
        all_idle(server)

    await works(server, tmp_path)

    # That which had been silent for the longest went.
    with pytest.raises(Exception, match="connection lost"):
        ask(lines[1], wire.Request(wire.Verb.DELETE, "a"))
    assert ask(lines[0], wire.Request(wire.Verb.DELETE, "a")).status is wire.Status.OK
    for line in lines:
        line.close()


def test_who_is_refused_is_counted_by_reason(server: PeerServer) -> None:
    with connect(server) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b"x" * 64)
        with suppress(ConnectionError):
            assert ended(plain)
    with connect(server) as plain:
        plain.sendall(wire.hello(bytes(32)) + bytes(32))
        assert ended(plain)

    assert server.shown()["refused"] == {"protocol": 1, "token": 1}


def test_an_end_waits_for_nobody(server: PeerServer) -> None:
    waiting = [connect(server), connect(server)]
    line = shaken(server)
    begun = ask(line, wire.Request(wire.Verb.BEGIN, "a/b", nbytes=MIB))
    line.send_header(wire.request(wire.Request(wire.Verb.PART, put=begun.number, nbytes=MIB)))

    server.close()

    assert all(ended(one) for one in waiting)
    for one in waiting:
        one.close()
    line.close()


def ask_used(server: PeerServer) -> object:
    return server.shown()["used"]
