"""The asyncio client and a real daemon that is killed and started again."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import evac
import evac.aio
from evac.segment import PAGE, Header, SlotState
from tests.agent.daemon.nodes import Node, node_at, until
from tests.handlers.client.honest import LIMIT

BODY = b"state" * 1000


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    yield from node_at(tmp_path / "node")


async def filled(client: evac.aio.Client, step: int) -> evac.SlotMemory:
    slot = await client.acquire(LIMIT)
    assert slot is not None, client.last_refusal
    slot.begin(1)
    slot.memory[PAGE : PAGE + len(BODY)] = BODY
    slot.complete(Header(SlotState.COMPLETE, 1, step, len(BODY)))
    return slot


def steps(node: Node) -> set[int]:
    slots = [slot for one in node.status()["workloads"] for slot in one["slots"]]
    return {slot["step"] for slot in slots if slot["state"] == "complete"}


async def test_a_restart_of_the_daemon_costs_no_slot_and_no_stage(node: Node) -> None:
    await asyncio.to_thread(node.start)
    async with evac.aio.connect("job", socket=node.socket) as client:
        assert await client.wait_connected(LIMIT)
        # Both are in use before the kill: one that has not come by then would be reserved anew.
        await client.reserve(nbytes=8 * PAGE, body="a.bin", incarnation=1, slots=2)
        assert await client.staged(await filled(client, 1), 1)
        writing = await filled(client, 2)
        await asyncio.to_thread(node.kill)
        await asyncio.to_thread(node.start)
        assert await client.wait_connected(LIMIT)
        assert client.connection == 1
        assert await client.staged(writing, 2)
        assert await asyncio.to_thread(steps, node) == {1, 2}
        assert await client.staged(await filled(client, 3), 3)


async def test_what_was_staged_while_there_was_none_is_told_to_the_next(node: Node) -> None:
    await asyncio.to_thread(node.start)
    async with evac.aio.connect("job", socket=node.socket) as client:
        assert await client.wait_connected(LIMIT)
        await client.reserve(nbytes=8 * PAGE, body="a.bin", incarnation=1)
        slot = await filled(client, 1)
        await asyncio.to_thread(node.kill)
        await asyncio.to_thread(until, "the loss is noticed", lambda: not client.connected)
        assert not await client.staged(slot, 1)
        await asyncio.to_thread(node.start)
        assert await client.wait_connected(LIMIT)
        await asyncio.to_thread(node.knows, "job", 1)
        assert client.refusals == 0


async def test_a_predecessors_memory_is_adopted(node: Node) -> None:
    await asyncio.to_thread(node.start)
    (await asyncio.to_thread(lambda: node.staged(7, "job", nbytes=64 * 1024))).kill()
    async with evac.aio.connect("job", socket=node.socket) as client:
        assert await client.wait_connected(LIMIT)
        with await client.adopt() as adoption:
            [slot] = adoption
            assert slot.generation.step == 7
            assert bytes(slot.data[:6]) == b"rank 0"
        assert len(adoption) == 0
