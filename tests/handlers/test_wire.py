"""The wire: what is sent comes back, and nothing that arrives can do more than be refused."""

import json
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evac.errors import ProtocolError
from evac.wire import (
    MAX_PACKET,
    MESSAGES,
    Granted,
    Hello,
    Message,
    Refuse,
    Register,
    decode,
    encode,
)

# What a `Refuse` can carry of a peer's own mistake.
MAX_REASON = next(one.metadata["limit"] for one in fields(Refuse) if one.name == "reason")

TEXT = st.text(st.characters(exclude_categories=["Cs"]))


def values(rule: Any) -> st.SearchStrategy[Any]:
    """All that a field may hold."""
    kind = rule["kind"]
    if kind is int:
        return st.integers(rule["low"], rule["high"])
    if kind is float:
        return st.floats(rule["low"], rule["high"])
    if kind is bool:
        return st.booleans()
    if kind is tuple:
        return st.lists(TEXT.filter(lambda one: len(one) <= rule["limit"]), max_size=64).map(tuple)
    if rule["pattern"] is not None:
        return st.from_regex(rule["pattern"], fullmatch=True).filter(
            lambda one: len(one) <= rule["limit"]
        )
    return TEXT.filter(lambda one: len(one) <= rule["limit"])


def messages() -> st.SearchStrategy[Message]:
    return st.one_of(
        [
            st.builds(kind, **{one.name: values(one.metadata) for one in fields(kind)})
            for kind in MESSAGES.values()
        ]
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


def decodes_or_is_refused(packet: bytes) -> None:
    try:
        decode(packet)
        reason = ""
    except ProtocolError as error:
        reason = error.reason
    # It can be told to the one who sent it.
    assert len(reason) <= MAX_REASON
    decode(encode(Refuse(reason=reason, fatal=True)))


@given(messages(), st.none() | st.integers(1, 2**53), st.none() | st.integers(1, 2**53))
def test_what_is_sent_comes_back(message: Message, id: int | None, re: int | None) -> None:
    packet = decode(encode(message, id=id, re=re))
    assert (packet.message, packet.id, packet.re) == (message, id, re)


@given(st.binary(max_size=512))
def test_bytes_can_only_be_refused(packet: bytes) -> None:
    decodes_or_is_refused(packet)


@given(JSON)
def test_json_can_only_be_refused(document: Any) -> None:
    decodes_or_is_refused(json.dumps(document).encode())


@given(st.sampled_from(sorted(MESSAGES)), st.data())
def test_a_known_type_with_foreign_values_can_only_be_refused(word: str, data: Any) -> None:
    document: dict[str, Any] = {"type": word}
    for one in fields(MESSAGES[word]):
        document[one.name] = data.draw(JSON | values(one.metadata))
    decodes_or_is_refused(json.dumps(document).encode())


@given(messages(), st.dictionaries(st.text(min_size=1), JSON, max_size=3))
def test_fields_of_a_newer_peer_are_passed_over(message: Message, more: dict[str, Any]) -> None:
    document = json.loads(encode(message))
    extended = {k: v for k, v in more.items() if k not in {"id", "re"}} | document
    packet = json.dumps(extended).encode()
    if len(packet) <= MAX_PACKET:
        assert decode(packet).message == message


@pytest.mark.parametrize(
    ("packet", "said"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 60_000, "not JSON"),
        (b"9" * 5000, "not JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "unknown type"),
        (b'{"type":["hello"]}', "unknown type"),
        (b'{"type":"hello"}', "hello.version: missing"),
        (b'{"type":"hello","version":true}', "expected int"),
        (b'{"type":"hello","version":1.0}', "expected int"),
        (b'{"type":"hello","version":0}', "outside"),
        (b'{"type":"hello","version":' + b"9" * 4000 + b"}", "outside"),
        (b'{"type":"hello","version":1,"id":0}', "id: expected a positive integer"),
        (b'{"type":"hello","version":1,"re":"1"}', "re: expected a positive integer"),
        (b'{"type":"drain","seconds":NaN}', "outside"),
        (b'{"type":"drain","seconds":1e999}', "outside"),
        (b'{"type":"drain","seconds":' + b"9" * 400 + b"}", "expected float"),
        (b'{"type":"drain","seconds":1,"reason":"\\ud800"}', "surrogate"),
        (b'{"type":"register","job":"../x","rank":0,"world":1}', "does not match"),
        (b'{"type":"register","job":"a/b","rank":0,"world":1}', "does not match"),
        (b'{"type":"register","job":"a\\n","rank":0,"world":1}', "does not match"),
        (b'{"type":"reserve","nbytes":-1,"body":"a.bin"}', "outside"),
        (b'{"type":"reserve","nbytes":4096,"body":"../a.bin"}', "does not match"),
        (b'{"type":"registered","workload":1,"prefix":"p","stores":"s"}', "list"),
        (b'{"type":"registered","workload":1,"prefix":"p","stores":["\\ud800"]}', "surrogate"),
        (b" " * (MAX_PACKET + 1), "at most 65536"),
    ],
)
def test_a_wrong_packet_is_told_what_is_wrong(packet: bytes, said: str) -> None:
    with pytest.raises(ProtocolError, match=said) as caught:
        decode(packet)
    assert len(caught.value.reason) <= MAX_REASON


def test_an_integer_is_seconds_too() -> None:
    packet = decode(b'{"type":"register","job":"a","rank":0,"world":1,"need_seconds":5}')
    assert packet.message == Register(job="a", rank=0, world=1, need_seconds=5.0)


def test_a_packet_is_one_line_of_json() -> None:
    assert encode(Granted(slot=1), re=3) == b'{"type":"granted","re":3,"slot":1}'


def test_what_does_not_fit_is_not_sent() -> None:
    with pytest.raises(ProtocolError, match="at most 65536"):
        encode(Hello(version=1, client="x" * MAX_PACKET))


def test_every_word_is_said_once() -> None:
    kinds = Message.__subclasses__()
    assert len({kind.type for kind in kinds}) == len(kinds)
    assert set(MESSAGES.values()) == set(kinds)
