"""How often a job stages: what its history and its stalls say, and that all ranks agree."""

import itertools
import math
import time
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evac._callbacks import RunningOrder
from evac.interval import Costs, bounded
from evac.torch.accumulation import WAITS, Accumulation
from evac.torch.pace import BETWEEN_SECONDS, History, Pace
from evac.torch.rhythm import Rhythm
from evac.torch.world import World
from tests.handlers.torch.fakes import FakeClient
from tests.handlers.torch.training import Run


def _train(pace: Pace, *, steps: int, step_seconds: float, stall: float) -> list[int]:
    """A run on an own clock, whose wishes are granted at once; which steps it staged."""
    now, staged = 100.0, []
    for step in range(1, steps + 1):
        now += step_seconds
        if pace.due(step, now=now, planned=True):
            staged.append(step)
            now += stall
            if wish := pace.staged(stall, now=now):
                pace.agreed(wish)
    return staged


def test_a_fixed_number_of_steps_is_kept() -> None:
    assert _train(Pace(every=7), steps=30, step_seconds=0.1, stall=5.0) == [7, 14, 21, 28]


def test_the_number_of_steps_is_the_one_that_costs_least() -> None:
    pace = Pace(between=3600.0, restart=300.0, share=0.05)
    staged = _train(pace, steps=2000, step_seconds=0.5, stall=0.2)
    best = bounded(Costs(0.2, 300.0, 3600.0), share=0.05) / 0.5
    assert pace.steps == pytest.approx(best, rel=0.5)
    assert staged[-1] - staged[-2] == pace.steps


@given(st.floats(0.001, 20), st.floats(0.01, 20), st.floats(0.002, 0.5))
def test_stalls_never_take_much_more_than_their_share(
    step_seconds: float, stall: float, share: float
) -> None:
    pace = Pace(between=600.0, restart=60.0, share=share)
    _train(pace, steps=50, step_seconds=step_seconds, stall=stall)
    # The agreed number is kept while the best is within a factor of 1.5 of it.
    assert stall / (pace.steps * step_seconds) <= share * 1.5 + 1e-9


def test_a_small_change_is_not_worth_agreeing_on() -> None:
    pace = Pace(between=3600.0, restart=300.0)
    _train(pace, steps=1000, step_seconds=0.5, stall=0.2)
    before = pace.steps
    _train(pace, steps=1000, step_seconds=0.5, stall=0.22)
    assert pace.steps == before


def test_a_job_learns_from_its_own_past_how_often_it_is_reclaimed() -> None:
    first = Pace()
    _train(first, steps=100, step_seconds=36.0, stall=0.0)
    kept = History.read(first.remember(now=100.0 + 3600.0, wall=5000.0))
    assert kept.trained == pytest.approx(3600.0, abs=40)

    again = kept.resumed(now=5090.0)
    assert (again.reclaims, again.restart) == (1, 90.0)
    # An hour and one reclaim, beside what is assumed of all machines.
    mean = again.between(BETWEEN_SECONDS, 0.0)
    assert mean == pytest.approx((BETWEEN_SECONDS + kept.trained) / 2)


@pytest.mark.parametrize("now", [4000.0, 5000.0 + 10 * 86400])
def test_a_clock_that_jumped_is_no_measurement_of_a_restart(now: float) -> None:
    kept = History(reclaims=3, trained=7200.0, restart=60.0, told=5000.0)
    assert kept.resumed(now=now).restart == 60.0


@pytest.mark.parametrize("document", [None, {}, {"foreign": 1}])
def test_a_checkpoint_without_a_history_starts_one(document: dict[str, float] | None) -> None:
    assert History.read(document) == History()


def test_a_pause_overnight_is_no_measurement_of_a_restart() -> None:
    kept = History(reclaims=3, trained=7200.0, restart=60.0, told=5000.0)
    assert kept.resumed(now=5000.0 + 8 * 3600).restart == 60.0


def test_a_restart_is_over_at_the_first_step() -> None:
    """However long the job has been up since."""
    pace = Pace(between=3600.0)
    pace.history = History(reclaims=1, restart=1e-9, told=1.0)
    _train(pace, steps=5, step_seconds=1.0, stall=0.1)
    found = pace.costs(200.0)
    assert found is not None
    time.sleep(0.02)
    assert pace.costs(9 * 3600.0) == found


@given(st.integers(1, 50), st.integers(1, 40), st.integers(0, 500))
def test_steps_that_are_numbered_with_gaps_are_due_as_often(
    stride: int, every: int, start: int
) -> None:
    pace = Pace(every=every)
    numbers = range(start + stride, start + 400 * stride, stride)
    due = [step for step in numbers if pace.due(step, now=0.0, planned=True)]
    gaps = [later - earlier for earlier, later in itertools.pairwise(due)]
    # Each multiple of *every* that was passed is told of at once.
    assert all(gap < every + stride for gap in gaps)
    assert all(step // every > (step - stride) // every for step in due)


def test_a_step_of_many_numbers_takes_its_part_of_the_time_each() -> None:
    pace = Pace(between=3600.0, restart=300.0)
    for index in range(1, 50):
        pace.due(32 * index, now=16.0 * index, planned=True)
    assert pace.every_seconds() == pytest.approx(0.5)


def test_what_is_done_once_at_the_start_does_not_count_as_a_stall() -> None:
    pace = Pace(between=3600.0, restart=300.0)
    pace.due(1, now=1.0, planned=True)
    pace.staged(30.0, now=31.0, prepared=True)
    assert pace.costs(31.0) is None
    pace.due(2, now=32.0, planned=True)
    pace.staged(0.5, now=32.5)
    found = pace.costs(32.5)
    assert found is not None
    assert found.stall == 0.5


def test_the_rank_that_is_held_up_longest_decides() -> None:
    """All wait for it at the next collective."""
    paces = [Pace(between=3600.0, restart=300.0, share=0.05, rank=rank) for rank in range(3)]
    stalls = (0.01, 0.4, 0.02)
    now = 0.0
    for step in range(1, 3000):
        now += 0.5
        due = [pace.due(step, now=now, planned=True) for pace in paces]
        assert len(set(due)) == 1
        if due[0]:
            now += max(stalls)
            wishes = [
                pace.staged(stall, now=now) for pace, stall in zip(paces, stalls, strict=True)
            ]
            for wish in filter(None, wishes):
                for pace in paces:
                    pace.agreed(wish)
    assert len({pace.steps for pace in paces}) == 1
    best = bounded(Costs(0.4, 300.0, 3600.0), share=0.05) / 0.5
    assert paces[0].steps == pytest.approx(best, rel=0.5)


def test_who_has_said_how_long_it_is_held_up_says_it_once() -> None:
    pace = Pace(rank=1)
    pace.agreed("pace every 1 0.01")
    said = []
    for step in range(1, 100):
        pace.due(step, now=float(step), planned=True)
        # From the middle on as quick as the others: that is news, too.
        said.append(pace.staged(0.5 if step < 50 else 0.01, now=float(step)))
    wishes = [wish for wish in said if wish]
    assert (wishes[0], wishes[-1]) == ("pace stall 1 0.5", "pace stall 1 0.01")
    # One more where the median is between the two.
    assert len(wishes) <= 3


def test_until_the_layout_is_planned_no_clock_is_asked() -> None:
    """A try is a collective: two ranks with different clocks would hang."""
    fast, slow = Pace(), Pace()
    tries = [
        [step for step in range(1, 401) if pace.due(step, now=step * seconds, planned=False)]
        for pace, seconds in ((fast, 0.001), (slow, 30.0))
    ]
    assert tries[0] == tries[1]
    assert tries[0][:4] == [1, 2, 4, 8]
    assert 400 in tries[0]


def test_who_only_burns_hours_is_told_so() -> None:
    pace = Pace(between=60.0, restart=300.0)
    _train(pace, steps=10, step_seconds=1.0, stall=0.1)
    assert "net consumer of GPU hours" in pace.verdict(200.0)


def test_a_healthy_job_is_told_nothing() -> None:
    pace = Pace(between=6 * 3600.0, restart=300.0)
    _train(pace, steps=10, step_seconds=1.0, stall=0.1)
    assert pace.verdict(200.0) == ""


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"every": 0}, "every"),
        ({"share": 0.0}, "stall_share"),
        ({"share": math.nan}, "stall_share"),
        ({"between": 0.0}, "between"),
        ({"restart": -1.0}, "restart"),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(wrong: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Pace(**wrong)  # type: ignore[arg-type] # a table of one wrong value each


# --- the rhythm: notices, and half steps ---------------------------------------------------


@pytest.fixture
def run() -> Run:
    return Run(seed=3)


@pytest.fixture
def rhythm(run: Run) -> Iterator[Rhythm]:
    watch = Accumulation(run.model, run.optimizer)
    made = Rhythm(Pace(every=1000), World(), watch.unfinished, job="run")
    yield made
    made.close()
    watch.close()


def _order(name: str) -> RunningOrder:
    return RunningOrder(name, "certain", 0.0)


def test_a_notice_has_the_next_step_staged_and_only_that_one(run: Run, rhythm: Rhythm) -> None:
    client = FakeClient()
    rhythm.follow(client.as_client())
    run.train()
    assert not rhythm.passed(1, planned=True).stage
    client.orders[0](_order("a"))
    run.train()
    assert rhythm.passed(2, planned=True).stage
    # Amended: the same order.
    client.orders[0](_order("a"))
    run.train()
    assert not rhythm.passed(3, planned=True).stage


def test_a_notice_before_the_first_step_is_not_forgotten(run: Run, rhythm: Rhythm) -> None:
    client = FakeClient()
    rhythm.follow(client.as_client())
    client.orders[0](_order("a"))
    run.train()
    assert rhythm.passed(1, planned=True).stage


def test_in_the_middle_of_an_accumulated_step_a_stage_waits_for_its_end(
    run: Run, rhythm: Rhythm
) -> None:
    run.train()
    assert not rhythm.passed(1, planned=True).stage
    run.optimizer.zero_grad()
    rhythm.ask_stage()
    run.model(torch.ones(4, 8)).sum().backward()
    half = rhythm.passed(2, planned=True)
    assert (half.stage, half.unfinished) == (False, WAITS)
    run.model(torch.ones(4, 8)).sum().backward()
    run.optimizer.step()
    assert rhythm.passed(3, planned=True).stage


def test_asked_again_of_the_same_step_it_says_the_same(run: Run, rhythm: Rhythm) -> None:
    """A stage that was skipped, for want of a slot or a daemon, is tried again by who wants it."""
    run.train()
    assert not rhythm.passed(1, planned=True).stage
    run.train()
    for _ in range(3):
        rhythm.ask_stage()
        due = rhythm.passed(2, planned=True)
        assert (due.stage, due.unfinished) == (True, "")


def test_a_step_that_a_scaler_left_out_is_no_half_step(run: Run, rhythm: Rhythm) -> None:
    """GradScaler skips the optimizer where gradients overflow; they are cleared all the same."""
    run.train()
    rhythm.passed(1, planned=True)
    rhythm.ask_stage()
    run.model(torch.ones(4, 8)).sum().backward()
    run.optimizer.zero_grad(set_to_none=True)
    assert rhythm.passed(2, planned=True).stage
