"""The probe of a lane: it is gone afterwards, it stands aside, and it stays small."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evac.errors import StoreError, StoreUnavailable
from evac.store import open_store
from evac.store.local import LocalStore
from evac.store.metered import Metered, Observation
from evacd.flush.measure import (
    COMMIT_LOOKS,
    COMMIT_WRITES,
    FIRST_NBYTES,
    PROBE_NBYTES,
    PROBES,
    WIDE_NBYTES,
    WIDE_SECONDS,
    WIDE_TIMES,
    measure,
)
from evacd.flush.tidy import tidy
from tests.handlers.store.flushing import flush


class Watch:
    """A clock that only stores move."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def utc(self) -> datetime:
        return datetime.now(UTC)


class Link(LocalStore):
    """A directory behind a link of so many bytes per second; it may break down, or hang.

    Args:
        connections: Of so many bytes per second each, for bodies with a part for each of them.
        fixed: Seconds that every put takes beside its bytes.
        look: Seconds of every get.
        disturbed: Further seconds of single puts, by their place among all.
    """

    def __init__(
        self,
        folder: Path,
        watch: Watch,
        *,
        rate: float,
        fixed: float = 0.0,
        look: float = 0.0,
        connections: int = 1,
        breaks_at: int = 1 << 40,
        hangs_at: int = 1 << 40,
        disturbed: Mapping[int, float] = MappingProxyType({}),
    ):
        super().__init__(str(folder))
        self.look = look
        self.connections = connections
        self.hangs_at = hangs_at
        self.hangs = asyncio.Event()
        self.fixed = fixed
        self.watch = watch
        self.rate = rate
        self.breaks_at = breaks_at
        self.disturbed = disturbed
        self.sizes: list[int] = []

    async def put(
        self, key: str, data: memoryview, *, progress: Callable[[int], None] | None = None
    ) -> None:
        self.sizes.append(data.nbytes)
        if data.nbytes >= self.hangs_at:
            self.hangs.set()
            await asyncio.Event().wait()
        await super().put(key, data, progress=progress)
        ways = self.connections if data.nbytes > 2 * PROBE_NBYTES else 1
        self.watch.now += self.fixed + data.nbytes / (self.rate * ways)
        self.watch.now += self.disturbed.get(len(self.sizes) - 1, 0.0)
        if data.nbytes >= self.breaks_at:
            raise StoreUnavailable(key, "connection reset")

    async def get(self, key: str) -> bytes:
        self.watch.now += self.look
        return await super().get(key)


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


async def test_a_link_of_several_connections_is_known_by_what_they_do_together(
    tmp_path: Path,
) -> None:
    link = Link(tmp_path, Watch(), rate=80e6, connections=8, fixed=0.03)

    found = await measure(link, clock=link.watch, node="n", stop=never, wide=True)

    assert isinstance(found, tuple)
    assert found[0] == link.sizes[-1] == WIDE_NBYTES
    assert found[0] / found[1] == pytest.approx(8 * 80e6, rel=0.01)
    assert link.sizes.count(WIDE_NBYTES) == WIDE_TIMES
    assert probes(tmp_path) == []


@pytest.mark.parametrize(
    ("rate", "largest"), [(10e6, 4 * PROBE_NBYTES), (7e6, 3 * PROBE_NBYTES), (6e6, FIRST_NBYTES)]
)
async def test_a_slow_link_is_not_held_up_by_a_large_probe(
    tmp_path: Path, rate: float, largest: int
) -> None:
    link = Link(tmp_path, Watch(), rate=rate, connections=1)

    found = await measure(link, clock=link.watch, node="n", stop=never, wide=True)

    assert isinstance(found, tuple)
    assert found[0] / found[1] == pytest.approx(rate, rel=0.01)
    assert max(link.sizes) == largest
    assert largest / rate <= WIDE_SECONDS


@pytest.mark.parametrize("disturbed", [{2: 3.0}, {3: 5.0}, {2: 0.6, 3: 0.6, 5: 5.0}])
async def test_what_disturbs_a_probe_is_not_taken_for_the_link(
    tmp_path: Path, disturbed: Mapping[int, float]
) -> None:
    """A small one, which would forbid all large ones, the first large one, or both kinds."""
    link = Link(tmp_path, Watch(), rate=10e6, connections=2, disturbed=disturbed)

    found = await measure(link, clock=link.watch, node="n", stop=never, wide=True)

    assert isinstance(found, tuple)
    assert found[0] / found[1] == pytest.approx(20e6, rel=0.01)


@settings(max_examples=20, deadline=None)
@given(st.floats(1e4, 6e6), st.dictionaries(st.integers(2, 6), st.floats(0.0, 20.0)))
def test_a_slow_link_is_asked_for_small_probes_no_longer_than_for_a_large_one(
    rate: float, disturbed: dict[int, float]
) -> None:
    with TemporaryDirectory() as folder:
        link = Link(Path(folder), Watch(), rate=rate, disturbed=disturbed)
        found = asyncio.run(measure(link, clock=link.watch, node="n", stop=never, wide=True))

    assert isinstance(found, tuple)
    assert set(link.sizes) == {4096, FIRST_NBYTES}
    asked = range(2, len(link.sizes))
    took = [FIRST_NBYTES / rate + disturbed.get(one, 0.0) for one in asked]
    assert sum(took[:-1]) < WIDE_SECONDS
    assert found[1] <= sum(took)


async def test_a_link_that_takes_no_large_probe_is_known_by_the_others(tmp_path: Path) -> None:
    link = Link(tmp_path, Watch(), rate=100e6, connections=8, breaks_at=WIDE_NBYTES)

    found = await measure(link, clock=link.watch, node="n", stop=never, wide=True)

    assert isinstance(found, tuple)
    assert link.sizes[-1] == WIDE_NBYTES
    assert found[0] / found[1] == pytest.approx(100e6, rel=0.01)
    assert probes(tmp_path) == []


@pytest.mark.parametrize(
    ("hangs_at", "known"), [(1, False), (FIRST_NBYTES, False), (WIDE_NBYTES, True)]
)
async def test_an_order_that_comes_in_mid_probe_has_the_link_at_once(
    tmp_path: Path, hangs_at: int, known: bool
) -> None:
    link = Link(tmp_path, Watch(), rate=100e6, hangs_at=hangs_at)

    async with asyncio.timeout(30):
        found = await measure(
            link, clock=link.watch, node="n", stop=lambda: link.hangs.is_set(), wide=True
        )

    assert link.sizes[-1] >= hangs_at
    rate = found[0] / found[1] if isinstance(found, tuple) else None
    assert rate == (pytest.approx(100e6, rel=0.01) if known else None)
    assert probes(tmp_path) == []


async def test_what_a_commit_will_take_is_told_by_what_it_asks_for(tmp_path: Path) -> None:
    asked: list[Observation] = []
    link = Link(tmp_path, Watch(), rate=1e12, fixed=0.04, look=0.02)

    await flush(Metered(link, asked.append, clock=link.watch.monotonic))

    verbs = [one.verb for one in asked]
    looks = verbs.count("get") + verbs.count("list")
    # All else are writes, and one of them is the body.
    assert (len(verbs) - looks - 1, looks) == (COMMIT_WRITES, COMMIT_LOOKS)
    found = await measure(link, clock=link.watch, node="n", stop=never)
    assert isinstance(found, tuple)
    assert found.commit_seconds == pytest.approx(5 * 0.04 + 5 * 0.02, rel=0.01)


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
