"""The interval: the published figures, and the laws behind them."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from evac.interval import Costs, best, bounded, break_even, shares, verdict

_HOUR = 3600.0

costs_of_jobs = st.builds(
    Costs,
    stall=st.floats(0.001, 600),
    restart=st.floats(0, 7200),
    between=st.floats(60, 30 * 24 * _HOUR),
)


@pytest.mark.parametrize(
    ("between", "stall", "interval", "waste"),
    [
        (1 * _HOUR, 0.2, 39.7, 0.094),
        (1 * _HOUR, 1.0, 89.3, 0.107),
        (1 * _HOUR, 6.0, 222.4, 0.141),
        (1 * _HOUR, 60.0, 746.7, 0.266),
        (6 * _HOUR, 1.0, 210.3, 0.0235),
        (6 * _HOUR, 60.0, 1682.2, 0.088),
    ],
)
def test_known_jobs_get_the_interval_that_was_computed_for_them(
    between: float, stall: float, interval: float, waste: float
) -> None:
    """R = 300 s throughout."""
    costs = Costs(stall=stall, restart=300.0, between=between)
    found = best(costs)
    assert found == pytest.approx(interval, abs=0.05)
    # Published to two or three digits, for Young's interval; the curve is flat there.
    assert 1 - shares(costs, found).useful == pytest.approx(waste, rel=0.01)


@given(costs_of_jobs, st.floats(0.1, 10))
def test_no_other_interval_costs_clearly_less(costs: Costs, factor: float) -> None:
    """Young's interval is the minimum of stalls and redone steps; ours adds R and C to it."""
    interval = best(costs)
    assume(interval * max(factor, 1) / 2 < costs.between)
    here, there = shares(costs, interval), shares(costs, interval * factor)
    off = interval / math.sqrt(2 * costs.stall * costs.between)
    least = (here.stalls + here.redone) / ((off + 1 / off) / 2)
    assert there.stalls + there.redone >= least * (1 - 1e-9)


@given(costs_of_jobs, st.floats(0.001, 1))
def test_stalls_never_take_more_than_their_share(costs: Costs, share: float) -> None:
    assert shares(costs, bounded(costs, share=share)).stalls <= share * (1 + 1e-9)


@given(costs_of_jobs)
def test_rarer_reclaims_never_ask_for_more_stages(costs: Costs) -> None:
    rarer = Costs(costs.stall, costs.restart, costs.between * 2)
    assert best(rarer) >= best(costs)


@given(costs_of_jobs)
def test_break_even_is_where_the_job_starts_to_get_something_done(costs: Costs) -> None:
    limit = break_even(costs)

    def useful(between: float) -> float:
        at = Costs(costs.stall, costs.restart, between)
        return shares(at, best(at)).useful

    assert useful(limit * 1.001) > 0
    assert useful(limit * 0.999) <= 0


def test_a_job_that_only_burns_hours_is_told_so_in_numbers() -> None:
    costs = Costs(stall=6.0, restart=300.0, between=240.0)
    words = verdict(costs, bounded(costs, share=0.05))
    assert "net consumer" in words
    assert "every 4 min 00 s" in words
    # R + T/2 with T = 6 / 0.05
    assert "6 min 00 s are lost" in words


def test_a_job_that_is_never_reclaimed_stages_never() -> None:
    costs = Costs(stall=1.0, restart=300.0, between=math.inf)
    assert best(costs) == math.inf


@pytest.mark.parametrize(
    "wrong", [{"stall": -1.0}, {"restart": math.inf}, {"between": 0.0}, {"between": math.nan}]
)
def test_what_is_no_time_is_refused_by_name(wrong: dict[str, float]) -> None:
    given_costs = {"stall": 1.0, "restart": 1.0, "between": 1.0, **wrong}
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Costs(**given_costs)
