"""How well a node knows its margin: what `evac drill` predicts beside what it drills, on every store.

For each store a real evacd, three jobs that stage between drills, and `evac drill --flush` with a
window of twice what the plan needs. The margin is what is left of that window, less the commit
reserve; the rate behind the prediction is the one that evacd had measured or learned by then.
``margin_off_in_30s_at_first`` is that of the first drill of all, before which the start's probe is all that is known.
All but the disk are behind a link of a steady rate (`drilling.places`). --size counts the bytes of all jobs on
the disk; the others get a tenth of that. Stores are in EVAC_BENCH_DIR (default: /var/tmp).
"""

import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from drilling import Node
from drilling.places import PLACES, Opens
from harness import Ratio, Variant, main

from tests.services.process import Unavailable

# What holds where a window is long, and where it is no longer than it has to be.
RATIOS = [
    Ratio(f"{name} {window}", figure, name, None, 0.2, at_least=False)
    for name in PLACES
    for window, figure in (
        ("in_30s", "margin_off_in_30s"),
        ("in_twice_the_need", "margin_off"),
        ("at_first", "margin_off_in_30s_at_first"),
    )
]


def build(size: int, ends: ExitStack) -> list[Variant]:
    """One node for each store that can be had here, for all rounds."""
    above = Path(
        ends.enter_context(
            tempfile.TemporaryDirectory(dir=os.environ.get("EVAC_BENCH_DIR", "/var/tmp"))
        )
    )
    found = []
    for number, (name, (opens, share)) in enumerate(PLACES.items()):
        try:
            round = _rounds(opens, above / str(number), int(size * share), ends)
        except Unavailable as why:
            sys.stderr.write(f"{name} is left out: {why}\n")
        else:
            found.append(Variant(name, round))
    return found


def _rounds(
    opens: Opens, folder: Path, size: int, ends: ExitStack
) -> Callable[[], Mapping[str, float]]:
    place = ends.enter_context(opens(folder / "store", size))
    node = Node(folder / "node", place, size, ends)
    first = node.round()["margin_off_in_30s"]

    def round() -> Mapping[str, float]:
        return {**node.round(), "margin_off_in_30s_at_first": first}

    return round


if __name__ == "__main__":
    with ExitStack() as stack:
        sys.exit(main("drill", lambda size: build(size, stack), RATIOS, size=700 * 2**20))
