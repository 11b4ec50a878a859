"""The daemon is killed at every boundary of stage, flush, commit, retention and adoption.

``EVAC_NIGHTLY=1`` kills ten thousand, and more than once at each.
"""

import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.deaths.kills import PHASES, Chain, Struck, rounds
from tests.deaths.nursery import Nursery

NIGHTLY = os.environ.get("EVAC_NIGHTLY") == "1"
KILLS = 3400 if NIGHTLY else 115
CHAINS = 6


@pytest.mark.parametrize(
    ("both", "stores"),
    [(False, True), (False, False), (True, True)],
    ids=["the daemon dies", "the daemon dies without an fd store", "both die"],
)
def test_a_daemon_killed_at_any_boundary_loses_nothing_and_leaves_nothing(
    nursery: Nursery,
    tmp_path: Path,
    both: bool,
    stores: bool,
    record_property: Callable[[str, object], None],
) -> None:
    first = Chain(nursery, tmp_path / "first", both=both, stores=stores)
    try:
        aims = first.boundaries()
        first.end()
    finally:
        first.close()
    assert {aim.label.split()[0] for aim in aims} >= set(PHASES) - ({"return"} if both else set())
    chosen = list(rounds(aims, KILLS, seed=17))

    def run(number: int) -> Struck:
        chain = Chain(nursery, tmp_path / str(number), both=both, stores=stores)
        try:
            struck = chain.strike(chosen[number::CHAINS])
            chain.end()
        finally:
            chain.close()
        return struck

    with ThreadPoolExecutor(CHAINS) as pool:
        every = list(pool.map(run, range(CHAINS)))

    kills: Counter[str] = sum((one.kills for one in every), Counter())
    record_property("kills", kills)
    missing = {aim.label for aim in chosen if aim.label.startswith(PHASES)} - set(kills)
    assert not missing
    assert kills.total() >= 0.9 * KILLS, sum(one.missed for one in every)
