"""The manifest: what makes flushed bytes count.

One per rank and generation, written after the rank's data. It names the bytes, their
checksums and who staged them, and carries a digest of itself, so that a torn manifest is
no manifest. Pure: bytes in, facts out.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from evac.errors import GenerationError
from evac.generation import BODY, NAME, Generation

SCHEMA = 1
CHUNK = 4 * 1024 * 1024
KINDS = ("full", "weights")
_SHA256 = re.compile(r"[0-9a-f]{64}")


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
        body: File name of the data, in the same folder.
        nbytes: Its length.
        crc32c: CRC-32C of each 4 MiB of it, in order; the last chunk may be short.
        metadata_nbytes: Length of DCP's `.metadata`; 0 where the body is no DCP file.
        metadata_sha256: Its hex digest; "" where there is none.
        items: What the body holds: a list of ``{"name", "offset", "nbytes", ...}``.
        order: Id of the evacuation order that flushed it; "" outside of one.
        node: Host name of the node that wrote it.
        kind: ``full``, or ``weights`` where only the weights fitted.
    """

    job: str
    run: str
    generation: Generation
    rank: int
    world: int
    layout: str
    body: str
    nbytes: int
    crc32c: tuple[int, ...]
    metadata_nbytes: int = 0
    metadata_sha256: str = ""
    items: tuple[Mapping[str, Any], ...] = ()
    order: str = ""
    node: str = ""
    kind: str = "full"

    def encode(self) -> bytes:
        """Canonical JSON, ending in a SHA-256 over all that precedes it."""
        document = asdict(self)
        document["schema"] = SCHEMA
        document["digest"] = _digest(document)
        return json.dumps(document, indent=1, sort_keys=True).encode()

    @classmethod
    def decode(cls, data: bytes, *, where: str) -> "Manifest":
        """Read and check a manifest.

        Args:
            where: Its key, for the error.

        Raises:
            GenerationError: Torn, of another schema, or inconsistent in itself.
        """
        try:
            document = json.loads(data)
            if not isinstance(document, dict) or document.get("schema") != SCHEMA:
                raise GenerationError(where, f"manifest is not of schema {SCHEMA}")
            digest = document.pop("digest", None)
            if digest != _digest(document):
                raise GenerationError(where, "manifest digest does not match: torn or edited")
        except (ValueError, RecursionError) as error:
            raise GenerationError(where, "manifest is not JSON: torn or foreign") from error
        document.pop("schema")
        try:
            generation = Generation(**document.pop("generation"))
            crc32c, items = _tuple(document.pop("crc32c")), _tuple(document.pop("items"))
            manifest = cls(generation=generation, crc32c=crc32c, items=items, **document)
        except (KeyError, TypeError) as error:
            raise GenerationError(where, f"manifest lacks or has too much: {error}") from error
        manifest._check(where)
        return manifest

    def _check(self, where: str) -> None:
        words = (
            self.job, self.run, self.layout, self.body,
            self.metadata_sha256, self.order, self.node, self.kind,
        )  # fmt: skip
        if any(type(word) is not str for word in words):
            raise GenerationError(where, "manifest holds something else than a text")
        if any(type(item) is not dict for item in self.items):
            raise GenerationError(where, "manifest holds an item that is none")
        numbers = (
            self.generation.incarnation, self.generation.step,
            self.rank, self.world, self.nbytes, self.metadata_nbytes, *self.crc32c,
        )  # fmt: skip
        if any(type(n) is not int or n < 0 for n in numbers) or self.rank >= self.world:
            raise GenerationError(where, "manifest holds an impossible number")
        if (
            not _SHA256.fullmatch(self.metadata_sha256)
            if self.metadata_nbytes
            else self.metadata_sha256
        ):
            raise GenerationError(where, "manifest's SHA-256 of .metadata is none")
        if len(self.crc32c) != chunks(self.nbytes):
            raise GenerationError(where, f"{len(self.crc32c)} checksums for {self.nbytes} bytes")
        if not NAME.fullmatch(self.job) or not BODY.fullmatch(self.body):
            raise GenerationError(where, "manifest names a job or body that cannot be")
        if self.kind not in KINDS:
            raise GenerationError(where, f"kind is {self.kind!r}, expected one of {KINDS}")


def chunks(nbytes: int) -> int:
    """How many 4 MiB chunks cover *nbytes*."""
    return -(-nbytes // CHUNK)


def _tuple(value: object) -> tuple[Any, ...]:
    if type(value) is not list:
        raise TypeError("a list is something else")
    return tuple(value)


def _digest(document: Mapping[str, Any]) -> str:
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
