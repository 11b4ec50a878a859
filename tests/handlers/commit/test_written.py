"""What a failed try has left in a store is not sent again; what is not sure to be the same is."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evac.commit import Share, Written, put_shares, verify
from evac.errors import StoreUnavailable
from evac.store import Entry, Store
from evac.store.metered import Metered, Observation
from tests.handlers.commit.made import PREFIX
from tests.handlers.commit.test_committing import Cut
from tests.handlers.commit.test_shares import G, share

WORLD = 3
FOLDER = f"{PREFIX}/{G.directory}"


@dataclass
class Sent:
    """Bodies that were sent, and how often each was."""

    times: Counter[str]

    def observe(self, one: Observation) -> None:
        if one.verb == "put" and one.key.endswith(".distcp") and not one.reason:
            self.times[one.key.removeprefix(f"{FOLDER}/")] += 1


@pytest.fixture
def sent() -> Sent:
    return Sent(Counter())


def shares(
    store: Store, *, weights: bool = False, data: Callable[[int], bytes] = lambda _: b""
) -> list[Share]:
    made = [share(store, rank, WORLD, weights=weights, data=data(rank)) for rank in range(WORLD)]
    # Where they are not apart, nothing goes beside the bodies.
    return made if weights else [replace(one, weights_metadata=b"") for one in made]


async def all_but_manifests(store: Store, sent: Sent, written: Written) -> None:
    """A try that fails when all bodies are there: three of them, and what `.metadata` will be."""
    with pytest.raises(StoreUnavailable):
        await put_shares(PREFIX, shares(Cut(watched(store, sent), WORLD + 1)), written=written)
    assert sent.times == {f"__{rank}_0.distcp": 1 for rank in range(WORLD)}


def watched(store: Store, sent: Sent) -> Store:
    return Metered(store, sent.observe, clock=lambda: 0.0)


@pytest.mark.parametrize("writes", range(24))
async def test_wherever_a_try_fails_the_next_sends_no_body_that_is_there(
    store: Store, sent: Sent, writes: int
) -> None:
    written = Written()
    cut = Cut(watched(store, sent), writes)
    try:
        await put_shares(PREFIX, shares(cut, weights=True), written=written)
    except StoreUnavailable:
        again = shares(watched(store, sent), weights=True)
        assert await put_shares(PREFIX, again, written=written)

    assert sent.times == dict.fromkeys(sent.times, 1)
    assert len(sent.times) == 2 * WORLD
    assert await verify(store, PREFIX, G) == ()


async def test_a_second_launch_of_the_same_step_sends_its_own_bytes(
    store: Store, sent: Sent
) -> None:
    await all_but_manifests(store, sent, written := Written())

    others = shares(watched(store, sent), data=lambda rank: f"other {rank}".encode())
    assert await put_shares(PREFIX, others, written=written)

    assert sent.times == {f"__{rank}_0.distcp": 2 for rank in range(WORLD)}
    assert await verify(store, PREFIX, G) == ()


@pytest.mark.parametrize("damage", ["deleted", "cut short"])
async def test_what_is_not_there_any_more_is_sent_again(
    store: Store, sent: Sent, damage: str
) -> None:
    await all_but_manifests(store, sent, written := Written())
    key = f"{FOLDER}/__0_0.distcp"
    if damage == "deleted":
        await store.delete(key)
    else:
        await store.put(key, memoryview(b"short"))

    assert await put_shares(PREFIX, shares(watched(store, sent)), written=written)

    assert {key: n for key, n in sent.times.items() if n > 1} == {"__0_0.distcp": 2}
    assert await verify(store, PREFIX, G) == ()


class Mute(Cut):
    """It lists nothing."""

    async def list(self, prefix: str) -> Sequence[Entry]:
        raise StoreUnavailable(prefix, "one of the peers is silent")


async def test_a_store_that_cannot_say_what_is_there_gets_all_of_it(
    store: Store, sent: Sent
) -> None:
    await all_but_manifests(store, sent, written := Written())
    with pytest.raises(StoreUnavailable, match="silent"):  # by `finish`, which has to know
        await put_shares(PREFIX, shares(Mute(watched(store, sent), 100)), written=written)

    assert sent.times == {f"__{rank}_0.distcp": 2 for rank in range(WORLD)}


async def test_of_what_counts_nothing_is_remembered(store: Store) -> None:
    written = Written()
    assert await put_shares(PREFIX, shares(store), written=written)

    assert not written.any_below(store.url, FOLDER)


KEYS = st.sampled_from([f"job/step-{n}.1/{name}" for n in (1, 10) for name in ("a", "b")])
BODIES = st.tuples(st.integers(0, 3), st.tuples(st.integers(0, 2)))


@given(st.lists(st.tuples(KEYS, BODIES)), KEYS, BODIES, st.dictionaries(KEYS, st.integers(0, 3)))
def test_only_what_was_put_last_and_is_there_as_it_was_is_spared(
    noted: list[tuple[str, tuple[int, tuple[int, ...]]]],
    key: str,
    body: tuple[int, tuple[int, ...]],
    files: Mapping[str, int],
) -> None:
    written = Written()
    for one, (nbytes, sums) in noted:
        written.note("file:///store", one, nbytes, sums)

    last = dict(noted).get(key)
    there = written.is_there("file:///store", key, body[1], files)

    assert there == (last is not None and last[1] == body[1] and files.get(key) == last[0])
    assert not written.is_there("file:///other", key, body[1], files)
    written.forget("file:///store", "job/step-1.1")
    assert not written.any_below("file:///store", "job/step-1.1")
    assert written.any_below("file:///store", "job/step-10.1") == any(
        "step-10" in one for one, _ in noted
    )
