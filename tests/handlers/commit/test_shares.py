"""Weights and the rest of a generation, put by several nodes, cut off anywhere."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from evac.commit import (
    Share,
    State,
    chunk_sums,
    expendable,
    finish_all,
    foreign,
    jobs,
    put_shares,
    retain,
    survey,
    verify,
    was_ever_complete,
)
from evac.errors import GenerationError, StoreUnavailable
from evac.generation import Generation
from evac.segment import PAGE, BodyFile
from evac.store import Store
from tests.handlers.commit.made import METADATA_BYTES, PREFIX, WEIGHTS_METADATA_BYTES, manifest
from tests.handlers.commit.test_committing import Cut

G = Generation(incarnation=1, step=10)
ENDS = ("_0.distcp", ".manifest.json")


def share(
    store: Store, rank: int, world: int, *, weights: bool = True, data: bytes = b"", step: int = 10
) -> Share:
    """One rank's, with a page of weights and some bytes more."""
    body = memoryview((data or f"rank {rank}".encode()).ljust(PAGE, b"w") + b"rest of it" * 10)
    files = [BodyFile(f"__{rank}_0.distcp", 0, len(body))]
    if weights:
        files = [
            BodyFile(f"weights/__{rank}_0.distcp", 0, PAGE, "weights"),
            BodyFile(f"__{rank}_0.distcp", PAGE, len(body) - PAGE),
        ]

    async def sums(place: int) -> tuple[int, ...]:
        one = files[place]
        return chunk_sums(body[one.offset : one.offset + one.nbytes])

    return Share(
        store=store,
        manifest=replace(manifest(Generation(1, step), rank, world), files=()),
        body=body,
        files=tuple(files),
        metadata=METADATA_BYTES,
        weights_metadata=WEIGHTS_METADATA_BYTES,
        sums=sums,
    )


async def whole(store: Store) -> list[str]:
    """Kinds of what is complete, once everything that can be is."""
    await finish_all(store, PREFIX)
    return [s.kind for s in await survey(store, PREFIX) if s.state is State.COMPLETE]


@pytest.mark.parametrize("writes", range(16))
async def test_wherever_it_is_cut_off_weights_count_once_all_are_there_and_so_does_the_whole(
    store: Store, writes: int
) -> None:
    # Weights' files, then pending, manifest of each beside the rest's files, then the whole's own.
    cut = Cut(store, writes)
    try:
        assert await put_shares(PREFIX, [share(cut, rank, 2) for rank in range(2)])
    except StoreUnavailable:
        assert writes < 15
    else:
        assert writes == 15
    kinds = await whole(store)

    names = {entry.key.removeprefix(f"{PREFIX}/") for entry in await store.list(PREFIX)}
    of_weights = {f"{G.directory}/weights/__{r}{e}" for r in range(2) for e in ENDS}
    of_rest = {f"{G.directory}/__{r}{e}" for r in range(2) for e in ENDS}
    assert kinds == (
        ["full"] if of_weights | of_rest <= names else ["weights"] if of_weights <= names else []
    )
    assert kinds == ["full"] or not await was_ever_complete(store, PREFIX)
    assert await foreign(store, PREFIX) == ()
    for kind in kinds:
        assert await verify(store, PREFIX, G, kind=kind) == ()


async def test_the_rest_follows_without_writing_the_weights_again(store: Store) -> None:
    shares = [share(store, rank, 2) for rank in range(2)]
    moved: list[int] = []

    assert await put_shares(PREFIX, shares, kind="weights", progress=moved.append)
    assert sum(moved) == 2 * PAGE
    assert await whole(store) == ["weights"]
    assert await jobs(store) == (PREFIX,)
    assert not await was_ever_complete(store, PREFIX)
    moved.clear()
    assert await put_shares(PREFIX, shares, progress=moved.append)

    assert sum(moved) == 2 * 100
    assert await whole(store) == ["full"]
    assert await verify(store, PREFIX, G) == await verify(store, PREFIX, G, kind="weights") == ()


async def test_one_node_saves_all_and_the_other_its_weights_then_the_weights_are_whole(
    store: Store,
) -> None:
    here, there = share(store, 0, 2), share(store, 1, 2)

    assert not await put_shares(PREFIX, [there], kind="weights")
    assert not await put_shares(PREFIX, [here])

    full, weights = await survey(store, PREFIX)
    assert (full.state, full.reason) == (State.TORN, "no manifest of rank 1")
    assert (weights.state, weights.kind) == (State.COMPLETE, "weights")
    assert expendable([full, weights], keep=1) == ()


async def test_a_rank_without_weights_takes_part(store: Store) -> None:
    shares = [share(store, 0, 2), share(store, 1, 2, weights=False)]

    assert await put_shares(PREFIX, shares, kind="weights")
    assert await whole(store) == ["weights"]
    assert await put_shares(PREFIX, shares)
    assert await whole(store) == ["full"]


async def test_weights_that_do_not_lie_apart_cannot_be_saved_alone(store: Store) -> None:
    whole_body = replace(share(store, 0, 1, weights=False), weights_metadata=b"")

    with pytest.raises(GenerationError, match="apart"):
        await put_shares(PREFIX, [whole_body], kind="weights")
    assert await put_shares(PREFIX, [whole_body])
    assert await whole(store) == ["full"]
    assert not any("weights/" in entry.key for entry in await store.list(PREFIX))


async def test_a_zombies_weights_fence_the_whole_and_are_not_overwritten(store: Store) -> None:
    await put_shares(PREFIX, [share(store, 0, 1, data=b"other")], kind="weights")

    with pytest.raises(GenerationError, match="fenced"):
        await put_shares(PREFIX, [share(store, 0, 1)])
    assert await whole(store) == ["weights"]
    assert await verify(store, PREFIX, G, kind="weights") == ()


async def test_weights_stay_while_they_are_newer_than_all_that_is_whole(store: Store) -> None:
    def at(step: int) -> Sequence[Share]:
        return [share(store, 0, 1, step=step)]

    await put_shares(PREFIX, at(10), kind="weights")
    await put_shares(PREFIX, at(20))
    await put_shares(PREFIX, at(30), kind="weights")

    assert await retain(store, PREFIX, keep=1) == (G,)
    assert [s.generation.step for s in await survey(store, PREFIX)] == [30, 20]
    assert await store.list(f"{PREFIX}/{G.directory}") == []
