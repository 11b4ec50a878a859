"""A generation's bytes out of any store, each chunk summed as it arrives.

What is handed out has been checked, in memory where nobody can change it any more: bytes that were
checked and then read again might be others. That memory is as large as what this rank reads,
until it has been loaded.
"""

import asyncio
import hashlib
import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Protocol

from evac.commit import Problem, State, chunk_sums
from evac.commit.reading import load
from evac.errors import EvacError, StoreError
from evac.generation import METADATA, Generation
from evac.manifest import CHUNK, FULL
from evac.store import Store, open_store
from evac.store.retry import Retry
from evac.store.threads import in_thread
from evac.torch.blocking import first, run

# So much is read with one call; while one piece is summed, others are on their way.
PIECE_CHUNKS = 4
WINDOW = 8
# Object stores try again by themselves, too; all ranks wait for the slowest.
ATTEMPTS = 3
# Python 3.11 has no name for it; a body is mapped whole, and only what is read takes memory.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


@dataclass(frozen=True)
class Sums:
    """One file, as its manifest says.

    Attributes:
        crc32c: Of each 4 MiB.
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
    """

    folder: str
    metadata: bytes
    bodies: Mapping[str, Sums]


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
        found = run(lambda: _look(opened(url), prefix, generation, kind))
    except* EvacError as group:
        found = (Problem(folder, str(first(group))),)
    return found


async def _look(
    store: Store, prefix: str, generation: Generation, kind: str
) -> Contents | tuple[Problem, ...]:
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
    return Contents(folder, metadata, bodies)


class Fetched(Protocol):
    """Where a generation's bytes are had from."""

    @property
    def nbytes(self) -> int:
        """How much has been read and was right."""
        ...

    @property
    def remark(self) -> str:
        """What else is to be told of where they came from; "" where nothing."""
        ...

    def fetch(self, spans: Iterable[Span]) -> tuple[Problem, ...]:
        """See `Bodies.fetch`."""
        ...

    def memory(self, body: str) -> mmap.mmap | memoryview:
        """See `Bodies.memory`."""
        ...

    def drop(self) -> None:
        """See `Bodies.drop`."""
        ...


class Bodies:
    """The bodies of one generation, as far as they have been fetched.

    Args:
        store: Opens it; called again for each fetch, which has an event loop of its own.

    Attributes:
        nbytes: How much has been read and was right.
    """

    remark = ""

    def __init__(self, store: Callable[[], Store], contents: Contents) -> None:
        self.nbytes = 0
        self._open = store
        self._contents = contents
        self._maps: dict[str, mmap.mmap] = {}
        self._there: dict[str, set[int]] = {}

    def fetch(self, spans: Iterable[Span]) -> tuple[Problem, ...]:
        """Read the chunks in which *spans* lie, those that are not here yet, and check them. Blocks.

        Returns:
            Nothing where all of it is right; else what was found first, and then no more was read.
        """
        wanted: dict[str, set[int]] = {}
        for span in spans:
            body = self._contents.bodies.get(span.body)
            end = span.offset + span.nbytes
            if body is None or span.offset < 0 or end > body.nbytes:
                reason = f"bytes {span.offset} to {end} are named by no manifest"
                return (Problem(f"{self._contents.folder}/{span.body}", reason),)
            if span.nbytes:
                chunks = range(span.offset // CHUNK, -(-end // CHUNK))
                wanted.setdefault(span.body, set()).update(chunks)
        pieces = [
            piece
            for body, chunks in sorted(wanted.items())
            for piece in _pieces(body, chunks - self._there.get(body, set()))
        ]
        if not pieces:
            return ()
        problems: tuple[Problem, ...] = ()
        try:
            problems = run(lambda: self._fetch(pieces))
        except* EvacError as group:
            problems = (Problem(self._contents.folder, str(first(group))),)
        return problems

    def memory(self, body: str) -> mmap.mmap:
        """All of *body*, zeros where nothing was fetched.

        In small pages: huge ones save faults where there are any, and where the kernel has to make
        room for them first they took 1.5 s per GiB (Linux 6.18).
        """
        if body not in self._maps:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
            made = mmap.mmap(-1, self._contents.bodies[body].nbytes, flags=flags)
            self._maps[body] = made
        return self._maps[body]

    def drop(self) -> None:
        """Give the memory back; what is needed again is fetched again."""
        self._maps.clear()
        self._there.clear()

    async def _fetch(self, pieces: Iterable[_Piece]) -> tuple[Problem, ...]:
        store = self._open()
        left = iter(pieces)
        problems: list[Problem] = []

        async def work() -> None:
            for piece in left:
                if problems:
                    return
                if reason := await self._read(store, piece):
                    problems.append(Problem(f"{self._contents.folder}/{piece.body}", reason))
                else:
                    chunks = range(piece.first, piece.end)
                    self._there.setdefault(piece.body, set()).update(chunks)
                    end = min(piece.end * CHUNK, self._contents.bodies[piece.body].nbytes)
                    self.nbytes += end - piece.first * CHUNK

        async with asyncio.TaskGroup() as tasks:
            for _ in range(WINDOW):
                tasks.create_task(work())
        return tuple(sorted(problems, key=lambda one: one.key))

    async def _read(self, store: Store, piece: _Piece) -> str:
        """Fill in one piece; why it cannot be trusted, "" where it can."""
        body = self._contents.bodies[piece.body]
        start, end = piece.first * CHUNK, min(piece.end * CHUNK, body.nbytes)
        with memoryview(self.memory(piece.body)) as whole, whole[start:end] as into:
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


def _pieces(body: str, chunks: Iterable[int]) -> Iterator[_Piece]:
    at: _Piece | None = None
    for chunk in sorted(chunks):
        if at is not None and chunk == at.end and chunk - at.first < PIECE_CHUNKS:
            at = _Piece(body, at.first, chunk + 1)
            continue
        if at is not None:
            yield at
        at = _Piece(body, chunk, chunk + 1)
    if at is not None:
        yield at


def _sums(data: memoryview, _: Event) -> tuple[int, ...]:
    return chunk_sums(data)  # 16 MiB at most: over before anybody could ask it to stop
