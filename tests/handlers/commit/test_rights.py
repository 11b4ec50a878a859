"""Stores whose rights are narrow: what we may not delete or replace there costs no generation its commit."""

from collections.abc import Callable

import pytest

from evac.commit import State, survey, verify, was_ever_complete
from evac.errors import StoreMissing, StoreRejected, StoreUnavailable
from evac.generation import Generation
from evac.store import Store
from tests.handlers.commit.made import PREFIX, commit
from tests.handlers.commit.test_committing import Cut


class WriteOnce(Cut):
    """It lets nothing be deleted or replaced, as a bucket does that is under a retention policy."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, 1 << 30)
        self.refused: list[str] = []

    async def put(
        self, key: str, data: memoryview, *, progress: Callable[[int], None] | None = None
    ) -> None:
        try:
            await self.get(key)
        except StoreMissing:
            await super().put(key, data, progress=progress)
        else:
            self._refuse(key)

    async def delete(self, key: str) -> None:
        self._refuse(key)

    def _refuse(self, key: str) -> None:
        self.refused.append(key.rpartition("/")[2])
        raise StoreRejected(key, "a retention policy forbids to replace it")


async def test_where_nothing_can_be_deleted_or_replaced_generation_after_generation_counts(
    store: Store,
) -> None:
    narrow = WriteOnce(store)

    for step in (10, 20):
        await commit(narrow, Generation(1, step), 1)

    assert {name.partition("-")[0] for name in narrow.refused} == {".metadata", "evac"}
    found = {one.generation.step: one.state for one in await survey(store, PREFIX)}
    assert found == {10: State.COMPLETE, 20: State.COMPLETE}
    for step in (10, 20):
        assert await verify(store, PREFIX, Generation(1, step)) == ()


class NoMarker(Cut):
    """It lets no marker be written, not even the first."""

    async def put(
        self, key: str, data: memoryview, *, progress: Callable[[int], None] | None = None
    ) -> None:
        if key.endswith("evac-job.json"):
            raise StoreRejected(key, "access denied")
        await super().put(key, data, progress=progress)


async def test_a_first_generation_without_its_marker_is_not_called_safe(store: Store) -> None:
    """Without it, who finds nothing some day would begin anew and say nothing."""
    with pytest.raises(StoreRejected):
        await commit(NoMarker(store, 1 << 30), Generation(1, 10), 1)

    assert not await was_ever_complete(store, PREFIX)


class Forgetful(Cut):
    """It is away whenever something is to be deleted."""

    async def delete(self, key: str) -> None:
        raise StoreUnavailable(key, "connection lost")


async def test_a_leftover_that_cannot_be_deleted_now_costs_no_other_try(store: Store) -> None:
    await commit(Forgetful(store, 1 << 30), Generation(1, 10), 1)

    assert await verify(store, PREFIX, Generation(1, 10)) == ()
