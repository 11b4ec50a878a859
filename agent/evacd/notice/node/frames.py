"""What an API server's watch sends, from bytes to facts. Pure.

Source: kubernetes.io/docs/reference/using-api/api-concepts#efficient-detection-of-changes: one
JSON object per line, {"type", "object"}; BOOKMARK carries only a resource version, ERROR a
Status whose code 410 means that the version is too old to go on from. Read 2026-10.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from evacd.kube.client import LINE_LIMIT, parse_json


@dataclass(frozen=True)
class Changed:
    """The node as it is now."""

    node: object
    version: str


@dataclass(frozen=True)
class Bookmark:
    """Nothing changed; a watch may begin from here."""

    version: str


@dataclass(frozen=True)
class Deleted:
    """The node object was removed; the machine may live on for a while."""


@dataclass(frozen=True)
class Expired:
    """410: ask for the whole again."""


@dataclass(frozen=True)
class Malformed:
    """Not what an API server sends."""

    reason: str


Frame: TypeAlias = Changed | Bookmark | Deleted | Expired | Malformed


class Lines:
    """Feed it bytes as they come; it gives whole lines."""

    def __init__(self, limit: int = LINE_LIMIT) -> None:
        self._rest = bytearray()
        self._limit = limit

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The lines that *data* completes, without their ends; empty ones left out.

        Raises:
            ValueError: A line is over the limit.
        """
        self._rest += data
        *lines, rest = self._rest.split(b"\n")
        self._rest = bytearray(rest)
        if len(self._rest) > self._limit or any(len(line) > self._limit for line in lines):
            raise ValueError(f"a line is over {self._limit} bytes")
        for line in lines:
            if stripped := bytes(line).strip():
                yield stripped


def decode(line: bytes) -> Frame:
    """One line of a watch."""
    event = parse_json(line)
    kind = event.get("type") if isinstance(event, Mapping) else None
    thing = event.get("object") if isinstance(event, Mapping) else None
    match kind:
        case "ADDED" | "MODIFIED":
            version = version_of(thing)
            if name_of(thing) and version:
                return Changed(thing, version)
            return Malformed(f"{kind} without a name or a resource version")
        case "BOOKMARK":
            version = version_of(thing)
            return Bookmark(version) if version else Malformed("BOOKMARK without a version")
        case "DELETED":
            return Deleted()
        case "ERROR":
            code = thing.get("code") if isinstance(thing, Mapping) else None
            return Expired() if code == 410 else Malformed(f"ERROR {str(code)[:20]}")
    return Malformed("a line that is no watch event")


def name_of(thing: object) -> str:
    """metadata.name; "" where it is missing."""
    return _meta(thing, "name")


def version_of(thing: object) -> str:
    """metadata.resourceVersion; "" where it is missing."""
    return _meta(thing, "resourceVersion")


def _meta(thing: object, field: str) -> str:
    meta = thing.get("metadata") if isinstance(thing, Mapping) else None
    found = meta.get(field) if isinstance(meta, Mapping) else None
    return found if isinstance(found, str) else ""
