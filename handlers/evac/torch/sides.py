"""Side at the end of a file for what has outgrown its place there, and what one generation puts there.

A layout is agreed between all ranks, and a rank whose loader or objects have grown must not wait for
that: the generation of that step would be lost to all of them. So each file that holds anything which
may grow ends in some pages more. What does not fit its place goes there, a pointer is left in the
place (`evac.side`; a rank's own block has one of its kind), and the ranks agree on a larger layout at a later
step. While everything fits, the room is neither written nor looked at.

It belongs to the file and not to the rank: so it goes with the file wherever that goes, into a store or
to a peer, with the weights when these go alone, into the same checksums; and a copy that another
node stages of the file has it at the same place. Turned down: one file more per rank, which a node that
holds copies does not have, and a new `.metadata`, which all ranks would have to agree on.
"""

import dataclasses
import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from torch.distributed.checkpoint.metadata import Metadata

from evac.generation import METADATA
from evac.segment import aligned
from evac.side import pointer
from evac.torch import rank_state
from evac.torch.damage import sound

_LEAST = 256 * 1024


@dataclass(frozen=True)
class Side:
    """The end of a file, with room for what has outgrown its place there.

    Attributes:
        start: Of the file, in the body.
        offset: Of the room itself, in the body.
        nbytes: Of the room; whole pages.
    """

    start: int
    offset: int
    nbytes: int


class Item(Protocol):
    """What has a place in the body."""

    @property
    def name(self) -> str:
        """Its key."""
        ...

    @property
    def offset(self) -> int:
        """In the body."""
        ...

    @property
    def nbytes(self) -> int:
        """Of its place."""
        ...


def leave(start: int, end: int, objects: Iterable[Item], tensors: Iterable[Item]) -> Side | None:
    """What to leave behind a file that reaches from *start* to *end* so far; None where nothing grows there.

    Args:
        objects: Of the whole body, as *tensors*, among which a rank's own block is.
    """
    places = sum(one.nbytes for one in objects if one.offset >= start)
    blocks = sum(
        one.nbytes for one in tensors if one.offset >= start and rank_state.is_name(one.name)
    )
    if not places and not blocks:
        return None
    # All that grows will rarely do so at once, or outgrow its place by far before the next layout.
    return Side(start, end, aligned(max(_LEAST, places // 8 + blocks // 4)))


class Outgrown:
    """What one generation puts into the sides of its layout.

    Attributes:
        pieces: Offset in the body and bytes of each.
        names: Of what has outgrown its place, in order.
    """

    def __init__(self, sides: Iterable[Side]) -> None:
        self._sides = tuple(sides)
        self._used: dict[int, int] = {}
        self.pieces: list[tuple[int, bytes]] = []
        self.names: list[str] = []

    def put(self, name: str, at: int, data: bytes) -> int | None:
        """Put *data* into the side of the file in which *name* has its place, at *at* of the body.

        Returns:
            Its offset in that file; None where that is full, or there is none.
        """
        for side in self._sides:
            if not side.start <= at < side.offset:
                continue
            used = self._used.get(side.offset, 0)
            if len(data) > side.nbytes - used:
                return None
            self._used[side.offset] = used + len(data)
            self.pieces.append((side.offset + used, data))
            self.names.append(name)
            return side.offset + used - side.start
        return None

    def point(self, name: str, at: int, data: bytes) -> bytes | None:
        """As `put`; what is to be left in the place."""
        offset = self.put(name, at, data)
        return None if offset is None else pointer(offset, len(data))


def repointed(
    metadata: bytes, moved: Mapping[tuple[str, int], tuple[int, int]], *, where: str
) -> bytes:
    """A `.metadata` that names the bytes themselves in place of pointers to them.

    Args:
        metadata: As torch pickled it.
        moved: By file and offset there, for each pointer, what it says.
        where: The generation, for errors.

    Raises:
        GenerationError: It cannot be read.
    """
    with sound(where, METADATA, unpickles=True):
        described: Metadata = pickle.loads(metadata)
    storage = dict(described.storage_data)
    for index, info in storage.items():
        if found := moved.get((info.relative_path, info.offset)):
            offset, length = found
            storage[index] = dataclasses.replace(info, offset=offset, length=length)
    return pickle.dumps(dataclasses.replace(described, storage_data=storage))
