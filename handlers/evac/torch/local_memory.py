"""Generations that processes before this one left in this node's memory.

They are read where they lie: no copy but the one into the model, and each chunk is compared with
the daemon's checksum before anything is loaded. While they are adopted nobody writes to them.
"""

import hashlib
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from evac._adoption import AdoptedFile, AdoptedSlot, Adoption
from evac.client import Client
from evac.commit import Problem, chunk_sums
from evac.errors import EvacError, NotConnected
from evac.generation import Generation
from evac.manifest import CHUNK
from evac.torch.reader_bodies import Bodies, Contents, Span, Sums

log = logging.getLogger("evac")

# What a candidate's store is called where it is none.
HERE = "this node's memory"
_THREADS = 8


@dataclass(frozen=True)
class Offer:
    """What one node has of a generation; travels between ranks.

    Attributes:
        ranks: Whose shares.
    """

    generation: Generation
    layout: str
    world: int
    ranks: tuple[int, ...]


def whole(offers: Sequence[Sequence[Offer]]) -> list[tuple[Generation, int]]:
    """Generations of which every rank has something near, and all together all; and their worlds.

    Newest first. That a rank has near what it needs is seen when it is loaded.

    Args:
        offers: Of each rank.
    """
    found: list[tuple[Generation, int]] = []
    generations = {one.generation for offered in offers for one in offered}
    for generation in sorted(generations, reverse=True):
        near = [[o for o in offered if o.generation == generation] for offered in offers]
        every = [one for offered in near for one in offered]
        if not all(near) or len({(one.layout, one.world) for one in every}) != 1:
            continue
        if {rank for one in every for rank in one.ranks} == set(range(every[0].world)):
            found.append((generation, every[0].world))
    return found


class LocalMemory:
    """What was adopted, by generation; nothing where there was no daemon to ask."""

    def __init__(self, adoption: Adoption | None) -> None:
        self._adoption = adoption
        self._slots: dict[Generation, dict[int, AdoptedSlot]] = {}
        for slot in adoption or ():
            self._slots.setdefault(slot.generation, {})[slot.rank] = slot

    def offers(self) -> list[Offer]:
        """What this node has."""
        found = []
        for generation, slots in self._slots.items():
            if len({(one.layout, one.world) for one in slots.values()}) == 1:
                one = next(iter(slots.values()))
                found.append(Offer(generation, one.layout, one.world, tuple(sorted(slots))))
        return found

    def look(self, generation: Generation) -> Contents | tuple[Problem, ...]:
        """What a generation holds as far as it is here; or why it cannot be restored."""
        slots = self._slots.get(generation, {})
        for slot in slots.values():
            metadata = slot.metadata
            if metadata and hashlib.sha256(metadata).hexdigest() == slot.layout:
                files = [file for one in slots.values() for file in one.files]
                bodies = {file.name: Sums(file.nbytes, ()) for file in files}
                return Contents(HERE, metadata, bodies)
        return (Problem(str(generation), "no .metadata in this node's memory is its own"),)

    def bodies(self, generation: Generation) -> "LocalBodies":
        """Its bytes, as far as they are here."""
        slots = self._slots.get(generation, {}).values()
        files = {file.name: file for one in slots for file in one.files}
        return LocalBodies(str(generation), files)

    def close(self) -> None:
        """The daemon may have it again."""
        self._slots.clear()
        if self._adoption is not None:
            self._adoption.close()


class LocalBodies:
    """The bodies of one generation in memory; see `reader_bodies.Bodies`.

    Attributes:
        nbytes: How much was compared with its checksum, and was right.
        unsummed: How much there was no checksum for yet.
    """

    def __init__(self, generation: str, files: Mapping[str, AdoptedFile]) -> None:
        self.nbytes = 0
        self.unsummed = 0
        self._generation = generation
        self._files = files
        self._there: dict[str, set[int]] = {}

    @property
    def remark(self) -> str:
        """See `Fetched.remark`."""
        if not self.unsummed:
            return ""
        return f"; for {self.unsummed:,} bytes more there was no checksum yet"

    def has(self, body: str, sums: Sums) -> bool:
        """Whether this very body is here, as far as its checksums are known."""
        file = self._files.get(body)
        return (
            file is not None
            and file.nbytes == sums.nbytes
            and len(file.crc32c) == len(sums.crc32c)
            and all(mine in (None, its) for mine, its in zip(file.crc32c, sums.crc32c, strict=True))
        )

    def fetch(self, spans: Iterable[Span]) -> tuple[Problem, ...]:
        """See `Bodies.fetch`; what is not here is a problem."""
        wanted: list[tuple[AdoptedFile, int]] = []
        for span in spans:
            file = self._files.get(span.body)
            where = f"{self._generation}/{span.body}"
            if file is None:
                return (Problem(where, "is not in this node's memory"),)
            if span.offset < 0 or span.offset + span.nbytes > file.nbytes:
                return (Problem(where, "its .metadata speaks of bytes that it has not"),)
            there = self._there.setdefault(span.body, set())
            chunks = range(span.offset // CHUNK, -(-(span.offset + span.nbytes) // CHUNK))
            wanted += [(file, chunk) for chunk in chunks if chunk not in there]
            there.update(chunks)
        if not wanted:
            return ()
        threads = min(_THREADS, os.cpu_count() or 1, len(wanted))
        with ThreadPoolExecutor(threads, "evac-check") as pool:
            problems = [one for one in pool.map(self._check, wanted) if one is not None]
        for file, chunk in wanted:
            length = min(CHUNK, file.nbytes - chunk * CHUNK)
            if _named(file, chunk) is None:
                self.unsummed += length
            else:
                self.nbytes += length
        return tuple(problems[:1])

    def memory(self, body: str) -> memoryview:
        """See `Bodies.memory`."""
        return self._files[body].memory

    def drop(self) -> None:
        """See `Bodies.drop`: what was checked is checked again."""
        self._there.clear()

    def _check(self, wanted: tuple[AdoptedFile, int]) -> Problem | None:
        file, chunk = wanted
        named = _named(file, chunk)
        with file.data[chunk * CHUNK : (chunk + 1) * CHUNK] as data:
            if named is None or chunk_sums(data) == (named,):
                return None
        place = f"chunk {chunk + 1} of {len(file.crc32c)}, from byte {chunk * CHUNK}"
        return Problem(f"{self._generation}/{file.name}", f"CRC-32C differs in {place}, in memory")


class NearestBodies:
    """Bodies of a store's generation: from memory where this very one is there, else from the store."""

    def __init__(self, local: LocalBodies, store: Bodies, contents: Contents) -> None:
        self._local = local
        self._store = store
        self._near = {name for name, sums in contents.bodies.items() if local.has(name, sums)}

    @property
    def nbytes(self) -> int:
        """See `Bodies`: of both."""
        return self._store.nbytes + self._local.nbytes

    @property
    def remark(self) -> str:
        """See `Fetched.remark`."""
        here = self._local.nbytes + self._local.unsummed
        return f"; {here:,} of them from {HERE}" if here else ""

    def fetch(self, spans: Iterable[Span]) -> tuple[Problem, ...]:
        """See `Bodies.fetch`; what is damaged in memory is read from the store."""
        every = list(spans)
        near = [span for span in every if span.body in self._near]
        if problems := self._local.fetch(near):
            log.warning("%s: %s; it is read from the store", problems[0].key, problems[0].reason)
            self._near.clear()
        return self._store.fetch(span for span in every if span.body not in self._near)

    def memory(self, body: str) -> "memoryview":
        """See `Bodies.memory`."""
        if body in self._near:
            return self._local.memory(body)
        return memoryview(self._store.memory(body))

    def drop(self) -> None:
        """See `Bodies.drop`."""
        self._local.drop()
        self._store.drop()


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


def _named(file: AdoptedFile, chunk: int) -> int | None:
    return file.crc32c[chunk] if chunk < len(file.crc32c) else None
