"""The manifest: what makes flushed bytes count.

One per rank and generation, written after the rank's data. It names the bytes, their
checksums and who staged them, and carries a digest of itself, so that a torn manifest is
no manifest. Pure: bytes in, facts out.

A rank's data are one or several files. Its weights have files of their own, in the folder
``weights`` below the generation's, and a manifest of their own there: so weights without the
rest are whole by themselves, and the rest can follow later without writing them again. Turned
down: one manifest that says which of its files are there yet, because a reader would have to
know that it may change.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from evac.errors import GenerationError
from evac.generation import BODY, NAME, WEIGHTS, Generation

SCHEMA = 2
CHUNK = 4 * 1024 * 1024
FULL, REST = "full", "rest"
KINDS = (FULL, WEIGHTS)
FILE_KINDS = (WEIGHTS, REST)
# In a slot alone: what another node's rank writes.
COPY = "copy"
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class File:
    """One file of a rank's data.

    Attributes:
        name: In the manifest's folder; weights that a full manifest names lie in ``weights/``.
        crc32c: CRC-32C of each 4 MiB of it, in order; the last chunk may be short.
        kind: ``weights`` or ``rest``.
        held: Other nodes hold all that is in it, too.
    """

    name: str
    nbytes: int
    crc32c: tuple[int, ...]
    kind: str = REST
    held: bool = False


@dataclass(frozen=True)
class Manifest:
    """One rank's part of one generation.

    Attributes:
        job: Its name, without the owner's prefix.
        run: The launch that staged it; "" where unknown.
        generation: Incarnation and step.
        rank: Whose part this is, in 0..world-1.
        world: Number of ranks whose manifests make the generation whole.
        layout: Hash of the layout; equal on all ranks, else the generation is mixed.
        files: The data, weights before the rest. Only of kind ``weights`` may there be none.
        metadata_nbytes: Length of DCP's `.metadata`; 0 where the data are no DCP files.
        metadata_sha256: Its hex digest; "" where there is none.
        items: What the data hold: a list of ``{"name", "offset", "nbytes", ...}``; offsets count
            through all files, in their order.
        order: Id of the evacuation order that flushed it; "" outside of one.
        node: Host name of the node that wrote it.
        kind: ``full``, or ``weights`` for those alone.
    """

    job: str
    run: str
    generation: Generation
    rank: int
    world: int
    layout: str
    files: tuple[File, ...]
    metadata_nbytes: int = 0
    metadata_sha256: str = ""
    items: tuple[Mapping[str, Any], ...] = ()
    order: str = ""
    node: str = ""
    kind: str = FULL

    @property
    def nbytes(self) -> int:
        """Length of all files."""
        return sum(one.nbytes for one in self.files)

    def of_weights(self, metadata: bytes) -> "Manifest":
        """The manifest of this rank's weights alone.

        Args:
            metadata: Of the weights' own `.metadata`; b"" where they are no DCP files.
        """
        files = tuple(
            replace(one, name=one.name.removeprefix(f"{WEIGHTS}/"))
            for one in self.files
            if one.kind == WEIGHTS
        )
        end = sum(one.nbytes for one in files)
        return replace(
            self,
            files=files,
            items=tuple(one for one in self.items if one["offset"] + one["nbytes"] <= end),
            metadata_nbytes=len(metadata),
            metadata_sha256=hashlib.sha256(metadata).hexdigest() if metadata else "",
            kind=WEIGHTS,
        )

    def encode(self) -> bytes:
        """Canonical JSON, ending in a SHA-256 over all that precedes it."""
        document = asdict(self)
        document["schema"] = SCHEMA
        document["digest"] = _digest(document)
        return json.dumps(document, indent=1, sort_keys=True).encode()

    @classmethod
    def decode(cls, data: bytes, *, where: str) -> "Manifest":
        """Read and check a manifest, of this schema or of schema 1: one file, no weights apart.

        Args:
            where: Its key, for the error.

        Raises:
            GenerationError: Torn, of another schema, or inconsistent in itself.
        """
        try:
            document = json.loads(data)
            schema = document.get("schema") if isinstance(document, dict) else None
            if schema not in (1, SCHEMA) or type(schema) is not int:
                raise GenerationError(where, f"manifest is not of schema {SCHEMA}")
            digest = document.pop("digest", None)
            if digest != _digest(document):
                raise GenerationError(where, "manifest digest does not match: torn or edited")
        except (ValueError, RecursionError) as error:
            raise GenerationError(where, "manifest is not JSON: torn or foreign") from error
        document.pop("schema")
        try:
            if schema == 1:
                kind = WEIGHTS if document.get("kind") == WEIGHTS else REST
                named = {"name": document.pop("body"), "kind": kind}
                one = {key: document.pop(key) for key in ("nbytes", "crc32c")}
                document["files"] = [{**named, **one}]
            generation = Generation(**document.pop("generation"))
            files = tuple(map(_file, _tuple(document.pop("files"))))
            items = _tuple(document.pop("items"))
            manifest = cls(generation=generation, files=files, items=items, **document)
        except (KeyError, TypeError) as error:
            raise GenerationError(where, f"manifest lacks or has too much: {error}") from error
        manifest._check(where)
        return manifest

    def _check(self, where: str) -> None:
        words = (
            self.job, self.run, self.layout,
            self.metadata_sha256, self.order, self.node, self.kind,
        )  # fmt: skip
        if any(type(word) is not str for word in words):
            raise GenerationError(where, "manifest holds something else than a text")
        if any(type(item) is not dict for item in self.items):
            raise GenerationError(where, "manifest holds an item that is none")
        numbers = (
            self.generation.incarnation, self.generation.step,
            self.rank, self.world, self.metadata_nbytes,
        )  # fmt: skip
        if any(type(n) is not int or n < 0 for n in numbers) or self.rank >= self.world:
            raise GenerationError(where, "manifest holds an impossible number")
        if (
            not _SHA256.fullmatch(self.metadata_sha256)
            if self.metadata_nbytes
            else self.metadata_sha256
        ):
            raise GenerationError(where, "manifest's SHA-256 of .metadata is none")
        if not NAME.fullmatch(self.job):
            raise GenerationError(where, "manifest names a job that cannot be")
        if self.kind not in KINDS:
            raise GenerationError(where, f"kind is {self.kind!r}, expected one of {KINDS}")
        if reason := self._wrong_files():
            raise GenerationError(where, reason)

    def _wrong_files(self) -> str:
        if not self.files and self.kind == FULL:
            return "manifest names no file"
        names = [one.name for one in self.files]
        for one in self.files:
            if reason := _wrong_file(one):
                return reason
            if self.kind == WEIGHTS and (one.kind, "/" in one.name) != (WEIGHTS, False):
                return f"{one.name} is not among the weights"
            if self.kind == FULL and (one.kind == WEIGHTS) != one.name.startswith(f"{WEIGHTS}/"):
                return f"{one.name} is no place for what is {one.kind}"
        if len(set(names)) < len(names):
            return "manifest names a file twice"
        return "" if in_order(one.kind for one in self.files) else "weights come after the rest"


def in_order(kinds: Iterable[str]) -> bool:
    """Whether weights come before the rest."""
    found = list(kinds)
    return found == sorted(found, key=FILE_KINDS.index)


def chunks(nbytes: int) -> int:
    """How many 4 MiB chunks cover *nbytes*."""
    return -(-nbytes // CHUNK)


def is_file_name(name: str) -> bool:
    """Whether a rank's data may lie in a file of this name, in a generation's folder."""
    return BODY.fullmatch(name.removeprefix(f"{WEIGHTS}/")) is not None


def _file(document: object) -> File:
    if type(document) is not dict:
        raise TypeError("a file is something else")
    return File(**{**document, "crc32c": _tuple(document["crc32c"])})


def _wrong_file(one: File) -> str:
    if type(one.name) is not str or not is_file_name(one.name):
        return "manifest names a file that cannot be"
    if one.kind not in FILE_KINDS or type(one.held) is not bool:
        return f"{one.name} is of a kind that is none"
    if any(type(n) is not int or n < 0 for n in (one.nbytes, *one.crc32c)):
        return f"{one.name} has an impossible number"
    if len(one.crc32c) != chunks(one.nbytes):
        return f"{one.name}: {len(one.crc32c)} checksums for {one.nbytes} bytes"
    return ""


def _tuple(value: object) -> tuple[Any, ...]:
    if type(value) is not list:
        raise TypeError("a list is something else")
    return tuple(value)


def _digest(document: Mapping[str, Any]) -> str:
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
