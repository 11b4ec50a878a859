"""How old what is safe has become."""

from evac.generation import Generation
from evacd.facts import Candidate, Unit
from evacd.quiet import Ages


def unit(*steps: int, durable: int | None = None) -> Unit:
    candidates = tuple(Candidate(Generation(1, step), 10) for step in steps)
    return Unit(
        "a/b", 1, 0.0, ("lane",), candidates,
        durable=None if durable is None else Generation(1, durable),
    )  # fmt: skip


def test_the_age_counts_from_the_staging_and_not_from_the_writing() -> None:
    ages = Ages()
    ages.look([unit(5)], now=100.0)
    ages.look([unit(6, 5)], now=110.0)
    ages.look([unit(6, durable=5)], now=130.0)

    assert ages.seconds(now=131.0) == {"a/b": 31.0}


def test_before_the_first_durable_generation_there_is_no_age() -> None:
    ages = Ages()
    ages.look([unit(5)], now=100.0)

    assert ages.seconds(now=110.0) == {}


def test_a_newer_durable_generation_is_as_old_as_its_own_staging() -> None:
    ages = Ages()
    ages.look([unit(5)], now=100.0)
    ages.look([unit(6, durable=5)], now=110.0)
    ages.look([unit(durable=6)], now=120.0)

    assert ages.seconds(now=125.0) == {"a/b": 15.0}


def test_what_was_never_seen_staged_ages_from_when_it_was_heard_of() -> None:
    ages = Ages()
    ages.look([unit(durable=5)], now=100.0)
    ages.look([unit(durable=5)], now=150.0)

    assert ages.seconds(now=160.0) == {"a/b": 60.0}


def test_who_has_left_is_forgotten() -> None:
    ages = Ages()
    ages.look([unit(durable=5)], now=100.0)
    ages.look([], now=101.0)

    assert ages.seconds(now=102.0) == {}
