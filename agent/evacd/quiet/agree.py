"""Which generation the nodes of one job should write, so that one ever becomes whole.

Each node sees its own memory only, and would always choose its newest: where one is a step ahead
of another, they would write different generations for ever. What somebody has committed a part of
already is what the others follow, as long as they still hold it.
"""

from collections.abc import Collection

from evac.commit import survey
from evac.errors import EvacError
from evac.generation import Generation
from evac.store import Store
from evacd.workloads import Part


async def begun(
    store: Store, part: Part, *, among: Collection[Generation], newest: Generation
) -> Generation:
    """The newest of *among* that other ranks have written parts of; *newest* where there is none.

    Args:
        part: Any of the unit's; its rank is not looked for.
    """
    try:
        there = await survey(store, part.prefix, among=among)
    except EvacError:
        # Who cannot read will hear why when it writes.
        return newest
    halves = [
        status.generation for status in there if status.ranks and part.rank not in status.ranks
    ]
    return max(halves, default=newest)
