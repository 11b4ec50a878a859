"""What goes when there is no room: whose newest generation is here is the last to lose it.

Pure.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from evac.generation import Generation


@dataclass(frozen=True)
class Piece:
    """One object that is held.

    Attributes:
        nbytes: As it counts against the budget.
        at: Monotonic seconds at which it came.
    """

    key: str
    nbytes: int
    at: float


@dataclass(frozen=True)
class Group:
    """What belongs together: a job's generation, or else the objects of one folder.

    Attributes:
        prefix: The job's.
        at: When the last of it came.
    """

    prefix: str
    generation: Generation | None
    pieces: tuple[Piece, ...]

    @property
    def nbytes(self) -> int:
        """As it counts against the budget."""
        return sum(piece.nbytes for piece in self.pieces)

    @property
    def at(self) -> float:
        """When the last of it came: it is as young as that."""
        return max(piece.at for piece in self.pieces)


def place(key: str) -> tuple[str, Generation | None]:
    """Whose *key* is: a job's prefix and its generation; the folder and None for anything else."""
    folders = key.split("/")[:-1]
    for depth in range(len(folders) - 1, -1, -1):
        if (generation := Generation.parse(folders[depth])) is not None:
            return "/".join(folders[:depth]), generation
    return "/".join(folders), None


def groups(pieces: Iterable[Piece]) -> list[Group]:
    """What is held, by what belongs together; oldest first."""
    found: dict[tuple[str, Generation | None], list[Piece]] = {}
    for piece in pieces:
        found.setdefault(place(piece.key), []).append(piece)
    made = [Group(prefix, generation, tuple(some)) for (prefix, generation), some in found.items()]
    return sorted(made, key=lambda group: (group.at, group.prefix))


def expired(pieces: Iterable[Piece], *, now: float, keep_seconds: float) -> tuple[str, ...]:
    """Keys of all whose time is over."""
    return tuple(
        piece.key
        for group in groups(pieces)
        if group.at + keep_seconds <= now
        for piece in group.pieces
    )


def older(pieces: Iterable[Piece], prefix: str, than: Generation) -> tuple[str, ...]:
    """Keys of all of the job's generations before *than*."""
    return tuple(
        piece.key
        for group in groups(pieces)
        if group.prefix == prefix and group.generation is not None and group.generation < than
        for piece in group.pieces
    )


def make_room(pieces: Iterable[Piece], need: int) -> tuple[str, ...] | None:
    """Keys that have to go for *need* more bytes, the oldest first; None where it cannot be.

    A job's newest generation here never goes for another's sake.
    """
    found = groups(pieces)
    return _enough([group for group in found if not _newest(group, found)], need)


def give_way(pieces: Iterable[Piece], need: int) -> tuple[str, ...]:
    """Keys that go because this node needs *need* bytes itself; in the end all of them."""
    found = groups(pieces)
    spare = [group for group in found if not _newest(group, found)]
    rest = [group for group in found if _newest(group, found)]
    return _enough([*spare, *rest], need) or tuple(p.key for g in found for p in g.pieces)


def _newest(group: Group, among: Sequence[Group]) -> bool:
    """Also what is no generation: nothing newer can take its place."""
    if group.generation is None:
        return True
    return not any(
        other.prefix == group.prefix
        and other.generation is not None
        and other.generation > group.generation
        for other in among
    )


def _enough(candidates: Iterable[Group], need: int) -> tuple[str, ...] | None:
    gone: list[str] = []
    for group in candidates:
        if need <= 0:
            break
        gone += [piece.key for piece in group.pieces]
        need -= group.nbytes
    return tuple(gone) if need <= 0 else None
