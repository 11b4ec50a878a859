"""With which window a node reckons before there is any notice."""

from dataclasses import replace

import pytest

from evacd.config import Config, PlanConfig
from evacd.parts import window_of


@pytest.mark.parametrize(
    ("cloud", "seconds"), [("aws", 120.0), ("gcp", 30.0), ("azure", 10.0), ("", 30.0)]
)
def test_it_is_what_the_cloud_gives(cloud: str, seconds: float) -> None:
    assert window_of(Config(), cloud) == seconds


def test_what_is_set_counts_more() -> None:
    config = replace(Config(), plan=PlanConfig(window_seconds=45.0))

    assert window_of(config, "aws") == 45.0
