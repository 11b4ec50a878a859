"""The table of what is lost at a SIGKILL: its verdicts, and one of its cells for real."""

from pathlib import Path
from queue import Empty

import lost
import pytest
from losing import experiment
from losing.experiment import MIB, Found, Missed
from losing.plan import EVAC, FLUSH, HANGS, HUNG, LAST, MOMENTS, STAGING


@pytest.mark.parametrize(
    ("found", "steps", "said"),
    [
        (Found(reached=15, low=15, high=15), 0, "0"),
        (Found(reached=17, low=15, high=15), 2, "2"),
        (Found(reached=15, low=10, high=15), 5, "torn, loads silently (10 to 15)"),
        (Found(reached=15, low=0, high=0), 15, "15: nothing loads"),
    ],
)
def test_lost_is_what_was_reached_and_did_not_come_back(
    found: Found, steps: int, said: str
) -> None:
    assert (found.lost, str(found)) == (steps, said)


def test_every_goal_is_of_a_figure_that_is_measured() -> None:
    figures = {lost.figure(moment) for moment in MOMENTS}
    assert {one.figure for one in lost.RATIOS} <= figures
    assert {system for system, goals in lost.GOALS.items() if goals.keys() == set(MOMENTS)} == (
        lost.GOALS.keys()
    )
    assert min(HANGS.values()) > LAST


@pytest.mark.parametrize("error", [RuntimeError("it died"), TimeoutError("never"), Empty()])
def test_a_cell_that_fails_costs_no_other_cell(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> Found:
        raise error

    monkeypatch.setattr(lost, "experiment", fails)
    assert lost.attempt(EVAC, HUNG, MIB) == "did not run"
    assert f"{EVAC}, {HUNG}: {type(error).__name__}" in capsys.readouterr().err


def test_a_kill_that_came_too_late_is_tried_again_elsewhere_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVAC_BENCH_DIR", str(tmp_path))
    tried: list[float] = []

    def late(_: object, part: float) -> Found:
        tried.append(part)
        if len(tried) < 3:
            raise Missed
        return Found(15, 10, 10)

    monkeypatch.setattr(experiment.Experiment, "run", late)
    assert experiment.experiment(EVAC, STAGING, MIB).lost == 5
    assert len(set(tried)) == 3
    assert not list(tmp_path.iterdir())


def test_what_a_daemon_holds_when_its_job_is_killed_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVAC_BENCH_DIR", str(tmp_path))

    assert experiment.experiment(EVAC, FLUSH, 2 * MIB) == Found(LAST, LAST, LAST)
