"""A generation's bytes out of any store, each chunk summed as it arrives.

What is handed out has been checked, in memory where nobody can change it any more: bytes that were
checked and then read again might be others. That memory is as large as what this rank reads,
until it has been loaded.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from threading import Event

from evac.commit import Problem, State, chunk_sums
from evac.commit.reading import load
from evac.errors import EvacError, StoreError
from evac.generation import METADATA, Generation
from evac.manifest import CHUNK, FULL
from evac.store import Store, open_store
from evac.store.retry import Retry
from evac.store.threads import in_thread
from evac.torch.blocking import first, run
from evac.torch.parting import PIECE_CHUNKS, Chunks, runs
from evac.torch.rooms import Room

# One piece is read with one call; while it is summed, others are on their way.
WINDOW = 8
# Object stores try again by themselves, too; all ranks wait for the slowest.
ATTEMPTS = 3


@dataclass(frozen=True)
class Sums:
    """One file, as its manifest says.

    Attributes:
        crc32c: Of each 4 MiB; none where no manifest names it, but a node's memory has it.
    """

    nbytes: int
    crc32c: tuple[int, ...]


@dataclass(frozen=True)
class Contents:
    """What a whole generation holds, or its weights alone.

    Attributes:
        folder: Its key in the store.
        metadata: The bytes of `.metadata`, checked; b"" where it is no DCP checkpoint.
        bodies: By file name, in *folder*.
        stores: By URL, the preferred one first, what each of them has.
    """

    folder: str
    metadata: bytes
    bodies: Mapping[str, Sums]
    stores: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Span:
    """Bytes of one body."""

    body: str
    offset: int
    nbytes: int


@dataclass(frozen=True)
class _Piece:
    """Chunks of one body that follow each other, from *first* to before *end*."""

    body: str
    first: int
    end: int


def opened(url: str) -> Store:
    """The store behind *url*; it tries again what may help.

    Raises:
        ConfigError: See `open_store`.
    """
    return Retry(open_store(url), sleep=asyncio.sleep, attempts=ATTEMPTS)


def look(
    url: str, prefix: str, generation: Generation, kind: str = FULL
) -> Contents | tuple[Problem, ...]:
    """Read what describes a generation, no body; or why it cannot be restored. Blocks.

    Args:
        kind: ``weights`` for these alone.
    """
    folder = f"{prefix}/{generation.folder(kind)}"
    found: Contents | tuple[Problem, ...] = ()
    try:
        found = run(lambda: _look(url, prefix, generation, kind))
    except* EvacError as group:
        found = (Problem(folder, str(first(group))),)
    return found


async def _look(
    url: str, prefix: str, generation: Generation, kind: str
) -> Contents | tuple[Problem, ...]:
    store = opened(url)
    loaded = await load(store, prefix, generation, kind)
    folder = loaded.folder
    if loaded.status.state is not State.COMPLETE:
        return (Problem(folder, f"{loaded.status.state}: {loaded.status.reason}"),)
    one = next(iter(loaded.manifests.values()))
    metadata = await store.get(f"{folder}/{METADATA}") if one.metadata_nbytes else b""
    if one.metadata_nbytes and hashlib.sha256(metadata).hexdigest() != one.metadata_sha256:
        return (Problem(f"{folder}/{METADATA}", "SHA-256 does not match"),)
    bodies = {
        file.name: Sums(file.nbytes, file.crc32c)
        for manifest in loaded.manifests.values()
        for file in manifest.files
    }
    return Contents(folder, metadata, bodies, {url: frozenset(bodies)})


@dataclass(frozen=True)
class Failure:
    """A file that could not be read, or not all of it. Travels between ranks.

    Attributes:
        near: In this node's memory; else in any store.
    """

    body: str
    problem: Problem
    near: bool = False


class Bodies:
    """The bodies of one generation in one store.

    Args:
        store: Opens it; called again for each fetch, which has an event loop of its own.
        room: Where to put what is read.

    Attributes:
        nbytes: How much has been read and was right.
    """

    def __init__(self, store: Callable[[], Store], contents: Contents, room: Room) -> None:
        self.nbytes = 0
        self._open = store
        self._contents = contents
        self._room = room

    def fetch(self, chunks: Chunks) -> Failure | None:
        """Read *chunks* and check them. Blocks.

        Returns:
            What was found first that is not right, and then no more was read.
        """
        pieces = [piece for body, some in sorted(chunks.items()) for piece in _pieces(body, some)]
        found: Failure | None = None
        try:
            found = run(lambda: self._fetch(pieces)) if pieces else None
        except* EvacError as group:
            found = Failure(pieces[0].body, Problem(self._contents.folder, str(first(group))))
        return found

    async def _fetch(self, pieces: Iterable[_Piece]) -> Failure | None:
        store = self._open()
        left = iter(pieces)
        failures: dict[tuple[str, int], Failure] = {}

        async def work() -> None:
            for piece in left:
                if failures:
                    return
                if reason := await self._read(store, piece):
                    problem = Problem(f"{self._contents.folder}/{piece.body}", reason)
                    failures[piece.body, piece.first] = Failure(piece.body, problem)
                else:
                    end = min(piece.end * CHUNK, self._contents.bodies[piece.body].nbytes)
                    self.nbytes += end - piece.first * CHUNK

        async with asyncio.TaskGroup() as tasks:
            for _ in range(WINDOW):
                tasks.create_task(work())
        return failures[min(failures)] if failures else None

    async def _read(self, store: Store, piece: _Piece) -> str:
        """Fill in one piece; why it cannot be trusted, "" where it can."""
        body = self._contents.bodies[piece.body]
        start, end = piece.first * CHUNK, min(piece.end * CHUNK, body.nbytes)
        with self._room.memory(piece.body) as whole, whole[start:end] as into:
            try:
                got = await store.read(f"{self._contents.folder}/{piece.body}", start, into)
            except StoreError as error:
                return error.reason
            if got < into.nbytes:
                return f"ends at byte {start + got} of {body.nbytes}"
            found = await in_thread(partial(_sums, into))
        named = body.crc32c[piece.first : piece.end]
        for chunk, (is_now, was) in enumerate(zip(found, named, strict=True), piece.first):
            if is_now != was:
                place = f"chunk {chunk + 1} of {len(body.crc32c)}, from byte {chunk * CHUNK}"
                return f"CRC-32C differs in {place}"
        return ""


def covering(spans: Iterable[Span], contents: Contents) -> Chunks | Problem:
    """The chunks in which *spans* lie, or what is wrong with one of them."""
    wanted: dict[str, set[int]] = {}
    for span in spans:
        body = contents.bodies.get(span.body)
        end = span.offset + span.nbytes
        if body is None or span.offset < 0 or end > body.nbytes:
            reason = f"bytes {span.offset} to {end} are named by no manifest"
            return Problem(f"{contents.folder}/{span.body}", reason)
        if span.nbytes:
            wanted.setdefault(span.body, set()).update(
                range(span.offset // CHUNK, -(-end // CHUNK))
            )
    return {body: runs(some) for body, some in wanted.items()}


def _pieces(body: str, chunks: Iterable[tuple[int, int]]) -> Iterable[_Piece]:
    for first_chunk, end in chunks:
        for at in range(first_chunk, end, PIECE_CHUNKS):
            yield _Piece(body, at, min(at + PIECE_CHUNKS, end))


def _sums(data: memoryview, _: Event) -> tuple[int, ...]:
    return chunk_sums(data)  # 16 MiB at most: over before anybody could ask it to stop
