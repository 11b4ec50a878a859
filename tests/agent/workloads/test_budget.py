from hypothesis import given
from hypothesis import strategies as st

from evac.generation import Generation
from evacd.workloads.budget import Evictable, fit, human

evictables = st.lists(
    st.builds(
        Evictable,
        key=st.integers(0, 10_000),
        nbytes=st.integers(1, 100),
        durable=st.booleans(),
        generation=st.builds(Generation, st.integers(0, 2), st.integers(0, 9)),
    ),
    unique_by=lambda one: one.key,
)


@given(st.integers(-50, 500), st.integers(1, 100), st.integers(1, 16), evictables)
def test_what_fits_is_the_most_and_never_more_than_the_budget(
    free: int, each: int, wanted: int, evictable: list[Evictable]
) -> None:
    found = fit(free=free, each=each, wanted=wanted, evictable=evictable)

    everything = free + sum(one.nbytes for one in evictable)
    if found is None:
        assert everything < each
        return
    gained = sum(one.nbytes for one in evictable if one.key in found.evict)
    assert 1 <= found.slots <= wanted
    assert found.slots * each <= free + gained
    assert found.slots == wanted or (found.slots + 1) * each > everything


@given(st.integers(0, 500), st.integers(1, 100), st.integers(1, 16), evictables)
def test_nothing_that_is_not_durable_goes_before_what_is(
    free: int, each: int, wanted: int, evictable: list[Evictable]
) -> None:
    found = fit(free=free, each=each, wanted=wanted, evictable=evictable)

    gone = set(found.evict) if found else set()
    if any(one.key in gone and not one.durable for one in evictable):
        assert all(one.key in gone for one in evictable if one.durable)


def test_bytes_are_readable() -> None:
    assert human(0) == "0 B"
    assert human(1536 * 1024 * 1024) == "1.5 GiB"
    assert human(3 * 2**40) == "3 TiB"
