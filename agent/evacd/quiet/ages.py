"""How old the newest durable generation of each unit is. Pure.

The age counts from when the generation was staged, not from when it was written: it says how
much work a restart from there would repeat.
"""

from collections.abc import Iterable, Mapping

from evac.generation import Generation
from evacd.facts import Unit


class Ages:
    """Feed it the units whenever they may have changed."""

    def __init__(self) -> None:
        self._staged: dict[str, dict[Generation, float]] = {}
        self._durable: dict[str, float] = {}

    def look(self, units: Iterable[Unit], *, now: float) -> None:
        """Note what is new: generations that were staged, and those that became durable."""
        staged, durable = self._staged, self._durable
        self._staged, self._durable = {}, {}
        for unit in units:
            known = staged.get(unit.name, {})
            if unit.durable is not None:
                # What was never seen being staged is as old as the news of it, or older.
                since = known.get(unit.durable, durable.get(unit.name))
                self._durable[unit.name] = now if since is None else since
            present = {unit.durable} | {candidate.generation for candidate in unit.candidates}
            self._staged[unit.name] = {
                one: known.get(one, now) for one in present if one is not None
            }

    def seconds(self, *, now: float) -> Mapping[str, float]:
        """Seconds since the newest durable generation was staged, of units that have one."""
        return {unit: max(now - since, 0.0) for unit, since in self._durable.items()}
