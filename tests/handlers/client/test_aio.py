"""The asyncio client: against an honest daemon, and on a real board's own loop."""

import asyncio
import logging
import os
import resource
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

import evac
import evac.aio
from evac import wire
from evac._aio_line import Lines
from evac._aio_slots import Slots
from evac.segment import PAGE, Header, SlotState
from evac.wire import (
    Acquire,
    Advice,
    Done,
    Leave,
    Message,
    OrderGiven,
    Register,
    Staged,
    StandDown,
    Turn,
)
from tests.handlers.client.honest import LIMIT, Daemon, sealed
from tests.handlers.client.test_fork import in_child

SLOT = 4 * PAGE


@pytest.fixture
async def client(daemon: Daemon, path: Path) -> AsyncIterator[evac.aio.Client]:
    async with evac.aio.connect("job", socket=path) as one:
        assert await one.wait_connected(LIMIT)
        yield one


async def heard(daemon: Daemon, kind: type[Message], count: int = 1) -> list[Message]:
    return list(await asyncio.to_thread(daemon.wait, kind, count))


async def stage(client: evac.aio.Client, step: int, body: bytes = b"state") -> bool:
    slot = await client.acquire(LIMIT)
    assert slot is not None, client.last_refusal
    slot.begin(incarnation=0)
    slot.memory[PAGE : PAGE + len(body)] = body
    slot.complete(Header(SlotState.COMPLETE, 0, step, len(body)))
    return await client.staged(slot, step)


def fds() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_the_daemon_reads_what_was_staged(daemon: Daemon, client: evac.aio.Client) -> None:
    assert (client.node, client.prefix, client.stores) == ("node-1", "me/job", ("file:///s",))
    assert await client.reserve(nbytes=SLOT, body="a.bin", incarnation=3) == 3
    assert await stage(client, 7)
    [(register, header, body)] = daemon.staged
    assert (register.job, header.step, body) == ("job", 7, b"state")


async def test_slots_are_granted_one_holder_each(client: evac.aio.Client) -> None:
    await client.reserve(nbytes=SLOT, body="a.bin", slots=1)
    held = await client.acquire(LIMIT)
    assert held is not None
    assert await client.acquire(LIMIT) is None
    assert "is being written by another task" in client.last_refusal
    client.release(held)
    assert await client.acquire(LIMIT) is held


async def test_tasks_share_one_client(daemon: Daemon, client: evac.aio.Client) -> None:
    await client.reserve(nbytes=SLOT, body="a.bin", slots=4)
    kept: list[bool] = []

    async def work(first: int) -> None:
        for step in range(first, first + 10):
            slot = await client.acquire(LIMIT)
            if slot is not None:
                slot.complete(Header(SlotState.COMPLETE, 0, step, 1))
                kept.append(await client.staged(slot, step))

    async with asyncio.TaskGroup() as tasks:
        for number in range(4):
            tasks.create_task(work(100 * number))
    assert all(kept)
    assert len(await heard(daemon, Staged)) == len(kept) >= 10


async def test_a_refused_stage_is_false_a_warning_and_counted(
    daemon: Daemon, client: evac.aio.Client, caplog: pytest.LogCaptureFixture
) -> None:
    await client.reserve(nbytes=SLOT, body="a.bin")
    daemon.refuse_staged = "step 3 is not newer than step 4"
    assert not await stage(client, 3)
    assert (client.refusals, client.last_refusal) == (1, "step 3 is not newer than step 4")
    assert "step 3 was staged but is not kept" in caplog.text


async def test_a_refused_reservation_tells_the_numbers(
    daemon: Daemon, client: evac.aio.Client
) -> None:
    daemon.slots_at_most = 0
    with pytest.raises(evac.Refused, match="the budget is 0 bytes"):
        await client.reserve(nbytes=SLOT, body="a.bin")


async def test_memory_that_is_not_a_sealed_slot_is_not_used(
    daemon: Daemon, client: evac.aio.Client
) -> None:
    daemon.make_slot = lambda nbytes: [sealed(nbytes, seals=0)]
    with pytest.raises(evac.SegmentError, match="seals"):
        await client.reserve(nbytes=SLOT, body="a.bin")


async def test_what_the_protocol_cannot_say_is_a_value_error(
    client: evac.aio.Client, path: Path
) -> None:
    with pytest.raises(ValueError, match=r"reserve\.nbytes"):
        await client.reserve(nbytes=-1, body="a.bin")
    with pytest.raises(ValueError, match="on_turn"):
        client.on_turn(_nothing)
    with pytest.raises(ValueError, match="job"):
        evac.aio.connect("../x", socket=path)


async def test_a_cancelled_acquire_loses_no_slot(daemon: Daemon, client: evac.aio.Client) -> None:
    await client.reserve(nbytes=SLOT, body="a.bin", slots=1)
    daemon.hold = {Acquire.type}
    waiting = asyncio.ensure_future(client.acquire(LIMIT))
    await heard(daemon, Acquire)
    waiting.cancel()
    await asyncio.wait([waiting])
    daemon.answer_held()
    await client.status(LIMIT)  # answered after the grant
    assert await client.acquire(LIMIT) is not None
    assert len(await heard(daemon, Acquire)) == 1


async def test_status_is_the_daemons_own_account(client: evac.aio.Client) -> None:
    before = fds()
    for _ in range(5):
        assert await client.status(LIMIT) == {"node": "node-1", "workloads": 1}
    assert fds() <= before


# --- no daemon, and another one ---------------------------------------------------------------


async def test_no_daemon_is_one_warning_and_no_harm(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with evac.aio.connect("job", socket=path) as client:
        assert not await client.wait_connected(1.2)
        assert await client.acquire() is None
        assert "no such socket" in client.last_refusal
        with pytest.raises(evac.NotConnected, match="no such socket"):
            await client.reserve(nbytes=PAGE, body="a.bin")
        with pytest.raises(evac.NotConnected):
            await client.status()
        await client.leave()
    assert [one.levelno for one in caplog.records if one.levelno >= logging.WARNING] == [30]


async def test_a_refused_workload_runs_on_with_the_reason(daemon: Daemon, path: Path) -> None:
    daemon.refuse_job = "job"
    async with evac.aio.connect("job", socket=path) as client:
        await heard(daemon, Register, 2)  # it asks again
        assert await client.acquire() is None
        assert "evacd refused: not on this node" in client.last_refusal


async def test_callers_that_wait_are_told_at_once_when_the_daemon_dies(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    daemon = Daemon(path)
    async with evac.aio.connect("job", socket=path) as client:
        assert await client.wait_connected(LIMIT)
        daemon.hold = {"reserve", "acquire"}
        waiting = asyncio.ensure_future(client.acquire(3600))
        asking = asyncio.ensure_future(client.reserve(nbytes=PAGE, body="a.bin"))
        await heard(daemon, Acquire)
        await asyncio.to_thread(daemon.stop)
        async with asyncio.timeout(LIMIT):
            assert await waiting is None
            with pytest.raises(evac.NotConnected):
                await asking
    assert "lost evacd at" in caplog.text


@pytest.mark.parametrize("packet", [b"garbage", b'{"type":"order"}', b'{"type":"slot"}'])
async def test_a_daemon_that_talks_nonsense_is_dropped_and_tried_again(
    daemon: Daemon, client: evac.aio.Client, packet: bytes
) -> None:
    daemon.tell_raw(packet)
    await heard(daemon, Register, 2)
    assert await client.wait_connected(LIMIT)


# --- orders and turns -------------------------------------------------------------------------


async def test_events_tell_of_the_running_order_and_what_follows(
    daemon: Daemon, client: evac.aio.Client
) -> None:
    order = OrderGiven(order="o1", seconds_left=1e6, confidence="certain", source="gcp")
    daemon.tell(order)
    await client.status(LIMIT)  # answered after the order
    assert client.order is not None
    got: list[evac.aio.Event] = []
    async for event in client.events():
        got.append(event)
        if len(got) == 1:
            daemon.tell(Advice(source="gcp", kind="rebalance"))
            daemon.tell(StandDown(order="o1", reason="cancelled"))
        if len(got) == 3:
            break
    first, second, third = got
    assert isinstance(first, evac.RunningOrder)
    assert (first.id, second) == ("o1", Advice(source="gcp", kind="rebalance"))
    assert third == StandDown(order="o1", reason="cancelled")
    assert client.order is None


async def test_events_end_with_the_client(client: evac.aio.Client) -> None:
    async def listen() -> int:
        return len([event async for event in client.events()])

    listening = asyncio.ensure_future(listen())
    await asyncio.sleep(0)
    await client.close()
    async with asyncio.timeout(LIMIT):
        assert await listening == 0


async def _nothing(_turn: evac.TurnBudget) -> None:
    return None


async def test_a_turn_is_answered_also_where_it_came_too_early_or_fails(
    daemon: Daemon, path: Path
) -> None:
    async with evac.aio.connect("job", mode="callback", need_seconds=5, socket=path) as client:
        assert await client.wait_connected(LIMIT)
        daemon.tell(Turn(turn=1, seconds=60.0, order="o1"))
        await client.status(LIMIT)

        @client.on_turn
        async def save(turn: evac.TurnBudget) -> int:
            assert 0 < turn.seconds_left() <= 60
            await asyncio.sleep(0)
            if turn.order == "o2":
                raise OSError("the index is broken")
            return 5

        daemon.tell(Turn(turn=2, seconds=60.0, order="o2"))
        done = await heard(daemon, Done, 2)
    assert Done(turn=1, ok=True, nbytes=5) in done
    assert Done(turn=2, ok=False, reason="OSError: the index is broken") in done


# --- the end ----------------------------------------------------------------------------------


async def test_leave_says_so_and_hangs_up(daemon: Daemon, client: evac.aio.Client) -> None:
    await client.leave()
    assert await heard(daemon, Leave)
    assert not client.connected
    await asyncio.to_thread(daemon.wait_until, lambda: daemon.ended == 1)
    assert await client.acquire() is None
    assert client.last_refusal == "the client is closed"


async def test_close_waits_for_the_daemons_word(daemon: Daemon, client: evac.aio.Client) -> None:
    await client.reserve(nbytes=SLOT, body="a.bin")
    daemon.hold, daemon.refuse_staged = {"staged"}, "too late"
    staging = asyncio.ensure_future(stage(client, 1))
    await heard(daemon, Staged)
    closing = asyncio.ensure_future(client.close())
    await asyncio.wait([closing], timeout=0.1)
    assert not closing.done()
    daemon.answer_held()
    async with asyncio.timeout(LIMIT):
        await closing
        assert not await staging
    assert client.refusals == 1


async def test_what_the_block_raises_comes_out_as_it_is(daemon: Daemon, path: Path) -> None:
    before = fds()

    async def fail() -> None:
        async with evac.aio.connect("job", socket=path) as client:
            assert await client.wait_connected(LIMIT)
            raise KeyError("mine")

    with pytest.raises(KeyError):
        await fail()
    await asyncio.to_thread(daemon.wait_until, lambda: daemon.ended == 1)
    assert fds() <= before
    assert len(asyncio.all_tasks()) == 1


async def test_a_forked_child_is_inert_and_the_parent_goes_on(
    daemon: Daemon, client: evac.aio.Client
) -> None:
    await client.reserve(nbytes=SLOT, body="a.bin", slots=1)
    slot = await client.acquire(LIMIT)
    assert slot is not None

    def check() -> None:
        assert not client.connected
        with open("/proc/self/maps") as maps:
            assert "evac-test" not in maps.read()

    in_child(check)
    slot.complete(Header(SlotState.COMPLETE, 0, 8, 1))
    assert await client.staged(slot, 8)


async def test_a_turn_that_is_cancelled_is_answered(daemon: Daemon, path: Path) -> None:
    async with evac.aio.connect("job", mode="callback", need_seconds=1.0, socket=path) as client:
        assert await client.wait_connected(LIMIT)

        @client.on_turn
        async def flush(_budget: object) -> int:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(LIMIT)
            return 0

        daemon.tell(Turn(turn=1, seconds=60.0, order="o1"))
        (done,) = await heard(daemon, Done)
        assert isinstance(done, Done)
        assert (done.turn, done.ok) == (1, False)
        assert done.reason.startswith("CancelledError")


@pytest.mark.parametrize("turns", range(4))
async def test_a_close_that_is_cancelled_has_closed_all_the_same(
    daemon: Daemon, path: Path, turns: int
) -> None:
    before = fds()
    client = evac.aio.connect("job", socket=path)
    await client.__aenter__()
    assert await client.wait_connected(LIMIT)
    await client.reserve(nbytes=SLOT, body="a.bin", slots=2, incarnation=1)
    closing = asyncio.ensure_future(client.close())
    for _ in range(turns):
        await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    await client.close()
    assert not client.connected
    await asyncio.to_thread(daemon.wait_until, lambda: daemon.ended == 1)
    # All but what the honest daemon, in this process, keeps of the slots.
    assert fds() <= before + 2


async def test_a_process_without_a_spare_fd_has_its_slots_and_hands_none_back() -> None:
    lines = cast(Lines, SimpleNamespace(notify=lambda: None))
    slots = Slots(lambda _step, _reason: None)
    slots.lines, memory = lines, sealed(SLOT)
    reservation = slots.reservation()
    spare = os.dup(memory)
    os.close(spare)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (spare, hard))
    try:
        reservation.hear(wire.Slot(slot=0, nbytes=SLOT, last=True), memory)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    async with asyncio.timeout(LIMIT):
        while not reservation.count:  # noqa: ASYNC110 - it tells its lines, which are none
            await asyncio.sleep(0.01)
    assert slots.handing() == []
    os.close(memory)
