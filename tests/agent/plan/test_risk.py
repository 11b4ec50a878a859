"""What would be lost now: the laws, for all units and windows; then the figures of one node."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from evac.generation import Generation
from evacd.facts import Candidate, Unit
from evacd.plan import schedule
from evacd.plan.risk import Risk, UnitRisk, is_safe, risk

LANES = ("fast", "slow")
RATES = {"fast": 8.0, "slow": 2.0}
RESERVE, COMMIT, NOW = 2.0, 0.5, 1000.0


@st.composite
def unit_lists(draw: st.DrawFn) -> list[Unit]:
    found = []
    for i in range(draw(st.integers(0, 6))):
        sizes = draw(st.lists(st.integers(0, 64), max_size=3))
        callback = draw(st.booleans()) and not sizes
        candidates = tuple(Candidate(Generation(1, 100 - j), n) for j, n in enumerate(sizes))
        found.append(
            Unit(
                name=f"alice/job-{i}",
                priority=draw(st.integers(0, 3)),
                arrived=float(draw(st.integers(0, 2))),
                lanes=(draw(st.sampled_from(LANES)),),
                candidates=candidates,
                turn_seconds=float(draw(st.integers(0, 12))) if callback else None,
                durable=draw(st.none() | st.integers(0, 90).map(lambda n: Generation(1, n))),
            )
        )
    return found


windows = st.integers(-5, 60).map(float)


def risk_of(units: list[Unit], window: float) -> Risk:
    return risk(
        units,
        window_seconds=window,
        rates=RATES,
        reserve=RESERVE,
        commit_seconds=COMMIT,
        now=NOW,
    )


@given(unit_lists(), windows)
def test_every_unit_is_judged_once(units: list[Unit], window: float) -> None:
    assert sorted(u.unit for u in risk_of(units, window).units) == sorted(u.name for u in units)


@given(unit_lists(), windows)
def test_who_is_saved_is_who_has_a_step_in_time_in_the_plan_for_that_window(
    units: list[Unit], window: float
) -> None:
    plan = schedule(
        [unit for unit in units if not is_safe(unit)],
        deadline=NOW + window,
        rates=RATES,
        reserve=RESERVE,
        commit_seconds=COMMIT,
        now=NOW,
    )
    in_time = {step.unit: step.generation for step in plan.steps if not step.overtime}

    for one in risk_of(units, window).units:
        unit = next(u for u in units if u.name == one.unit)
        assert one.lost == (one.unit not in in_time and not is_safe(unit))
        assert one.saved == in_time.get(one.unit)


@given(unit_lists(), windows)
def test_a_margin_is_negative_exactly_where_a_step_comes_too_late(
    units: list[Unit], window: float
) -> None:
    found = risk_of(units, window)

    late = [one for one in found.units if one.margin_seconds is not None and one.lost]
    assert all(one.margin_seconds is not None and one.margin_seconds < 0 for one in late)
    for one in found.units:
        if one.margin_seconds is not None and not one.lost:
            assert one.margin_seconds >= 0
    steps = [one for one in found.units if one.margin_seconds is not None]
    if steps:
        assert (found.margin_seconds < 0) == bool(late)
        assert found.margin_seconds == min(one.margin_seconds or 0.0 for one in steps)
    else:
        assert found.margin_seconds == window - RESERVE


@given(unit_lists(), windows)
def test_who_would_be_lost_is_told_why(units: list[Unit], window: float) -> None:
    for one in risk_of(units, window).units:
        assert bool(one.reason) == one.lost


@given(unit_lists(), windows)
def test_nothing_is_at_risk_of_who_has_staged_nothing_newer_than_what_is_durable(
    units: list[Unit], window: float
) -> None:
    kept = [replace(u, candidates=(), turn_seconds=None, durable=Generation(1, 5)) for u in units]

    found = risk_of(kept, window)

    assert found.at_risk_bytes == 0
    assert all(one.at_risk_steps == 0 and not one.lost for one in found.units)


@given(unit_lists(), windows, st.integers(0, 30))
def test_a_longer_window_loses_nobody_who_was_saved_by_a_shorter_one_at_the_top(
    units: list[Unit], window: float, more: int
) -> None:
    # Only the most urgent of a lane: a lower one may have to make room for a newer generation.
    found, longer = risk_of(units, window), risk_of(units, window + more)
    for lane in LANES:
        first = next((u for u in found.units if _lane(units, u) == lane), None)
        if first is not None and not first.lost:
            assert not next(u for u in longer.units if u.unit == first.unit).lost


def _lane(units: list[Unit], one: UnitRisk) -> str:
    return next(u.lanes[0] for u in units if u.name == one.unit)


def test_the_figures_are_those_of_the_newest_generation() -> None:
    staged = (Candidate(Generation(1, 120), 40), Candidate(Generation(1, 110), 40))
    unit = Unit("alice/llm", 5, 0.0, ("fast",), staged, durable=Generation(1, 100))

    found = risk_of([unit], 30.0)

    assert found.units == (
        UnitRisk(
            unit="alice/llm",
            newest=Generation(1, 120),
            durable=Generation(1, 100),
            at_risk_bytes=40,
            at_risk_steps=20,
            saved=Generation(1, 120),
            weights_only=False,
            margin_seconds=30.0 - RESERVE - COMMIT - 40 / 8.0,
            lost=False,
            reason="",
        ),
    )
    assert found.margin_seconds == 22.5


def test_before_the_first_durable_generation_no_number_of_steps_is_told() -> None:
    unit = Unit("alice/llm", 5, 0.0, ("fast",), (Candidate(Generation(1, 120), 40),))

    assert risk_of([unit], 30.0).units[0].at_risk_steps is None


def test_a_new_start_behind_what_is_durable_risks_no_steps() -> None:
    unit = Unit(
        "a/b", 5, 0.0, ("fast",), (Candidate(Generation(2, 90), 8),), durable=Generation(1, 100)
    )

    assert risk_of([unit], 30.0).units[0].at_risk_steps == 0


def test_what_is_short_is_told_in_seconds() -> None:
    unit = Unit("alice/llm", 5, 0.0, ("slow",), (Candidate(Generation(1, 120), 100),))

    found = risk_of([unit], 30.0)

    assert found.margin_seconds == -22.5
    assert found.lost == found.units
    assert "28.0 s are left" in found.units[0].reason


@given(unit_lists(), windows)
def test_where_every_store_is_dead_all_that_is_not_durable_is_lost_and_the_window_is_short(
    units: list[Unit], window: float
) -> None:
    found = risk(
        units,
        window_seconds=window,
        rates=RATES,
        reserve=RESERVE,
        commit_seconds=COMMIT,
        now=NOW,
        dead=dict.fromkeys(LANES, "connection refused"),
    )

    for unit, one in zip(sorted(units, key=_name), sorted(found.units, key=_unit), strict=True):
        if unit.candidates:
            assert one.lost
            assert one.reason == "connection refused"
            assert found.margin_seconds <= -max(window, 0.0)


@given(unit_lists(), windows)
def test_a_lane_that_is_dead_saves_no_more_than_if_it_were_not_there(
    units: list[Unit], window: float
) -> None:
    units = [unit for unit in units if unit.turn_seconds is None]
    both = [replace(unit, lanes=LANES) for unit in units]
    alone = [replace(unit, lanes=("slow",)) for unit in units]

    def lost(among: list[Unit], **dead: str) -> list[str]:
        found = risk(
            among,
            window_seconds=window,
            rates=RATES,
            reserve=RESERVE,
            commit_seconds=COMMIT,
            now=NOW,
            dead=dead,
        )
        return [one.unit for one in found.lost]

    assert lost(both, fast="HTTP 503") == lost(alone)


def test_who_was_lost_under_the_order_is_lost_whatever_the_plan_says() -> None:
    unit = Unit("a/job", 1, 0.0, ("fast",), (Candidate(Generation(1, 5), 8),))
    found = risk(
        [unit],
        window_seconds=60.0,
        rates=RATES,
        reserve=RESERVE,
        commit_seconds=COMMIT,
        now=NOW,
        lost={"a/job": "connection reset"},
    )

    assert [(one.unit, one.reason) for one in found.lost] == [("a/job", "connection reset")]
    assert found.margin_seconds < 0


def _name(unit: Unit) -> str:
    return unit.name


def _unit(one: UnitRisk) -> str:
    return one.unit
