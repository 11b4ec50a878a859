"""Which generations are whole, over all places together? Pure.

One node leaves and puts its ranks' bytes into a peer's memory or a store; those that stay have theirs
in their own. No place has a whole generation then, and all together have. What a place holds is
judged by its files: what several ranks held lies in a file of one of them, of which other nodes have
copies by the same name, and any will do.

Places are put together only where they speak of one thing: the same step of the same incarnation of the
same run, laid out alike, and of each file that both have the same length and, as far as both
know them, the same checksums. What contradicts that stands for itself.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from evac.generation import Generation
from evac.manifest import FULL


@dataclass(frozen=True)
class Made:
    """What cannot differ between the parts of one generation.

    Attributes:
        kind: ``full``, or ``weights`` for these alone.
        metadata: Hex SHA-256 of its `.metadata`; "" where it has none.
    """

    generation: Generation
    kind: str
    run: str
    layout: str
    world: int
    metadata: str


@dataclass(frozen=True)
class Kept:
    """One file in one place.

    Attributes:
        sums: Stands for its checksums; "" where they are not known here.
    """

    nbytes: int
    sums: str = ""


@dataclass(frozen=True)
class Holding:
    """What one place has of a generation. Travels between ranks.

    Attributes:
        place: URL of a store, or the name of a node's memory.
        ranks: Whose shares are here, with all of their files.
        files: By name; copies of what others were to write are among them.
        described: The bytes of `.metadata` are here, or it needs none.
        names: Of all files of a whole one; empty where this place does not know them.
    """

    place: str
    made: Made
    ranks: frozenset[int]
    files: Mapping[str, Kept]
    described: bool
    names: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Candidate:
    """A generation that all its places together hold whole.

    Attributes:
        holdings: The preferred place first.
    """

    made: Made
    holdings: tuple[Holding, ...]

    @property
    def generation(self) -> Generation:
        """Which one."""
        return self.made.generation

    @property
    def kind(self) -> str:
        """``full`` or ``weights``."""
        return self.made.kind

    @property
    def world(self) -> int:
        """How many ranks wrote it."""
        return self.made.world

    @property
    def places(self) -> tuple[str, ...]:
        """Where it lies; equal to another's only where it is the same one, in the same places."""
        return tuple(one.place for one in self.holdings)


def candidates(holdings: Iterable[Holding]) -> list[Candidate]:
    """What is whole, newest first; of equals, whole ones before weights.

    Args:
        holdings: Of all places, the preferred one first.
    """
    alike: dict[Made, list[Holding]] = {}
    for one in holdings:
        alike.setdefault(one.made, []).append(one)
    found = [
        Candidate(made, united)
        for made, some in alike.items()
        for united in _united(some)
        if whole(united)
    ]
    return sorted(found, key=preference, reverse=True)


def preference(one: Candidate) -> tuple[Generation, bool]:
    """Greater is better: newer, and of equals the whole one."""
    return one.generation, one.made.kind == FULL


def whole(holdings: Sequence[Holding]) -> bool:
    """Whether places that agree have all of it together.

    Where all shares are there, nothing is missing. Else it takes somebody who knows which files there
    must be: what is missing of a share may be there as copies.
    """
    if not any(one.described for one in holdings):
        return False  # or none at all
    ranks = {rank for one in holdings for rank in one.ranks}
    if len(ranks) == holdings[0].made.world:
        return True
    names = next((one.names for one in holdings if one.names), None)
    return names is not None and names <= files(holdings)


def reaches(candidate: Candidate, near: Iterable[Holding], stores: Set[str]) -> bool:
    """Whether who has *near* in its own memory needs nobody else's beside the stores."""
    mine = [one for one in near if one.made == candidate.made]
    there = [one for one in candidate.holdings if one.place in stores]
    # Who alone knows of copies may be another node.
    names = next((one.names for one in candidate.holdings if one.names), frozenset())
    return whole([replace(one, described=True, names=names) for one in (*mine, *there)])


def files(holdings: Iterable[Holding]) -> Set[str]:
    """Names of all that is there."""
    return {name for one in holdings for name in one.files}


def _united(some: Sequence[Holding]) -> Iterator[tuple[Holding, ...]]:
    """Sets without contradictions, such that everybody is in one; who contradicts none is in each."""
    left = list(some)
    while left:
        known: dict[str, Kept] = {}
        # Who is left comes first; the others join where they fit.
        group = [one for one in (left[0], *some) if _joins(one, known)]
        yield tuple(one for one in some if any(one is other for other in group))
        left = [one for one in left if all(one is not other for other in group)]


def _joins(one: Holding, known: dict[str, Kept]) -> bool:
    """Whether *one* contradicts nothing that is known; then what it knows is known, too."""
    for name, mine in one.files.items():
        its = known.get(name, mine)
        if mine.nbytes != its.nbytes or (mine.sums and its.sums and mine.sums != its.sums):
            return False
    for name, mine in one.files.items():
        if not known.setdefault(name, mine).sums:
            known[name] = mine
    return True
