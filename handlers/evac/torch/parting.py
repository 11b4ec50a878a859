"""Which rank reads which bytes on a resume, and who hands some of them on. Pure.

Ranks of one node that need the same bytes read them once, each a part, into memory that they share: N
ranks reading all of it would ask the store for N times as much as the node needs. What lies in a
node's own memory is read there by who needs it. What no store has, and only another node's
memory, is handed over by a rank of that node, to one rank of each node.

Turned down: one node that reads for all others. A store gives to many nodes at once as fast as to
one, and a node then depends on no other one's link.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TypeAlias

# So many chunks are read in one piece, and by one rank.
PIECE_CHUNKS = 4

# Of each file the numbers of its chunks, in runs: from the first to before the last.
Chunks: TypeAlias = Mapping[str, tuple[tuple[int, int], ...]]


@dataclass(frozen=True)
class Move:
    """Chunks that go from one rank's memory to another's."""

    sender: int
    receiver: int
    body: str
    first: int
    end: int


@dataclass(frozen=True)
class Parts:
    """What one rank does.

    Attributes:
        checks: What it reads in its own node's memory, for itself or to send it.
        reads: What it reads from the stores.
        moves: Those of all ranks, equal on all, in the order in which they are made.
        lost: Files that some rank needs and nobody has; equal on all ranks.
    """

    checks: Chunks
    reads: Chunks
    moves: tuple[Move, ...]
    lost: frozenset[str]


def runs(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Numbers as runs that do not touch each other."""
    found: list[tuple[int, int]] = []
    for one in sorted(set(numbers)):
        if found and found[-1][1] == one:
            found[-1] = (found[-1][0], one + 1)
        else:
            found.append((one, one + 1))
    return tuple(found)


def numbers(runs: Iterable[tuple[int, int]]) -> set[int]:
    """And back."""
    return {one for first, end in runs for one in range(first, end)}


def shared(needs: Sequence[Chunks], groups: Sequence[int], near: Sequence[Set[str]]) -> bool:
    """Whether ranks of one group need the same from elsewhere: then memory in common is worth it."""
    seen: set[tuple[int, str, int]] = set()
    for need, group, here in zip(needs, groups, near, strict=True):
        for body, some in need.items():
            for one in () if body in here else numbers(some):
                if (group, body, one) in seen:
                    return True
                seen.add((group, body, one))
    return False


def parts(
    rank: int,
    needs: Sequence[Chunks],
    groups: Sequence[int],
    near: Sequence[Set[str]],
    stored: Set[str],
) -> Parts:
    """What *rank* does of what all have to do together.

    Args:
        needs: Of each rank.
        groups: Of each rank: those of one number share memory.
        near: Of each rank: the files in its own node's memory.
        stored: Files that a store has.
    """
    mine = [one for one, group in enumerate(groups) if group == groups[rank]]
    # What other nodes read from stores is no matter of ours, and of a large job it is much.
    reads = _shares(_pieces(mine, needs, groups, near, stored.__contains__), len(needs))[rank]
    moves: list[Move] = []
    lost: set[str] = set()
    load = [0 for _ in needs]
    unstored = _pieces(range(len(needs)), needs, groups, near, lambda body: body not in stored)
    for body, first, end, ranks in unstored:
        holders = [one for one, here in enumerate(near) if body in here]
        if not holders:
            lost.add(body)
            continue
        sender = min(holders, key=load.__getitem__)
        receiver = min(ranks, key=load.__getitem__)
        moves.append(Move(sender, receiver, body, first, end))
        load[sender] += end - first
        load[receiver] += end - first
    checks = {body: numbers(some) for body, some in needs[rank].items() if body in near[rank]}
    for move in moves:
        if move.sender == rank:
            checks.setdefault(move.body, set()).update(range(move.first, move.end))
    checked = {body: runs(some) for body, some in checks.items()}
    return Parts(checked, reads, tuple(moves), frozenset(lost))


_Piece: TypeAlias = tuple[str, int, int, list[int]]


def _shares(pieces: Iterable[_Piece], world: int) -> list[Chunks]:
    """Each piece to one of those who need it, so that all have about as much to do."""
    found: list[dict[str, list[int]]] = [{} for _ in range(world)]
    load = [0] * world
    for body, first, end, ranks in pieces:
        one = min(ranks, key=load.__getitem__)
        found[one].setdefault(body, []).extend(range(first, end))
        load[one] += end - first
    return [{body: runs(some) for body, some in one.items()} for one in found]


def _pieces(
    ranks: Iterable[int],
    needs: Sequence[Chunks],
    groups: Sequence[int],
    near: Sequence[Set[str]],
    counts: Callable[[str], bool],
) -> Iterator[_Piece]:
    """What is not near who needs it: chunks that follow each other and go to the same ranks."""
    wanted: dict[tuple[int, str, int], list[int]] = {}
    for rank in ranks:
        for body, some in needs[rank].items():
            if body not in near[rank] and counts(body):
                for one in numbers(some):
                    wanted.setdefault((groups[rank], body, one), []).append(rank)
    at: tuple[int, str, int, int, list[int]] | None = None
    for group, body, one in sorted(wanted):
        who = wanted[group, body, one]
        if at is not None:
            if at[:2] == (group, body) and at[3:] == (one, who) and one - at[2] < PIECE_CHUNKS:
                at = (*at[:3], one + 1, who)
                continue
            yield at[1:]
        at = (group, body, one, one + 1, who)
    if at is not None:
        yield at[1:]
