"""A daemon that dies while a reservation is still arriving: nothing staged is lost, and no slot is missing after it."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import pytest

from evac.errors import NotConnected
from tests.agent.daemon.nodes import until
from tests.deaths.machine import Machine
from tests.handlers.client.honest import LIMIT
from tests.handlers.client.test_arrivals import Aio, Blocking, Shell, shell_of, stage


@pytest.fixture
def machine(machines: Callable[..., Machine]) -> Machine:
    """Its daemon stops itself before it makes the second slot."""
    one = machines()
    report = str(one.home / "boundary")
    one.begin(report=report, label="stage warm before", nth=1, signal=int(signal.SIGSTOP))
    until("evacd listens", one.listens)
    return one


@pytest.fixture(params=[Blocking, Aio])
async def shell(request: pytest.FixtureRequest, machine: Machine) -> AsyncIterator[Shell]:
    async for one in shell_of(request.param, machine.socket):
        yield one


async def test_all_slots_are_there_again_after_the_first_of_them_was_handed_back(
    machine: Machine, shell: Shell
) -> None:
    client = shell.client
    await shell.reserve()
    await asyncio.to_thread(until, "the daemon stops itself", machine.stopped)
    # Not sooner: what it grants before it stops is held, and written first.
    waits = asyncio.ensure_future(shell.acquire(3600.0))
    await asyncio.to_thread(machine.kill)
    async with asyncio.timeout(LIMIT):
        with suppress(NotConnected):
            assert await waits is None
    await asyncio.to_thread(machine.start)
    # One slot of three would be one generation, for as long as the job lives.
    await asyncio.to_thread(
        until, "all is begun anew", lambda: client.connected and client.connection == 2
    )
    await shell.reserve()
    for step in (1, 2, 3):
        await stage(shell, step)
    await asyncio.to_thread(machine.knows, "job", 3)
    assert client.refusals == 0
