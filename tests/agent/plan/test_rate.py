"""What a lane's rate does with what is measured."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evacd.plan.rate import SLOWEST, SMALL_NBYTES, Rate, commit_after

rates = st.floats(1.0, 1e12)
transfers = st.tuples(st.integers(0, 10**13), st.floats(1e-6, 1e5))


class TestLaws:
    @given(rates, st.lists(transfers, max_size=30))
    def test_it_stays_between_the_assumption_and_all_that_was_seen(
        self, assumed: float, seen: list[tuple[int, float]]
    ) -> None:
        rate = Rate(assumed)
        for nbytes, seconds in seen:
            rate = rate.observed(nbytes, seconds)

        known = [assumed, *(nbytes / seconds for nbytes, seconds in seen)]
        assert max(min(known), SLOWEST) <= rate.bytes_per_second <= max(known)

    @given(rates, rates, st.floats(1.0, 60.0))
    def test_it_comes_to_what_is_measured_again_and_again(
        self, assumed: float, true: float, seconds: float
    ) -> None:
        rate = Rate(assumed)
        for _ in range(600):
            rate = rate.observed(round(true * seconds), seconds)

        assert math.isclose(rate.bytes_per_second, true, rel_tol=0.01, abs_tol=2.0)

    @given(rates, transfers)
    def test_one_transfer_moves_it_three_quarters_of_the_way_at_most(
        self, assumed: float, transfer: tuple[int, float]
    ) -> None:
        nbytes, seconds = transfer
        moved = Rate(assumed, measured=True).observed(nbytes, seconds).bytes_per_second - assumed

        assert abs(moved) <= 0.7501 * abs(nbytes / seconds - assumed)

    @given(rates, st.integers(), st.floats())
    def test_whatever_is_measured_it_stays_positive_and_finite(
        self, assumed: float, nbytes: int, seconds: float
    ) -> None:
        rate = Rate(assumed).observed(nbytes, seconds)

        assert 0 < rate.bytes_per_second < math.inf

    @given(rates, st.floats(1.1, 10.0), st.floats(0.1, 60.0))
    def test_bad_news_is_believed_sooner_than_good_news(
        self, assumed: float, factor: float, seconds: float
    ) -> None:
        fast = round(1e9 * factor * seconds)
        slow = round(1e9 / factor * seconds)
        rate = Rate(1e9)
        risen = rate.observed(fast, seconds).bytes_per_second - 1e9
        fallen = 1e9 - rate.observed(slow, seconds).bytes_per_second

        assert fallen / (1e9 - slow / seconds) >= risen / (fast / seconds - 1e9) - 1e-9


class TestExamples:
    def test_small_objects_say_nothing_of_a_link(self) -> None:
        rate = Rate(1e8)
        for _ in range(1000):
            rate = rate.observed(4096, 0.05)

        assert rate == Rate(1e8)

    def test_a_small_object_that_took_long_is_a_stall(self) -> None:
        assert Rate(1e8, measured=True).observed(4096, 5.0).bytes_per_second < 5e7

    def test_a_long_transfer_weighs_more_than_a_short_one(self) -> None:
        short = Rate(1e8, measured=True).observed(2 * SMALL_NBYTES, 2 * SMALL_NBYTES / 1e9)
        long = Rate(1e8, measured=True).observed(10**10, 10.0)

        assert short.bytes_per_second < 1.01e8 < 5e8 < long.bytes_per_second

    def test_it_says_whether_it_is_still_an_assumption(self) -> None:
        assert not Rate(1e8).measured
        assert Rate(1e8).observed(10**9, 1.0).measured

    def test_a_short_probe_gives_way_to_the_first_flush_and_long_experience_does_not(self) -> None:
        probed = Rate(1e8).observed(4 * SMALL_NBYTES, 0.1)
        known = Rate(probed.bytes_per_second, measured=True)

        assert probed.observed(10**9, 1.0).bytes_per_second > 7e8
        assert known.observed(10**9, 1.0).bytes_per_second < 2e8

    @given(rates, transfers)
    def test_what_was_held_back_only_ever_raises_it(
        self, assumed: float, transfer: tuple[int, float]
    ) -> None:
        before = Rate(assumed, measured=True)
        after = before.at_least(*transfer)

        assert after == before or after.bytes_per_second > assumed

    def test_a_commit_is_believed_half_way_and_never_a_minute(self) -> None:
        assert commit_after(0.05, 0.01) == pytest.approx(0.03)
        assert commit_after(0.0, 60.0) == 2.5

    @pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
    def test_a_rate_that_no_plan_can_use_is_refused(self, value: float) -> None:
        with pytest.raises(ValueError, match="expected one above 0"):
            Rate(value)

    def test_the_first_measurement_replaces_the_assumption(self) -> None:
        assert Rate(1e8).observed(10**9, 0.5) == Rate(2e9, measured=True, seen_seconds=0.5)
