"""A mistake in what is done for one peer ends that peer's line, and nobody else's."""

import asyncio
import socket
from typing import cast

from evac.wire import Refuse, decode
from evacd.workloads.closing import Closing
from evacd.workloads.guard import start
from evacd.workloads.link import Link
from evacd.workloads.peer import Peer
from evacd.workloads.session import Desk, Door, Session


class Anybody:
    """Takes what happens to a session."""

    def __init__(self) -> None:
        self.dropped: list[str] = []

    def gone(self, _session: Session, reason: str) -> None:
        self.dropped.append(reason)


async def mistaken() -> None:
    raise KeyError("a slot that is not there")


async def test_a_mistake_costs_its_peer_and_ends_nothing_else() -> None:
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    desk, others = Anybody(), asyncio.Event()
    link = Link(mine, asyncio.get_running_loop(), Closing())
    link.receiver = session = Session(
        link, Door.WORKLOAD, Peer(1, 0, 0, None, 0), cast(Desk, desk), opened=0.0
    )

    async with asyncio.TaskGroup() as tasks:
        going_on = tasks.create_task(others.wait())
        start(tasks, mistaken(), session)
        start(tasks, mistaken())
        while not desk.dropped:  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0)
        assert not going_on.done()
        others.set()

    assert going_on.result() is True
    last = decode(theirs.recv(4096)).message
    assert isinstance(last, Refuse)
    assert "KeyError" in last.reason
    theirs.close()


async def test_what_begins_while_all_ends_is_not_begun_and_harms_nobody() -> None:
    begun: list[str] = []

    async def work() -> None:
        begun.append("in vain")

    async def late(tasks: asyncio.TaskGroup) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            start(tasks, work())

    async def body() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(late(tasks))
            await asyncio.Event().wait()

    async with asyncio.TaskGroup() as outer:
        running = outer.create_task(body())
        for _ in range(3):
            await asyncio.sleep(0)
        running.cancel()

    assert running.cancelled()
    assert not begun
