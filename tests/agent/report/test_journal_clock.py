"""An incident that goes on after a boot: only a wall clock says how long that took, and it may be wrong."""

from pathlib import Path

import pytest

from evac.incident import load
from evacd.report.journal import Journal
from tests.agent.report.test_journal import NOTICE, HandClock, order


@pytest.mark.parametrize("since", [0.0, 7 * 3600.0], ids=["set back", "set forward"])
def test_an_incident_that_goes_on_after_a_boot_stays_in_order_whatever_the_wall_clock_says(
    tmp_path: Path, since: float
) -> None:
    path, clock = tmp_path / "incidents.sqlite", HandClock()
    journal = Journal(path, clock)
    journal.open(order(), NOTICE, node="gpu-7", boot="b1")
    clock.now += 12.5
    journal.record("ab12-1", "order.given", {})
    journal.stop()

    clock.now = 3.0  # the monotonic clock begins anew
    journal = Journal(path, clock)
    journal.resume("ab12-1", since_seconds=since)
    clock.now += 2.0
    journal.record("ab12-1", "cordon.reopened", {})
    journal.stop()

    (found,) = load(path)
    assert [event.at for event in found.events] == [12.5, max(since, 12.5) + 2.0]
