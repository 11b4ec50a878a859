"""What other nodes have put into this one's memory: by key, whole or not at all, within a budget.

Any thread may call. The lock guards the index alone: bytes move outside of it.
"""

import json
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from evac.errors import ProtocolError
from evac.generation import MARKER, Generation
from evac.store.peer_wire import PART, part_nbytes
from evacd.peer import room
from evacd.peer.blocks import Block, Blocks
from evacd.workloads.budget import human

# Enough for a thousand ranks, and few enough to be gone through in milliseconds.
MAX_OBJECTS = 4096
_PAGE = 4096
_SMALL = 64 * 1024


@dataclass
class Making:
    """A body that is on its way.

    Attributes:
        charge: Its bytes, as they count against the budget.
        blocks: What has arrived, by where it begins.
        under_way: Parts that a thread is receiving now.
        over: Finished or given up.
    """

    key: str
    nbytes: int
    charge: int
    blocks: dict[int, Block] = field(default_factory=dict)
    under_way: int = 0
    over: bool = False


@dataclass
class Held:
    """A body that is whole.

    Attributes:
        readers: Threads that send it now.
        at: Monotonic seconds at which it came.
        forgotten: Its key is gone, and its memory goes with its last reader.
    """

    key: str
    nbytes: int
    charge: int
    blocks: dict[int, Block]
    at: float
    readers: int = 0
    forgotten: bool = False

    def bytes_at(self, offset: int, most: int) -> memoryview:
        """Up to *most* bytes from *offset* on: those that lie in one piece."""
        start = offset - offset % PART
        if offset >= self.nbytes:
            return memoryview(b"")
        inside = offset - start
        return self.blocks[start].view[inside : inside + most]


class Holdings:
    """Everything that peers have put here.

    Args:
        budget: Bytes that it may take together, what is on its way included.
        keep_seconds: After which a generation that nobody added to is dropped.
        clock: Monotonic seconds.
    """

    def __init__(
        self, blocks: Blocks, *, budget: int, keep_seconds: float, clock: Callable[[], float]
    ) -> None:
        self.budget = budget
        self._blocks = blocks
        self._keep_seconds = keep_seconds
        self._clock = clock
        self._lock = Lock()
        self._used = 0
        self._held: dict[str, Held] = {}
        self._making: dict[int, Making] = {}

    # --- a body comes ---------------------------------------------------------------------

    def begin(self, key: str, nbytes: int) -> int | str:
        """The number of a new put, or why there is no room for it."""
        charge = max(-(-nbytes // _PAGE), 1) * _PAGE
        with self._locked():
            if len(self._held) + len(self._making) >= MAX_OBJECTS:
                return f"{MAX_OBJECTS} objects are held, the most there can be"
            if self._blocks.lacks(charge):
                return f"{human(nbytes)} do not fit beside what this node's own workloads may need"
            if self._used + charge > self.budget:
                self._drop_expired()
                gone = room.make_room(self._pieces(), self._used + charge - self.budget)
                if gone is None:
                    taken = f"{human(self._used)} of {human(self.budget)} are taken"
                    return f"{human(nbytes)} do not fit: {taken}"
                self._drop(gone)
            number = secrets.randbits(63) | 1
            self._making[number] = Making(key, nbytes, charge)
            self._used += charge
            return number

    @contextmanager
    def part(self, number: int, offset: int, nbytes: int) -> Iterator[Making | None]:
        """While a part of a put is received; None where there is no such put any more.

        Raises:
            ProtocolError: No such part.
        """
        with self._locked():
            making = self._making.get(number)
            if making is not None:
                if nbytes != part_nbytes(making.nbytes, offset):
                    raise ProtocolError(f"a part of {nbytes} bytes at {offset}")
                making.under_way += 1
        try:
            yield making
        finally:
            if making is not None:
                with self._locked():
                    making.under_way -= 1
                    self._forget_made(making)

    def arrived(self, making: Making, offset: int, block: Block) -> None:
        """A part is here, and is what was sent."""
        with self._lock:
            before = making.blocks.get(offset)
            making.blocks[offset] = block
            if before is not None:
                self._blocks.give(before, keep=True)

    def finish(self, number: int, *, only_new: bool) -> bool | None:
        """Give a body its key; False where *only_new* and it has one, None where it cannot be."""
        marker: bytes | None = None
        with self._locked():
            making = self._making.get(number)
            if (
                making is None
                or making.under_way
                or len(making.blocks) != -(-making.nbytes // PART)
            ):
                return None
            del self._making[number]
            making.over = True
            if only_new and making.key in self._held:
                self._forget_made(making)
                return False
            self._drop((making.key,))
            held = Held(making.key, making.nbytes, making.charge, making.blocks, self._clock())
            self._held[making.key] = held
            prefix, _, name = making.key.rpartition("/")
            if name == MARKER and 0 < making.nbytes <= _SMALL:
                marker = bytes(held.blocks[0].view)
                if (newest := _newest(marker)) is not None:
                    self._drop(room.older(self._pieces(), prefix, newest))
        return True

    def abort(self, numbers: Iterable[int]) -> None:
        """Forget what will not be finished."""
        with self._locked():
            for number in numbers:
                if (making := self._making.pop(number, None)) is not None:
                    making.over = True
                    self._forget_made(making)

    # --- what is here ---------------------------------------------------------------------

    @contextmanager
    def opened(self, key: str) -> Iterator[Held | None]:
        """While a body is read; None where there is none."""
        with self._locked():
            held = self._held.get(key)
            if held is not None:
                held.readers += 1
        try:
            yield held
        finally:
            if held is not None:
                with self._locked():
                    held.readers -= 1
                    self._forget_held(held)

    def age(self, held: Held) -> int:
        """Milliseconds since it came."""
        return max(0, round((self._clock() - held.at) * 1000))

    def below(self, prefix: str) -> list[tuple[str, int, int]]:
        """Keys below ``<prefix>/`` ("" for all), their lengths and ages in milliseconds, sorted."""
        with self._lock:
            found = [(held.key, held.nbytes, self.age(held)) for held in self._held.values()]
        return sorted(one for one in found if not prefix or one[0].startswith(f"{prefix}/"))

    def delete(self, key: str) -> None:
        """Forget it."""
        with self._locked():
            self._drop((key,))

    # --- room -----------------------------------------------------------------------------

    def sweep(self, lacking: int) -> int:
        """Drop what is too old, and what this node needs itself; how many bytes went.

        Args:
            lacking: Bytes that the node's own workloads could ask for and would not get.
        """
        with self._locked():
            before = self._used
            self._drop_expired()
            if lacking > 0:
                lacking -= self._blocks.trim()
            if lacking > 0:
                self._drop(room.give_way(self._pieces(), lacking))
                self._blocks.trim()
            elif not self._used:
                self._blocks.trim()
            return before - self._used

    def close(self) -> None:
        """Give everything back; nobody may be in the middle of anything."""
        with self._locked():
            self._drop(tuple(self._held))
            self._blocks.trim()

    def shown(self) -> dict[str, Any]:
        """For the status: how much, and for whom."""
        now = self._clock()
        with self._lock:
            pieces, used = self._pieces(), self._used
        jobs: dict[str, dict[str, Any]] = {}
        for group in room.groups(pieces):
            one = jobs.setdefault(
                group.prefix,
                {"prefix": group.prefix, "nbytes": 0, "generations": 0, "seconds": 0.0},
            )
            one["nbytes"] = one["nbytes"] + group.nbytes
            one["generations"] = one["generations"] + (group.generation is not None)
            one["seconds"] = now - group.at  # the groups come oldest first
        return {"budget": self.budget, "used": used, "jobs": list(jobs.values())}

    # --- under the lock -------------------------------------------------------------------

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """The lock; what was dropped under it is given back after it."""
        try:
            with self._lock:
                yield
        finally:
            self._blocks.reap()

    def _pieces(self) -> list[room.Piece]:
        return [room.Piece(held.key, held.charge, held.at) for held in self._held.values()]

    def _drop_expired(self) -> None:
        now, keep = self._clock(), self._keep_seconds
        self._drop(room.expired(self._pieces(), now=now, keep_seconds=keep))

    def _drop(self, keys: Iterable[str]) -> None:
        for key in keys:
            if (held := self._held.pop(key, None)) is not None:
                held.forgotten = True
                self._forget_held(held)

    def _forget_held(self, held: Held) -> None:
        if held.forgotten and not held.readers:
            self._release(held.blocks, held.charge)

    def _forget_made(self, making: Making) -> None:
        if making.over and not making.under_way:
            self._release(making.blocks, making.charge)

    def _release(self, blocks: dict[int, Block], charge: int) -> None:
        self._used -= charge
        for block in blocks.values():
            keep = self._used + self._blocks.spare_nbytes + block.nbytes <= self.budget
            self._blocks.give(block, keep=keep)
        blocks.clear()


def _newest(marker: bytes) -> Generation | None:
    """The generation that a job's marker says is whole; None where it says none."""
    try:
        document = json.loads(marker)
    except (ValueError, RecursionError):
        return None
    named = document.get("newest") if isinstance(document, dict) else None
    return Generation.parse(named) if isinstance(named, str) else None
