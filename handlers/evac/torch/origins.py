"""Where each byte of a restore came from."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# What a rank got from one of another node, out of that node's memory.
ELSEWHERE = "another node's memory"


@dataclass(frozen=True)
class Origins:
    """How many bytes were read in each place. Travels between ranks.

    Attributes:
        nbytes: By ``this node's memory``, ``another node's memory`` or a store's URL.
    """

    nbytes: Mapping[str, int]

    @property
    def places(self) -> list[str]:
        """Who gave most first."""
        return sorted(self.nbytes, key=lambda place: (-self.nbytes[place], place))

    def told(self) -> str:
        """``1,024 bytes from s3://b/p, 512 from this node's memory``."""
        counts = [f"{self.nbytes[place]:,} from {place}" for place in self.places]
        return ", ".join(counts).replace(" from", " bytes from", 1)


def together(all_of: Iterable[Origins]) -> Origins:
    """Of all ranks."""
    total: Counter[str] = Counter()
    for one in all_of:
        total.update(one.nbytes)
    return Origins(dict(total))
