"""Packets to messages and back: one JSON object each, checked against the message's own rules."""

import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any

from evac.errors import ProtocolError
from evac.wire.fields import BIG, Message
from evac.wire.messages import MESSAGES

MAX_PACKET = 64 * 1024
# JSON can spell it, UTF-8 cannot: it would raise wherever the text is written next.
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Packet:
    """A message with the number that ties an answer to its request.

    Attributes:
        id: Of a request that wants an answer.
        re: The request that this packet answers.
    """

    message: Message
    id: int | None = None
    re: int | None = None


def encode(message: Message, *, id: int | None = None, re: int | None = None) -> bytes:
    """One packet.

    Raises:
        ProtocolError: It would not fit in 64 KiB.
    """
    document: dict[str, Any] = {"type": message.type}
    document |= {k: v for k, v in (("id", id), ("re", re)) if v is not None}
    document |= {item.name: getattr(message, item.name) for item in fields(message)}
    packet = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    if len(packet) > MAX_PACKET:
        raise ProtocolError(f"{message.type}: {len(packet)} bytes, at most {MAX_PACKET}")
    return packet


def decode(packet: bytes) -> Packet:
    """Read one packet.

    Raises:
        ProtocolError: Says which field is wrong and what it should be.
    """
    if len(packet) > MAX_PACKET:
        raise ProtocolError(f"packet of {len(packet)} bytes, at most {MAX_PACKET}")
    try:
        document = json.loads(packet)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("packet is not JSON") from error
    if not isinstance(document, dict):
        raise ProtocolError("packet is not a JSON object")
    word = document.get("type")
    kind = MESSAGES.get(word) if isinstance(word, str) else None
    if kind is None:
        raise ProtocolError(f"unknown type {str(word)[:40]!r}")
    values = {item.name: _value(kind, item, document) for item in fields(kind)}
    return Packet(kind(**values), _number(document, "id"), _number(document, "re"))


def _number(document: Mapping[str, Any], name: str) -> int | None:
    value = document.get(name)
    if value is None:
        return None
    if type(value) is not int or not 0 < value <= BIG:
        raise ProtocolError(f"{name}: expected a positive integer")
    return value


def _value(kind: type[Message], item: "Field[Any]", document: Mapping[str, Any]) -> Any:
    where = f"{kind.type}.{item.name}"
    if item.name not in document:
        if item.default is MISSING:
            raise ProtocolError(f"{where}: missing")
        return item.default
    value, rule = document[item.name], item.metadata
    if rule["kind"] is float and type(value) is int:
        value = float(value) if -BIG <= value <= BIG else None
    if rule["kind"] is tuple:
        return _strings(where, value, rule["limit"])
    if type(value) is not rule["kind"]:
        raise ProtocolError(f"{where}: expected {rule['kind'].__name__}")
    if rule["kind"] is str:
        if len(value) > rule["limit"]:
            raise ProtocolError(f"{where}: longer than {rule['limit']} characters")
        if rule["pattern"] is not None and not rule["pattern"].fullmatch(value):
            raise ProtocolError(f"{where}: {value!r} does not match {rule['pattern'].pattern}")
        if not value.isascii() and _SURROGATE.search(value):
            raise ProtocolError(f"{where}: half of a surrogate pair")
    elif rule["kind"] is not bool and not rule["low"] <= value <= rule["high"]:
        raise ProtocolError(f"{where}: {str(value)[:24]} is outside {rule['low']}..{rule['high']}")
    return value


def _strings(where: str, value: object, limit: int) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > 64:
        raise ProtocolError(f"{where}: expected a list of at most 64 strings")
    for one in value:
        if not isinstance(one, str) or len(one) > limit:
            raise ProtocolError(f"{where}: expected strings of at most {limit} characters")
        if _SURROGATE.search(one):
            raise ProtocolError(f"{where}: half of a surrogate pair")
    return tuple(value)
