import math

import pytest

from evac.human import rate, seconds, size


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (9_994, "9.99 kB"),
        (9_996, "10.0 kB"),
        (99_960, "100 kB"),
        (999_600, "1.00 MB"),
        (4_100_000_000, "4.10 GB"),
        (10**30, "1000000000000 EB"),
        (math.inf, "? B"),
    ],
)
def test_a_size_has_three_digits_and_the_unit_that_fits(nbytes: float, text: str) -> None:
    assert size(nbytes) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.00 s"),
        (0.994, "0.99 s"),
        (0.996, "1.0 s"),
        (28.0, "28.0 s"),
        (-3.25, "-3.2 s"),
        (99.96, "1 min 40 s"),
        (125.0, "2 min 05 s"),
        (3599.7, "1 h 00 min"),
        (math.nan, "? s"),
    ],
)
def test_a_duration_reads_as_a_person_would_say_it(value: float, text: str) -> None:
    assert seconds(value) == text


def test_a_rate_is_a_size_per_second() -> None:
    assert rate(1.78e9) == "1.78 GB/s"
