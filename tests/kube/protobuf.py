"""Secrets and namespaces as helm and kubectl send them: in protobuf, which typed clients prefer. Pure.

Source: k8s.io/apimachinery pkg/runtime/generated.proto (Unknown), k8s.io/api core/v1 and
meta/v1 generated.proto, by their field numbers. Read 2026-11.
"""

import base64
from collections.abc import Iterator
from typing import Any

KIND = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"


def decode(body: bytes) -> dict[str, Any]:
    """The object in *body*.

    Raises:
        ValueError: It is neither a Secret nor a Namespace in protobuf.
    """
    if not body.startswith(_MAGIC):
        raise ValueError("no magic number of Kubernetes")
    whole = dict(_fields(body[len(_MAGIC) :]))
    kind = dict(_fields(whole[1]))[2].decode()
    if kind not in ("Secret", "Namespace"):
        raise ValueError(f"a {kind}, and only Secrets and Namespaces are known here")
    thing: dict[str, Any] = {"apiVersion": "v1", "kind": kind, "metadata": {}}
    for number, value in _fields(whole[2]):
        if number == 1:
            thing["metadata"] = _meta(value)
        elif kind == "Secret" and number == 2:
            key, data = _pair(value)
            thing.setdefault("data", {})[key] = base64.b64encode(data).decode()
        elif kind == "Secret" and number == 3:
            thing["type"] = value.decode()
    return thing


def _meta(data: bytes) -> dict[str, Any]:
    meta: dict[str, Any] = {}
    names = {1: "name", 2: "generateName", 3: "namespace", 5: "uid", 6: "resourceVersion"}
    for number, value in _fields(data):
        if number in names and value:
            meta[names[number]] = value.decode()
        elif number in (11, 12):
            key, text = _pair(value)
            meta.setdefault("labels" if number == 11 else "annotations", {})[key] = text.decode()
    return meta


def _pair(data: bytes) -> tuple[str, bytes]:
    found = dict(_fields(data))
    return found.get(1, b"").decode(), found.get(2, b"")


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Each field's number and bytes; numbers are skipped, for none is of use here."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        match tag & 7:
            case 0:
                _, at = _varint(data, at)
            case 2:
                length, at = _varint(data, at)
                yield tag >> 3, data[at : at + length]
                at += length
            case other:
                raise ValueError(f"wire type {other}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
