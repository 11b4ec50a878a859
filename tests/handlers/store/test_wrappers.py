"""Stores that wrap a store: each is a store itself, and adds its one thing."""

import asyncio
import random
import threading
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evac._clock import monotonic
from evac.errors import StoreError, StoreMissing, StoreRejected, StoreUnavailable
from evac.store import Store, open_store
from evac.store.metered import Metered, Observation
from evac.store.paced import Pace, Paced
from evac.store.retry import Retry
from tests.handlers.store.contract import MIB, StoreContract
from tests.handlers.store.memory_store import MemoryStore

LOST = StoreUnavailable("a", "connection lost")


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore()


class TestRetry(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return Retry(MemoryStore(), sleep=asyncio.sleep)


class TestPaced(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return Paced(MemoryStore(), 1e12, clock=monotonic)


class TestMetered(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return Metered(MemoryStore(), lambda _: None, clock=monotonic)


class Waits:
    """Counts what it is asked to sleep, and does not."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


async def test_what_may_help_is_tried_again_after_growing_waits() -> None:
    waits = Waits()
    within = MemoryStore([LOST] * 4)
    store = Retry(within, sleep=waits, first=1.0, longest=3.0, chance=lambda: 1.0)

    await store.create("a", b"x")

    assert within.calls == ["create"] * 5
    assert waits.seconds == [1.0, 2.0, 3.0, 3.0]


async def test_waits_are_not_drawn_from_the_programs_own_random_numbers() -> None:
    """It would train with others, and ranks that are seeded alike would come back together."""
    ranks = []
    for _ in range(2):
        random.seed(7)
        before = random.getstate()
        waits = Waits()
        await Retry(MemoryStore([LOST] * 4), sleep=waits).list("")
        assert random.getstate() == before
        ranks.append(waits.seconds)
    assert ranks[0] != ranks[1]


async def test_tries_end_with_the_last_error() -> None:
    store = Retry(MemoryStore([LOST] * 5), sleep=Waits())
    with pytest.raises(StoreUnavailable, match="connection lost"):
        await store.list("")


@pytest.mark.parametrize("error", [StoreRejected("a", "denied"), StoreMissing("a", "not there")])
async def test_what_cannot_help_is_not_tried_again(error: StoreError) -> None:
    within, waits = MemoryStore([error]), Waits()
    with pytest.raises(type(error)):
        await Retry(within, sleep=waits).get("a")
    assert (within.calls, waits.seconds) == (["get"], [])


async def test_waits_differ_so_that_nodes_do_not_come_back_together() -> None:
    waits = Waits()
    for _ in range(8):
        await Retry(MemoryStore([LOST]), sleep=waits, first=1.0).list("")
    assert len(set(waits.seconds)) > 1
    assert all(0 <= one <= 1.0 for one in waits.seconds)


async def test_progress_counts_no_byte_twice_over_several_tries() -> None:
    seen: list[int] = []
    store = Retry(MemoryStore([LOST, LOST]), sleep=Waits())

    await store.put("a", memoryview(bytearray(3 * MIB + 1)), progress=seen.append)

    assert sum(seen) == 3 * MIB + 1
    assert all(one > 0 for one in seen)


async def test_a_cancelled_wait_is_not_followed_by_another_try() -> None:
    within, waiting = MemoryStore([LOST]), asyncio.Event()

    async def forever(_: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        task = tasks.create_task(Retry(within, sleep=forever).get("a"))
        await waiting.wait()
        task.cancel()
    assert within.calls == ["get"]


@given(
    rate=st.floats(1, 1e12),
    moments=st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 1 << 40)), min_size=1),
)
def test_whoever_waits_as_told_never_exceeds_the_rate(
    rate: float, moments: list[tuple[float, int]]
) -> None:
    first = now = moments[0][0]
    pace, dues = Pace(rate), [first]
    for later, nbytes in moments:
        now = pace.due(nbytes, max(now, later))
        dues.append(now)
    assert all(one <= other for one, other in pairwise(dues))
    total = sum(nbytes for _, nbytes in moments)
    assert now - first >= total / rate * (1 - 1e-6) - 1e-6 * now


@pytest.mark.parametrize("rate", [0, -1, float("nan")])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="bytes per second"):
        Paced(MemoryStore(), rate, clock=monotonic)


async def until(event: threading.Event) -> None:
    """Wait for something in another thread."""
    assert await asyncio.to_thread(event.wait, 30)


async def test_a_paced_put_waits_inside_of_its_body_until_unleashed() -> None:
    begun = threading.Event()
    within = MemoryStore()
    store = Paced(within, 1.0, clock=monotonic)  # a MiB takes twelve days
    data = memoryview(bytearray(4 * MIB))

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        putting = tasks.create_task(store.put("a", data, progress=lambda _: begun.set()))
        await until(begun)
        assert await store.list("") == []
        store.unleash()
        await putting
    assert await store.get("a") == data


@pytest.mark.parametrize("kind", ["memory", "local"])
async def test_a_paced_put_ends_at_once_when_cancelled(kind: str, tmp_path: Path) -> None:
    begun = threading.Event()
    within = MemoryStore() if kind == "memory" else open_store(f"file://{tmp_path}")
    store = Paced(within, 1.0, clock=monotonic)
    data = bytearray(4 * MIB)

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        with memoryview(data) as view:
            putting = tasks.create_task(store.put("a", view, progress=lambda _: begun.set()))
            await until(begun)
            putting.cancel()
            await asyncio.wait([putting])
    data.clear()
    assert await store.list("") == []


async def test_a_failure_comes_through_pacing_as_it_is() -> None:
    with pytest.raises(StoreUnavailable, match="connection lost"):
        await Paced(MemoryStore([LOST]), 1e12, clock=monotonic).put("a", memoryview(bytes(10)))


async def test_every_call_is_observed_with_its_bytes_its_time_and_its_failure() -> None:
    seen: list[Observation] = []
    moments = iter(range(100))
    within = MemoryStore([None, None, None, LOST, StoreRejected("a", "denied")])
    store = Metered(within, seen.append, clock=lambda: next(moments))

    await store.put("a", memoryview(bytes(10)))
    assert not await store.create("a", b"xyz")
    assert await store.get("a") == bytes(10)
    with pytest.raises(StoreUnavailable):
        await store.put("a", memoryview(bytearray(3 * MIB)))
    with pytest.raises(StoreRejected):
        await store.delete("a")

    assert seen == [
        Observation("put", "a", 10, 1),
        Observation("create", "a", 0, 1),
        Observation("get", "a", 10, 1),
        Observation("put", "a", MIB, 1, "connection lost"),
        Observation("delete", "a", 0, 1, "denied"),
    ]
