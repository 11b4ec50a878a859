from hypothesis import given
from hypothesis import strategies as st

from evac.generation import Generation
from evacd.workloads.budget import Evictable, Room, fit, human

evictables = st.lists(
    st.builds(
        Evictable,
        key=st.integers(0, 10_000),
        nbytes=st.integers(1, 100),
        mine=st.booleans(),
        durable=st.booleans(),
        generation=st.builds(Generation, st.integers(0, 2), st.integers(0, 9)),
    ),
    unique_by=lambda one: one.key,
)


rooms = st.builds(Room, st.integers(0, 500), st.integers(0, 550))


@given(rooms, rooms, st.integers(1, 100), st.integers(1, 16), evictables)
def test_what_fits_is_the_most_and_never_more_than_the_budget_or_the_share(
    budget: Room, share: Room, each: int, wanted: int, evictable: list[Evictable]
) -> None:
    found = fit(budget=budget, share=share, each=each, wanted=wanted, evictable=evictable)

    everything = budget.free + sum(one.nbytes for one in evictable)
    allowed = share.free + sum(one.nbytes for one in evictable if one.mine)
    if isinstance(found, str):
        assert min(everything, allowed) < each
        assert (human(budget.nbytes) if everything < each else human(share.nbytes)) in found
        return
    gone = [one for one in evictable if one.key in found.evict]
    assert len(gone) == len(found.evict)
    assert 1 <= found.slots <= wanted
    assert found.slots * each <= budget.free + sum(one.nbytes for one in gone)
    assert found.slots * each <= share.free + sum(one.nbytes for one in gone if one.mine)
    assert found.slots == wanted or (found.slots + 1) * each > min(everything, allowed)


@given(rooms, rooms, st.integers(1, 100), st.integers(1, 16), evictables)
def test_nothing_that_is_not_durable_goes_before_what_is(
    budget: Room, share: Room, each: int, wanted: int, evictable: list[Evictable]
) -> None:
    found = fit(budget=budget, share=share, each=each, wanted=wanted, evictable=evictable)

    gone = set() if isinstance(found, str) else set(found.evict)
    for mine in (True, False):
        if any(one.key in gone and not one.durable for one in evictable if one.mine is mine):
            assert all(one.key in gone for one in evictable if one.durable and one.mine)


@given(rooms, st.integers(1, 100), st.integers(1, 16), evictables)
def test_nobody_pays_for_a_share_but_its_owner(
    share: Room, each: int, wanted: int, evictable: list[Evictable]
) -> None:
    plenty = Room(1_000_000, 0)

    found = fit(budget=plenty, share=share, each=each, wanted=wanted, evictable=evictable)

    gone = () if isinstance(found, str) else found.evict
    assert all(one.mine for one in evictable if one.key in gone)


def test_bytes_are_readable() -> None:
    assert human(0) == "0 B"
    assert human(1536 * 1024 * 1024) == "1.5 GiB"
    assert human(3 * 2**40) == "3 TiB"
