"""The words between peers: what PROTOCOL.md says, and nothing that anybody sends breaks their reader."""

import hashlib
import hmac
import re
import socket
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

import evacd.peer
from evac.errors import ProtocolError
from evac.store import peer_wire as wire
from evac.store.peer_line import Line, Lost

PAGE = (Path(evacd.peer.__file__).parent / "PROTOCOL.md").read_text()
REQUESTS = st.builds(
    wire.Request,
    st.sampled_from(wire.Verb),
    st.text(max_size=200),
    *[st.integers(0, 2**64 - 1)] * 3,
)
ANSWERS = st.builds(
    wire.Answer,
    st.sampled_from(wire.Status),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.text(max_size=200),
)


@pytest.mark.parametrize("words", [wire.Verb, wire.Status])
def test_the_page_has_every_word_with_its_number(words: type[wire.Verb | wire.Status]) -> None:
    rows = {name: int(number) for number, name in re.findall(r"^\| (\d) \| ([A-Z]+) ", PAGE, re.M)}

    assert {word.name: word.value for word in words}.items() <= rows.items()


def test_the_page_has_every_length() -> None:
    for nbytes in (wire.HELLO_NBYTES, wire.WELCOME_NBYTES, wire.VERDICT_NBYTES, wire.PROOF):
        assert f"| {nbytes} |" in PAGE
    assert f"parts of {wire.PART >> 20} MiB" in PAGE or f"multiple of {wire.PART >> 20} MiB" in PAGE
    assert f"chunks of {wire.CHUNK >> 20} MiB" in PAGE
    assert f"version {wire.VERSION}" in PAGE


def test_a_client_written_from_the_page_says_the_same() -> None:
    token, c, s = b"token", bytes(range(32)), bytes(range(32, 64))

    def proof(text: bytes) -> bytes:
        return hmac.new(token, text + c + s, hashlib.sha256).digest()

    both = wire.Secrets(token, c, s)
    assert wire.hello(c) == b"EVACPEER" + b"\0\2" + c
    assert wire.welcome(wire.Door.BUSY, s) == b"EVACPEER" + b"\0\2" + b"\1" + s
    assert both.of_client == proof(b"evac peer client")
    assert both.of_server == proof(b"evac peer server")
    assert wire.verdict(both.of_server) == b"\0" + proof(b"evac peer server")
    header = wire.request(wire.Request(wire.Verb.PART, "k", put=1, offset=2, nbytes=3))
    numbers = b"".join(n.to_bytes(8, "big") for n in (1, 2, 3))
    assert header == b"\2\0" + b"\0\1" + numbers + b"k"
    seal = wire.Seal(both.session, b"c")
    session = proof(b"evac peer session")
    for n in range(3):
        text = b"c" + n.to_bytes(8, "big") + header
        assert seal.mark(header) == hmac.new(session, text, hashlib.sha256).digest()[:16]


@given(REQUESTS)
def test_a_request_is_read_as_it_was_meant(request_: wire.Request) -> None:
    header = wire.request(request_)

    assert wire.key_nbytes(header[: wire.REQUEST_NBYTES]) == len(header) - wire.REQUEST_NBYTES
    assert wire.read_request(header) == request_


@given(ANSWERS)
def test_an_answer_is_read_as_it_was_meant(answer: wire.Answer) -> None:
    header = wire.answer(answer)

    assert wire.text_nbytes(header[: wire.ANSWER_NBYTES]) == len(header) - wire.ANSWER_NBYTES
    assert wire.read_answer(header) == answer


@given(st.binary(min_size=wire.REQUEST_NBYTES, max_size=100))
def test_noise_is_a_request_or_an_error_that_says_so(noise: bytes) -> None:
    with suppress(ProtocolError):
        wire.key_nbytes(noise[: wire.REQUEST_NBYTES])
        wire.read_request(noise)
    with suppress(ProtocolError):
        wire.text_nbytes(noise[: wire.ANSWER_NBYTES])
        wire.read_answer(noise)


@given(st.binary(min_size=1, max_size=40), st.integers(0, 39), st.integers(1, 255))
def test_no_header_passes_that_was_changed_repeated_or_turned_round(
    header: bytes, at: int, by: int
) -> None:
    sender = wire.Seal(b"session", b"c")
    mark = sender.mark(header)
    changed = bytearray(header)
    changed[at % len(header)] ^= by

    with pytest.raises(ProtocolError):
        wire.Seal(b"session", b"c").check(bytes(changed), mark)
    with pytest.raises(ProtocolError):
        wire.Seal(b"session", b"s").check(header, mark)
    receiver = wire.Seal(b"session", b"c")
    receiver.check(header, mark)
    with pytest.raises(ProtocolError):
        receiver.check(header, mark)


@given(st.integers(0, 2**46), st.integers(0, 2**46))
def test_parts_cover_a_body_and_nothing_else_is_one(total: int, offset: int) -> None:
    try:
        nbytes = wire.part_nbytes(total, offset)
    except ProtocolError:
        assert offset % wire.PART or offset >= total
    else:
        assert 0 < nbytes <= wire.PART
        assert nbytes == wire.PART or offset + nbytes == total


def test_who_sends_a_byte_now_and_then_is_not_waited_for() -> None:
    over = threading.Event()

    def drip() -> None:
        while not over.wait(0.05):
            theirs.send(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        theirs = socket.create_connection(listening.getsockname())
        line = Line(listening.accept()[0], lambda: False)
    dripping = threading.Thread(target=drip)
    dripping.start()

    with pytest.raises(Lost, match="timed out"):
        line.receive(1 << 20, patience=0.5)

    over.set()
    dripping.join()
    theirs.close()
    line.close()


def test_who_takes_nothing_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        theirs = socket.create_connection(listening.getsockname())
        line = Line(listening.accept()[0], lambda: False)

    with pytest.raises(Lost, match="too slowly"):
        line.send(bytes(64 << 20), patience=0.5)

    theirs.close()
    line.close()


def test_bytes_of_another_that_have_the_right_checksum_are_taken_for_no_manifest() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ours = Line(socket.create_connection(listening.getsockname()), lambda: False)
        theirs = Line(listening.accept()[0], lambda: False)
    for line, directions in ((ours, (b"c", b"s")), (theirs, (b"s", b"c"))):
        line.seal(*(wire.Seal(b"session", direction) for direction in directions))
    meant, forged, into = b"{}", b"[]", bytearray(2)
    mark = wire.Seal(b"session", b"c").mark(wire.checksum(crc32c(forged)) + meant)

    ours.send(forged + wire.checksum(crc32c(forged)) + mark)

    with pytest.raises(ProtocolError), memoryview(into) as view:
        theirs.receive_chunks(view, sealed=True)
    ours.close()
    theirs.close()


def test_what_says_what_the_rest_must_be_is_sealed() -> None:
    for name in (".metadata", ".metadata-0.pending", "__0.manifest.json", "evac-job.json"):
        assert wire.is_sealed(f"me/job/step-1.1/{name}")
    assert not wire.is_sealed("me/job/step-1.1/__0_0.distcp")
