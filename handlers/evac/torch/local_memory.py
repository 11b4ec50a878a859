"""Generations that processes before this one left in this node's memory.

They are read where they lie: no copy but the one into the model, and each chunk is compared with
the daemon's checksum before anything is loaded. While they are adopted nobody writes to them.
"""

import hashlib
import logging
import os
import pickle
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from torch.distributed.checkpoint.metadata import Metadata

from evac._adoption import AdoptedFile, AdoptedSlot, Adoption
from evac.client import Client
from evac.commit import Problem, chunk_sums
from evac.errors import EvacError, NotConnected
from evac.generation import Generation
from evac.manifest import CHUNK, FULL
from evac.torch.holdings import Holding, Kept, Made
from evac.torch.parting import Chunks, numbers
from evac.torch.reader_bodies import Contents, Failure, Sums

log = logging.getLogger("evac")

# What a place is called that is no store: to its own ranks, and to the others.
HERE = "this node's memory"
NODE = "memory of node"
_THREADS = 8


class LocalMemory:
    """What was adopted, by generation; nothing where there was no daemon to ask."""

    def __init__(self, adoption: Adoption | None) -> None:
        self._adoption = adoption
        self._slots: dict[Generation, dict[int, AdoptedSlot]] = {}
        for slot in adoption or ():
            self._slots.setdefault(slot.generation, {})[slot.rank] = slot

    def holdings(self, node: str) -> list[Holding]:
        """What this node has, newest first."""
        found: list[Holding] = []
        names: dict[str, frozenset[str]] = {}
        for slots in self._slots.values():
            alike: dict[Made, list[AdoptedSlot]] = {}
            for slot in slots.values():
                # A Checkpointer's layout goes by the name of its .metadata.
                made = Made(slot.generation, FULL, slot.run, slot.layout, slot.world, slot.layout)
                alike.setdefault(made, []).append(slot)
            for made, some in alike.items():
                described = self.metadata(made)
                files = {file.name: Kept(file.nbytes) for one in some for file in one.files}
                ranks = frozenset(one.rank for one in some)
                # With all shares nobody asks; else one layout has many generations.
                if described and len(ranks) < made.world and made.metadata not in names:
                    names[made.metadata] = _names(described)
                known = names.get(made.metadata, frozenset())
                found.append(Holding(f"{NODE} {node}", made, ranks, files, bool(described), known))
        return found

    def metadata(self, made: Made) -> bytes:
        """The bytes of its `.metadata`; b"" where they are not here."""
        for slot in self._slots.get(made.generation, {}).values():
            metadata = slot.metadata if slot.layout == made.layout else b""
            if metadata and hashlib.sha256(metadata).hexdigest() == made.metadata:
                return metadata
        return b""

    def bodies(self, made: Made, contents: Contents) -> "LocalBodies":
        """Its bytes, as far as they are here and are the very ones."""
        slots = self._slots.get(made.generation, {}) if made.kind == FULL else {}
        alike = [one for one in slots.values() if _is(one, made)]
        return LocalBodies(contents, {file.name: file for one in alike for file in one.files})

    def close(self) -> None:
        """The daemon may have it again."""
        self._slots.clear()
        if self._adoption is not None:
            self._adoption.close()


class LocalBodies:
    """The bodies of one generation in memory: whole files, read where they lie.

    Attributes:
        nbytes: How much was compared with its checksum, and was right.
        unsummed: How much there was no checksum for yet.
    """

    def __init__(self, contents: Contents, files: Mapping[str, AdoptedFile]) -> None:
        self.nbytes = 0
        self.unsummed = 0
        self._folder = contents.folder
        self._files = {
            name: file
            for name, file in files.items()
            if name in contents.bodies and _matches(file, contents.bodies[name])
        }

    @property
    def names(self) -> frozenset[str]:
        """What is here, and not known to be damaged."""
        return frozenset(self._files)

    def __contains__(self, body: str) -> bool:
        return body in self._files

    def fetch(self, chunks: Chunks) -> list[Failure]:
        """Check *chunks* of what is here; what is damaged is here no more."""
        wanted = [
            (self._files[body], chunk) for body, some in chunks.items() for chunk in numbers(some)
        ]
        if not wanted:
            return []
        threads = min(_THREADS, os.cpu_count() or 1, len(wanted))
        with ThreadPoolExecutor(threads, "evac-check") as pool:
            found = {one.body: one for one in pool.map(self._check, wanted) if one is not None}
        for file, chunk in wanted:
            length = min(CHUNK, file.nbytes - chunk * CHUNK)
            if _named(file, chunk) is None:
                self.unsummed += length
            elif file.name not in found:
                self.nbytes += length
        for body in found:
            del self._files[body]
        return [found[body] for body in sorted(found)]

    def memory(self, body: str) -> memoryview:
        """All of *body*; nobody may write to it."""
        return self._files[body].memory

    def _check(self, wanted: tuple[AdoptedFile, int]) -> Failure | None:
        file, chunk = wanted
        named = _named(file, chunk)
        with file.data[chunk * CHUNK : (chunk + 1) * CHUNK] as data:
            if named is None or chunk_sums(data) == (named,):
                return None
        place = f"chunk {chunk + 1} of {len(file.crc32c)}, from byte {chunk * CHUNK}"
        reason = f"CRC-32C differs in {place}, in memory"
        return Failure(file.name, Problem(f"{self._folder}/{file.name}", reason), near=True)


def adopted(client: Client) -> LocalMemory:
    """What the node's daemon has of this job; nothing where it has not, or is not there."""
    if not client.connected:
        return LocalMemory(None)
    try:
        return LocalMemory(client.adopt())
    except NotConnected as error:
        log.info("nothing is adopted: %s", error.reason)
    except EvacError as error:
        log.warning("nothing is adopted: %s", error)
    return LocalMemory(None)


def _is(slot: AdoptedSlot, made: Made) -> bool:
    return (slot.run, slot.layout, slot.world) == (made.run, made.layout, made.world)


def _matches(file: AdoptedFile, sums: Sums) -> bool:
    """Whether it is this very file, as far as its checksums are known."""
    if file.nbytes != sums.nbytes or not sums.crc32c:
        return file.nbytes == sums.nbytes
    return len(file.crc32c) == len(sums.crc32c) and all(
        mine in (None, its) for mine, its in zip(file.crc32c, sums.crc32c, strict=True)
    )


def _names(metadata: bytes) -> frozenset[str]:
    """Of all files of a whole generation."""
    try:
        # As DCP does: these are the job's own bytes, and their SHA-256 is right.
        described: Metadata = pickle.loads(metadata)
        return frozenset(one.relative_path for one in (described.storage_data or {}).values())
    except Exception as error:  # noqa: BLE001 - a pickle may raise anything; without it, only whole shares count
        log.warning("a .metadata in this node's memory is none of torch: %s", error)
        return frozenset()


def _named(file: AdoptedFile, chunk: int) -> int | None:
    return file.crc32c[chunk] if chunk < len(file.crc32c) else None
