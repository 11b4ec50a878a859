"""Slots that are on their way are waited for: the law, and both shells on a real board.

The board's memory is made when a test says so; all else of it is as it is.
"""

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Semaphore
from typing import Any, ParamSpec, Protocol, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

import evac
import evac.aio
from evac._arrivals import Arrivals
from evac.segment import Header, SlotState
from evac.wire import Acquire
from evacd.workloads import StagedOne
from tests.agent.daemon.nodes import until
from tests.handlers.client.honest import LIMIT, Daemon
from tests.handlers.client.test_board import SLOT, UNIT_MEMORY, Node
from tests.handlers.client.test_fork import in_child

HOUR = 3600.0
_P = ParamSpec("_P")
_R = TypeVar("_R")


# --- the law ----------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from(["asked", "came", "last", "ended"]), st.integers(1, 4))))
def test_more_is_awaited_while_a_reservation_is_open_and_until_the_next_word_of_one(
    said: list[tuple[str, int]],
) -> None:
    arrivals, made, seen = Arrivals(), 0, 0
    over: set[int] = set()
    for word, number in said:
        before = arrivals.news
        if word == "asked":
            made += 1
            assert arrivals.asked() == made
        elif number > made:
            continue
        elif word == "ended":
            arrivals.ended(number)
            over.add(number)
        else:
            arrivals.came(number, last=word == "last")
            # None of an older one comes after it.
            over |= set(range(1, number)) | ({number} if word == "last" else set())
        told = word != "asked"
        assert not (told and arrivals.awaited(before))
        assert arrivals.awaited(arrivals.news) == bool(set(range(1, made + 1)) - over)
        seen += told
        assert arrivals.news == seen


# --- a board whose memory takes as long as a test likes ---------------------------------------


class Makers(ThreadPoolExecutor):
    """Threads that make a piece of memory for each `let`."""

    def __init__(self) -> None:
        super().__init__(2)
        self.fails = False
        self._may = Semaphore(0)

    def submit(self, work: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_R]:
        def when_told() -> _R:
            self._may.acquire()
            if self.fails:
                raise OSError(errno.ENOMEM, "it is full")
            return work(*args, **kwargs)

        return super().submit(when_told)

    def let(self, count: int = 1) -> None:
        self._may.release(count)


@pytest.fixture
def makers() -> Makers:
    return Makers()


@pytest.fixture
def node(tmp_path: Path, makers: Makers) -> Iterator[Node]:
    one = Node(tmp_path)
    one.board._staging.regions._makers = makers
    yield one
    makers.let(100)
    one.stop()


class Shell(Protocol):
    """Either client."""

    @property
    def client(self) -> evac.Client | evac.aio.Client: ...
    async def wait_connected(self) -> bool: ...
    async def reserve(self, nbytes: int = SLOT, slots: int = 3) -> None: ...
    async def acquire(self, within: float) -> evac.SlotMemory | None: ...
    async def staged(self, slot: evac.SlotMemory, step: int) -> None: ...
    async def answered(self) -> None:
        """All that was asked before has its answer."""
        ...

    async def close(self) -> None: ...


class Blocking:
    def __init__(self, path: Path) -> None:
        self.client = evac.connect("job", socket=path)

    async def wait_connected(self) -> bool:
        return await asyncio.to_thread(self.client.wait_connected, LIMIT)

    async def reserve(self, nbytes: int = SLOT, slots: int = 3) -> None:
        def reserve() -> None:
            self.client.reserve(nbytes=nbytes, body="a.bin", incarnation=1, slots=slots)

        await asyncio.to_thread(reserve)

    async def acquire(self, within: float) -> evac.SlotMemory | None:
        return await asyncio.to_thread(self.client.acquire, within)

    async def staged(self, slot: evac.SlotMemory, step: int) -> None:
        self.client.staged(slot, step)

    async def answered(self) -> None:
        await asyncio.to_thread(until, "it is refused", lambda: self.client.last_refusal)

    async def close(self) -> None:
        await asyncio.to_thread(self.client.close)


class Aio:
    def __init__(self, path: Path) -> None:
        self.client = evac.aio.connect("job", socket=path)

    async def wait_connected(self) -> bool:
        await self.client.__aenter__()
        return await self.client.wait_connected(LIMIT)

    async def reserve(self, nbytes: int = SLOT, slots: int = 3) -> None:
        await self.client.reserve(nbytes=nbytes, body="a.bin", incarnation=1, slots=slots)

    async def acquire(self, within: float) -> evac.SlotMemory | None:
        return await self.client.acquire(within)

    async def staged(self, slot: evac.SlotMemory, step: int) -> None:
        assert await self.client.staged(slot, step)

    async def answered(self) -> None:
        await asyncio.sleep(0)
        await self.client.status(LIMIT)

    async def close(self) -> None:
        await self.client.close()


async def shell_of(kind: type[Blocking] | type[Aio], path: Path) -> AsyncIterator[Shell]:
    one: Shell = kind(path)
    try:
        assert await one.wait_connected()
        yield one
    finally:
        await one.close()


@pytest.fixture(params=[Blocking, Aio])
async def shell(request: pytest.FixtureRequest, node: Node) -> AsyncIterator[Shell]:
    async for one in shell_of(request.param, node.path):
        yield one


async def stage(shell: Shell, step: int) -> None:
    slot = await shell.acquire(LIMIT)
    assert slot is not None, shell.client.last_refusal
    slot.begin(1)
    slot.complete(Header(SlotState.COMPLETE, 1, step, 1))
    await shell.staged(slot, step)


async def first(shell: Shell, makers: Makers, **reservation: Any) -> None:
    """Reserve, and stage in the first slot; the others are still to come."""
    makers.let()
    await shell.reserve(**reservation)
    await stage(shell, 1)


async def waiting(shell: Shell, within: float = HOUR) -> "asyncio.Future[evac.SlotMemory | None]":
    """Somebody waits for a slot that is on its way."""
    one = asyncio.ensure_future(shell.acquire(within))
    await shell.answered()
    assert not one.done()
    return one


async def test_the_stages_right_after_the_first_are_kept(
    node: Node, shell: Shell, makers: Makers
) -> None:
    await first(shell, makers)
    one = await waiting(shell)
    makers.let()
    slot = await one
    assert slot is not None, shell.client.last_refusal
    slot.begin(1)
    slot.complete(Header(SlotState.COMPLETE, 1, 2, 1))
    await shell.staged(slot, 2)
    await stage(shell, 3)
    found = [(await asyncio.to_thread(node.next, StagedOne)).generation.step for _ in range(3)]
    assert found == [1, 2, 3]


async def test_no_longer_than_it_was_given(shell: Shell, makers: Makers) -> None:
    await first(shell, makers)
    assert await shell.acquire(0.05) is None
    assert "one is being prepared" in shell.client.last_refusal
    assert await shell.acquire(0.0) is None
    makers.let(2)
    assert await shell.acquire(LIMIT) is not None


async def test_what_is_in_use_is_not_waited_for(shell: Shell, makers: Makers) -> None:
    await first(shell, makers, slots=1)
    assert await shell.acquire(HOUR) is None
    assert "step 1 is the newest that all ranks have" in shell.client.last_refusal


async def test_no_further_slot_comes_after_all(shell: Shell, makers: Makers) -> None:
    await first(shell, makers)
    one = await waiting(shell)
    makers.fails = True
    makers.let()
    assert await one is None
    # As of now, and not as of when it began to wait.
    assert shell.client.last_refusal.endswith(
        "no free slot: step 1 is the newest that all ranks have"
    )


async def test_another_reservation_takes_its_place(
    node: Node, shell: Shell, makers: Makers
) -> None:
    def heard() -> list[int]:
        return [one.reservation for one in node.board._roster.workloads.values()]

    await first(shell, makers)
    one, before = await waiting(shell), heard()
    again = asyncio.ensure_future(shell.reserve(2 * SLOT))
    # What is made sooner is a slot of the one before, and granted.
    await asyncio.to_thread(until, "the other one is heard of", lambda: heard() != before)
    makers.let(3)
    slot = await one
    assert slot is not None, shell.client.last_refusal
    await again
    assert slot.nbytes == 2 * SLOT


async def test_another_reservation_that_is_refused_changes_nothing(
    shell: Shell, makers: Makers
) -> None:
    await first(shell, makers)
    one = await waiting(shell)
    with pytest.raises(evac.Refused, match="the budget of this node is"):
        await shell.reserve(2 * UNIT_MEMORY)
    makers.let()
    assert await one is not None, shell.client.last_refusal


async def test_the_daemon_dies_meanwhile(node: Node, shell: Shell, makers: Makers) -> None:
    await first(shell, makers)
    one = await waiting(shell)
    stopping = asyncio.ensure_future(asyncio.to_thread(node.stop))
    async with asyncio.timeout(LIMIT):
        assert await one is None
    assert "being prepared" not in shell.client.last_refusal
    makers.let(100)
    await stopping


async def test_the_client_is_closed_meanwhile(shell: Shell, makers: Makers) -> None:
    await first(shell, makers)
    one = await waiting(shell)
    await shell.close()
    async with asyncio.timeout(LIMIT):
        assert await one is None
    assert shell.client.last_refusal == "the client is closed"


async def test_a_fork_meanwhile_disturbs_nobody(shell: Shell, makers: Makers) -> None:
    await first(shell, makers)
    one = await waiting(shell)
    client = shell.client

    def check() -> None:
        assert not client.connected
        if isinstance(client, evac.Client):
            assert client.acquire(HOUR) is None

    in_child(check)
    makers.let()
    assert await one is not None, client.last_refusal


async def test_a_task_that_is_cancelled_meanwhile_keeps_nothing_from_the_next(
    node: Node, makers: Makers
) -> None:
    async for shell in shell_of(Aio, node.path):
        await first(shell, makers)
        one = await waiting(shell)
        one.cancel()
        await asyncio.wait([one])
        makers.let()
        assert await shell.acquire(LIMIT) is not None, shell.client.last_refusal


async def test_plain_bytes_are_staged_right_after_the_first(node: Node, makers: Makers) -> None:
    with evac.connect("job", socket=node.path) as client:
        assert await asyncio.to_thread(client.wait_connected, LIMIT)
        makers.let()
        assert await asyncio.to_thread(client.stage, b"one", 1), client.last_refusal
        assert not await asyncio.to_thread(client.stage, b"two", 2)
        one = asyncio.ensure_future(asyncio.to_thread(client.stage, b"two", 2, timeout=HOUR))
        makers.let()
        assert await one, client.last_refusal


@pytest.mark.parametrize("kind", [Blocking, Aio])
async def test_nobody_polls(daemon: Daemon, kind: type[Blocking] | type[Aio]) -> None:
    daemon.slots_at_once, daemon.busy = 1, True
    async for shell in shell_of(kind, daemon.path):
        await shell.reserve(slots=2)
        one = asyncio.ensure_future(shell.acquire(HOUR))
        await asyncio.to_thread(daemon.wait, Acquire)
        await shell.answered()
        daemon.busy = False
        daemon.bring()
        assert await one is not None
        assert len(daemon.wait(Acquire, 2)) == 2
