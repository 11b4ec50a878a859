"""Which store is known to have a unit's durable generation: for who has no byte left to move. Pure."""

from dataclasses import dataclass, replace

from evac.generation import Generation
from evac.store.durability import is_durable
from evacd.facts import Unit

# Of a node that lives for months these are the last ones.
_REMEMBERED = 1024


@dataclass(frozen=True)
class Whole:
    """A generation that is whole in a durable store.

    Attributes:
        store: Its URL; "" where an earlier daemon has written it, and nobody knows.
        nbytes: Of this node's part; 0 where nobody knows.
    """

    generation: Generation
    store: str
    nbytes: int


class Known:
    """The newest of each unit, as far as this daemon has written it or seen it written."""

    def __init__(self) -> None:
        self._of: dict[str, Whole] = {}

    def note(self, unit: str, generation: Generation, store: str, nbytes: int) -> None:
        """It became whole there; of what was written in two goes the larger count is the whole."""
        whole, before = Whole(generation, store, nbytes), self._of.get(unit)
        if before is not None and before.generation == generation:
            whole = replace(whole, nbytes=max(nbytes, before.nbytes))
        self._of.pop(unit, None)
        self._of[unit] = whole
        if len(self._of) > _REMEMBERED:
            del self._of[next(iter(self._of))]

    def of(self, unit: Unit) -> Whole | None:
        """Of its durable generation; None where it has none."""
        if unit.durable is None:
            return None
        found = self._of.get(unit.name)
        if found is not None and found.generation == unit.durable:
            return found
        lasting = [lane for lane in unit.lanes if is_durable(lane)]
        alone = lasting[0] if len(lasting) == 1 else ""
        return Whole(unit.durable, unit.durable_in or alone, 0)
