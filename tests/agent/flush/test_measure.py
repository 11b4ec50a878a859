"""The probe of a lane: it is gone afterwards, it stands aside, and it stays small."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from evac.errors import StoreError, StoreUnavailable
from evac.store import open_store
from evac.store.local import LocalStore
from evacd.flush.measure import FIRST_NBYTES, PROBE_NBYTES, PROBES, measure
from evacd.flush.tidy import tidy


class Watch:
    """A clock that only stores move."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def utc(self) -> datetime:
        return datetime.now(UTC)


class Link(LocalStore):
    """A directory behind a link of so many bytes per second; it may break down."""

    def __init__(
        self,
        folder: Path,
        watch: Watch,
        *,
        rate: float,
        fixed: float = 0.0,
        breaks_at: int = 1 << 40,
    ):
        super().__init__(str(folder))
        self.fixed = fixed
        self.watch = watch
        self.rate = rate
        self.breaks_at = breaks_at
        self.sizes: list[int] = []

    async def put(
        self, key: str, data: memoryview, *, progress: Callable[[int], None] | None = None
    ) -> None:
        self.sizes.append(data.nbytes)
        await super().put(key, data, progress=progress)
        self.watch.now += self.fixed + data.nbytes / self.rate
        if data.nbytes >= self.breaks_at:
            raise StoreUnavailable(key, "connection reset")


def probes(folder: Path) -> list[str]:
    return [path.name for path in (folder / PROBES).glob("*")]


def never() -> bool:
    return False


async def test_a_slow_link_is_asked_for_one_small_probe(tmp_path: Path) -> None:
    link = Link(tmp_path, Watch(), rate=1e6)

    found = await measure(link, clock=link.watch, node="n", stop=never)

    assert isinstance(found, tuple)
    assert found[0] == FIRST_NBYTES
    assert found[1] == pytest.approx(FIRST_NBYTES / 1e6, rel=0.01)
    assert link.sizes == [4096, 4096, FIRST_NBYTES]
    assert probes(tmp_path) == []


async def test_a_fast_link_is_timed_over_several_larger_ones(tmp_path: Path) -> None:
    link = Link(tmp_path, Watch(), rate=1e9)

    found = await measure(link, clock=link.watch, node="n", stop=never)

    assert isinstance(found, tuple)
    assert found[0] / found[1] == pytest.approx(1e9, rel=0.01)
    assert link.sizes[:4] == [4096, 4096, FIRST_NBYTES, PROBE_NBYTES]
    assert max(link.sizes) == PROBE_NBYTES
    assert found[0] == sum(link.sizes[3:])
    assert probes(tmp_path) == []


async def test_what_every_object_costs_is_not_taken_for_the_links_rate(tmp_path: Path) -> None:
    link = Link(tmp_path, Watch(), rate=1e9, fixed=0.02)

    found = await measure(link, clock=link.watch, node="n", stop=never)

    assert isinstance(found, tuple)
    assert found[0] / found[1] == pytest.approx(1e9, rel=0.05)


async def test_it_stands_aside_for_an_order(tmp_path: Path) -> None:
    link = Link(tmp_path, Watch(), rate=1e9)

    assert await measure(link, clock=link.watch, node="n", stop=lambda: True) is None
    assert link.sizes == []

    found = await measure(link, clock=link.watch, node="n", stop=lambda: len(link.sizes) >= 3)
    assert isinstance(found, tuple)
    assert found[0] == FIRST_NBYTES
    assert found[1] == pytest.approx(FIRST_NBYTES / 1e9, rel=0.01)
    assert link.sizes == [4096, 4096, FIRST_NBYTES]
    assert probes(tmp_path) == []


async def test_a_link_that_breaks_down_leaves_no_probe(tmp_path: Path) -> None:
    link = Link(tmp_path, Watch(), rate=1e9, breaks_at=PROBE_NBYTES)

    found = await measure(link, clock=link.watch, node="n", stop=never)

    assert isinstance(found, StoreError)
    assert probes(tmp_path) == []


async def test_a_daemon_that_stops_meanwhile_leaves_no_probe(tmp_path: Path) -> None:
    link = Link(tmp_path, Watch(), rate=1e9)

    async def stopped() -> None:
        this = asyncio.current_task()
        assert this is not None

        def stop() -> bool:
            if len(link.sizes) == 3:
                this.cancel()
            return False

        await measure(link, clock=link.watch, node="n", stop=stop)

    with pytest.raises(asyncio.CancelledError):
        await stopped()
    assert probes(tmp_path) == []


async def test_probes_that_a_killed_daemon_left_go_and_others_stay(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}")
    theirs = f"{PROBES}/node-10-0123abcd.bin"
    for key in (f"{PROBES}/node-1-0123abcd.bin", theirs, f"{PROBES}/node-1-notes.bin"):
        await store.put(key, memoryview(b"x"))

    tidied = await tidy(store, node="node-1")

    assert tidied.removed == 1
    assert [one.key for one in await store.list(PROBES)] == [f"{PROBES}/node-1-notes.bin", theirs]
    assert tidied.reason == ""
