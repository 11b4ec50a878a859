"""Health can be denied, part by part."""

import pytest

from evacd.health import Deaf
from evacd.report.vitals import LATE_SECONDS, SILENT_SECONDS, Pulse, Vitals, healthy, ready

WELL = Vitals(pulse=Pulse(at=100.0), sockets=True)


def test_a_daemon_that_is_well_is_healthy_and_ready() -> None:
    assert healthy(WELL, now=100.0).good
    assert ready(WELL, deaf_limit=120.0).good


def test_before_the_first_beat_nothing_is_held_against_it() -> None:
    assert healthy(Vitals(), now=100.0).good


@pytest.mark.parametrize(
    ("vitals", "part", "hint"),
    [
        (Vitals(pulse=Pulse(100.0, late=LATE_SECONDS + 0.1)), "loop", "late"),
        (Vitals(pulse=Pulse(99.9 - SILENT_SECONDS)), "loop", "no beat"),
        (Vitals(pulse=Pulse(100.0), dead=("flush",)), "tasks", "flush"),
    ],
)
def test_what_is_wrong_is_named(vitals: Vitals, part: str, hint: str) -> None:
    verdict = healthy(vitals, now=100.0)

    assert not verdict.good
    assert hint in verdict.parts[part]
    assert [name for name, why in verdict.parts.items() if why] == [part]


def test_a_source_may_be_silent_for_a_while() -> None:
    silent = Vitals(sockets=True, deaf=(Deaf("a", 119.0, "?"), Deaf("b", 121.0, "HTTP 404")))

    said = ready(silent, deaf_limit=120.0).parts["sources"]

    assert said == "b: no answer for 121 s: HTTP 404"


@pytest.mark.parametrize(
    ("vitals", "part"),
    [
        (Vitals(sockets=False), "sockets"),
        (Vitals(sockets=True, waiting="no source has answered yet"), "sources"),
        (Vitals(sockets=True, stores={"s3://b": "no credentials"}), "store"),
        (Vitals(sockets=True, state="/var/lib/evac: no space left"), "state"),
    ],
)
def test_not_ready_says_why(vitals: Vitals, part: str) -> None:
    verdict = ready(vitals, deaf_limit=120.0)

    assert not verdict.good
    assert verdict.parts[part]
