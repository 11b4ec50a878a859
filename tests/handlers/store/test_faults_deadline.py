"""A deadline that is cut to nothing while bytes move: on every kind of store they arrive and count."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from evac.commit import chunk_sums, verify
from evac.generation import Generation
from evac.store import Owner, Store, open_store
from evacd.clock import SystemClock
from evacd.facts import Kept
from evacd.flush import Flush
from evacd.flush.save import Saver
from evacd.workloads import Part
from evacd.workloads.checksums import Sums
from tests.agent.flush.simulated import Aboard, Told, order, staged
from tests.handlers.commit.made import METADATA_BYTES, PREFIX
from tests.handlers.store.faulty import KINDS, fresh, place
from tests.handlers.store.flushing import BODY
from tests.services.proxy import Fate, Rule

G = Generation(1, 9)


class Summed(Sums):
    """Sums of `BODY`, which lies in no slot."""

    def __init__(self) -> None:
        pass

    async def all(self) -> tuple[int, ...]:
        return chunk_sums(memoryview(BODY))


class Real(Aboard):
    """One workload with bytes of its own; they are read when the flush has begun."""

    @contextmanager
    def hold(self, unit: str, generation: Generation) -> Iterator[tuple[Part, ...]]:
        yield (
            Part(
                unit=PREFIX, job="job", run="run", generation=generation, rank=0, world=1,
                prefix=PREFIX, owner=Owner(0, 0), body="__0_0.distcp", layout="layout",
                data=memoryview(BODY), items=(), metadata=METADATA_BYTES, sums=Summed(),
            ),
        )  # fmt: skip


class Held:
    """Stops whoever comes by once, until it may go on."""

    def __init__(self) -> None:
        self.come, self.go = threading.Event(), threading.Event()

    def __call__(self, *_: object) -> None:
        self.come.set()
        assert self.go.wait(60)


@pytest.fixture(params=("file", *KINDS))
def store(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> Iterator[tuple[Store, Held]]:
    """A store that holds the third call of a flush back."""
    record_property("faults", ("deadline now 0", request.param))
    held = Held()
    if request.param == "file":
        # The body's bytes are there and not synced, nor under their name.
        made = open_store(f"file://{tmp_path}")
        put = made.put
        made.put = lambda key, data, **_: put(key, data, progress=held)  # type: ignore[method-assign] # told by nobody else
        yield made, held
        return
    with place(request.param, request, monkeypatch) as there:
        mark = fresh()
        there.between.rules.append(Rule(Fate.PASS, within=mark, after=2, times=1, met=held))
        yield there.store(mark), held


async def test_a_deadline_that_is_cut_to_nothing_stops_no_byte_that_moves(
    store: tuple[Store, Held],
) -> None:
    opened, held = store
    clock, told = SystemClock(), Told()
    flush = Flush(
        Real(staged(PREFIX, 1, 1, lanes=("lane",))),
        Saver(lambda url, owner: opened, node="node"),
        lanes=["lane"],
        assumed=1e9,
        reserve=1.0,
        commit_seconds=0.1,
        clock=clock,
        record=told.record,
        ended=told.outcomes.append,
        idle=lambda: None,
    )
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        driver = tasks.create_task(flush.drive("lane"))
        flush.evacuate(order(clock.monotonic() + 600.0))
        assert await asyncio.to_thread(held.come.wait, 60)
        flush.evacuate(order(clock.monotonic()))
        held.go.set()
        await flush.settled.wait()
        driver.cancel()

    [kept] = told.outcomes
    assert isinstance(kept, Kept)
    assert kept.durable
    assert await verify(opened, PREFIX, G) == ()
