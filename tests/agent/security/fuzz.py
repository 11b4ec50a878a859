"""Packets that are almost the protocol: valid ones, bent in one or more places."""

import json
import random
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from evac.wire import MAX_PACKET, MESSAGES, Message

_TOKENS = (
    b"", b"null", b"true", b"-1", b"1.0", b"1e400", b"-0", b"NaN", b"Infinity", b"9" * 400,
    b"9" * 5000, b'"\\ud800"', b'"\\u0000"', b'"' + b"x" * 2000 + b'"', b"[]", b"{}", b"[[[[]]]]",
    b"[" * 2000, b'{"type":' * 500, b'"hello"', b'"drain"', b'"\xff"', b"9007199254740993",
    b'"../../etc/passwd"', b'"root/other"', b"\x00", b"\xef\xbb\xbf", b" " * 300, b",", b'"', b"\\",
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**53, 2**53 + 1, 2**63, 2**64, -(2**70), 0.5, 1e308, "", "x", ".",
    "..", "../x", "a/b", "a\x00b", "é", "\U0001f600", "x" * 64, "x" * 1025, [], [1], [""], {}, {"a": 1},
    "staged", "callback", "a.bin", "__0_0.distcp",
)  # fmt: skip


def valid(rng: random.Random) -> dict[str, Any]:
    """A message of any kind, with values that are mostly what its fields want."""
    kind: type[Message] = rng.choice(list(MESSAGES.values()))
    document: dict[str, Any] = {"type": kind.type}
    if rng.random() < 0.8:
        document["id"] = rng.randrange(1, 1000)
    for item in fields(kind):
        document[item.name] = _right(rng, item.metadata)
    return document


def _right(rng: random.Random, rule: Any) -> Any:
    match rule["kind"].__name__:
        case "int":
            low, high = rule["low"], rule["high"]
            return rng.choice((low, high, rng.randint(low, min(high, low + 100_000))))
        case "float":
            return rng.choice((0, 0.5, 60.0, 1e9))
        case "bool":
            return rng.random() < 0.5
        case "tuple":
            return ["file:///x"] * rng.randrange(3)
        case _:
            return rng.choice(("job", "a.bin", "", "staged", "x" * (rule["limit"] + 1)))


def packet(rng: random.Random) -> bytes:
    """One packet, bent up to four times; never longer than a socket takes."""
    document = valid(rng)
    for _ in range(rng.randrange(3)):
        name = rng.choice([*document, "id", "re", "type", "extra"])
        if rng.random() < 0.3:
            document.pop(name, None)
        else:
            document[name] = rng.choice(_VALUES)
    raw = json.dumps(document).encode()
    for _ in range(rng.choice((0, 0, 0, 1, 1, 2))):
        raw = rng.choice(_BENDS)(rng, raw)
    return raw[: MAX_PACKET + 10]


def _flip(rng: random.Random, raw: bytes) -> bytes:
    at = rng.randrange(len(raw) + 1)
    return raw[:at] + bytes([rng.randrange(256)]) + raw[at + 1 :]


def _cut(rng: random.Random, raw: bytes) -> bytes:
    return raw[: rng.randrange(len(raw) + 1)]


def _insert(rng: random.Random, raw: bytes) -> bytes:
    at = rng.randrange(len(raw) + 1)
    return raw[:at] + rng.choice(_TOKENS) + raw[at:]


def _double(rng: random.Random, raw: bytes) -> bytes:
    return raw * rng.randrange(2, 4)


def _twice(rng: random.Random, raw: bytes) -> bytes:
    """The same key again, with another value."""
    token = rng.choice(_TOKENS)
    return raw[:-1] + b',"id":' + token + b"}" if raw.endswith(b"}") else raw


def _noise(rng: random.Random, raw: bytes) -> bytes:
    return rng.randbytes(rng.randrange(200))


def _long(rng: random.Random, raw: bytes) -> bytes:
    return raw[:-1] + b" " * rng.choice((MAX_PACKET, MAX_PACKET - len(raw))) + b"}"


_BENDS: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    _flip, _flip, _cut, _insert, _insert, _double, _twice, _noise, _long,
)  # fmt: skip
