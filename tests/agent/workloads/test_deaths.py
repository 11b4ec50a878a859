"""The order of an end: every word is heard, what it began is ended, and only then is it told."""

import asyncio
import os
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from typing import cast

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from evac.wire import Message, Mode, Release, Staged, Welcome, encode
from evacd.clock import SystemClock
from evacd.workloads.closing import Closing
from evacd.workloads.deaths import Deaths
from evacd.workloads.job import Process, Workload
from evacd.workloads.link import Link
from evacd.workloads.peer import Peer
from evacd.workloads.session import Door, Session, Stage


def workload(number: int) -> Workload:
    return Workload(
        id=number, unit="me/train", job="train", rank=0, world=1, priority=0, mode=Mode.STAGED,
        run="", need_seconds=0, process=Process(1, 1, 0, 0), share=0, arrived=0,
    )  # fmt: skip


@dataclass
class Scene:
    """One workload with a socket and a process; hears `staged` as the daemon does: slowly."""

    tasks: asyncio.TaskGroup
    seconds: float = 30.0
    # Steps of the loop that each inspection takes; None for one that never ends.
    slow: int | None = 0
    log: list[str] = field(default_factory=list)
    reading: list[asyncio.Event] = field(default_factory=list)
    ghosts: list[subprocess.Popen[bytes]] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        mine, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.one = workload(1)
        link = Link(mine, loop, Closing())
        self.session = Session(link, Door.WORKLOAD, Peer(1, 0, 0, None, 0), self, opened=0)
        self.session.stage, self.session.workload = Stage.ABOARD, self.one
        link.receiver = self.session
        self.deaths = Deaths(
            lambda _: None if link.closed else self.session,
            lambda _: self.reading[0] if self.reading else None,
            clock=SystemClock(),
            tasks=self.tasks,
            seconds=self.seconds,
            buried=lambda _: self.log.append("buried"),
        )
        self.process = subprocess.Popen(["sleep", "1000"])
        self.deaths.watch(self.one, os.pidfd_open(self.process.pid))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def haunt(self) -> None:
        """Another process has the socket, and never stops to talk."""
        fd = self.theirs.fileno()
        code = f"import os\nwhile True: os.write({fd}, {encode(Release(1))!r})"
        self.ghosts.append(subprocess.Popen([sys.executable, "-c", code], pass_fds=[fd]))

    def close(self) -> None:
        self.kill()
        for ghost in self.ghosts:
            ghost.kill()
            ghost.wait()
        self.over.set()
        self.deaths.close()
        self.theirs.close()
        self.session.link.hang_up("")

    def welcome(self) -> Welcome:
        raise NotImplementedError

    def denied(self, session: Session, what: str, reason: str) -> None:
        raise AssertionError(reason)

    def gone(self, session: Session, reason: str) -> None:
        pass

    def take(
        self, session: Session, message: Message, re: int | None, fd: int | None = None
    ) -> None:
        if not isinstance(message, Staged):
            self.log.append(f"heard {cast(Release, message).slot}")
            return
        session.link.pause()
        self.reading.append(asyncio.Event())
        self.tasks.create_task(self._read(message.slot))

    async def _read(self, slot: int) -> None:
        if self.slow is None:
            await self.over.wait()
            return
        for _ in range(self.slow):
            await asyncio.sleep(0)
        self.log.append(f"read {slot}")
        self.reading.pop().set()
        self.session.link.resume()


@given(
    words=st.lists(st.booleans(), max_size=40),
    slow=st.integers(0, 5),
    shuts=st.booleans(),
    early=st.integers(0, 5),
    waits=st.booleans(),
)
@hypothesis_settings(max_examples=40, deadline=None)
def test_the_last_word_comes_before_the_burial_whatever_it_was(
    words: list[bool], slow: int, shuts: bool, early: int, waits: bool
) -> None:
    """*shuts*: whether anybody keeps the socket. *early*: how long the loop runs before the end."""

    async def live() -> None:
        async with asyncio.TaskGroup() as tasks:
            scene = Scene(tasks, slow=slow)
            for number, staging in enumerate(words):
                scene.theirs.send(encode(Staged(number, 0) if staging else Release(number)))
            if shuts:
                scene.theirs.close()
            for _ in range(early):
                await asyncio.sleep(0)
            scene.kill()
            if waits:
                # Whoever wants its rank finds it dead sooner than the loop does.
                await scene.deaths.settled(scene.one)
                assert scene.log[-1] == "buried"
            async with asyncio.timeout(30):
                while "buried" not in scene.log:  # noqa: ASYNC110 - it has no event
                    await asyncio.sleep(0)
            scene.close()
            said = [f"{'read' if one else 'heard'} {number}" for number, one in enumerate(words)]
            assert scene.log == [*said, "buried"]

    asyncio.run(live())


@pytest.mark.parametrize("never", ["ends its slot", "stops to talk"])
async def test_what_never_ends_is_waited_for_no_longer_than_told(never: str) -> None:
    async with asyncio.TaskGroup() as tasks:
        scene = Scene(tasks, seconds=0.1, slow=None)
        scene.theirs.send(encode(Staged(0, 0) if never == "ends its slot" else Release(0)))
        if never == "stops to talk":
            scene.haunt()
        scene.kill()
        await scene.deaths.settled(scene.one)
        assert scene.log[-1] == "buried"
        assert scene.log.count("buried") == 1
        scene.close()


async def test_who_lives_is_heard_and_not_waited_for() -> None:
    async with asyncio.TaskGroup() as tasks:
        scene = Scene(tasks, slow=3)
        scene.theirs.send(encode(Staged(0, 0)))
        scene.theirs.send(encode(Release(1)))
        await scene.deaths.settled(scene.one)
        assert scene.log == ["read 0", "heard 1"]
        assert not scene.deaths.dying(scene.one)
        scene.close()


async def test_who_is_heard_to_leave_is_not_buried_and_keeps_nobody_waiting() -> None:
    async with asyncio.TaskGroup() as tasks:
        scene = Scene(tasks, slow=3)
        scene.theirs.send(encode(Staged(0, 0)))
        scene.kill()
        waiting = tasks.create_task(scene.deaths.settled(scene.one))
        while not scene.deaths.dying(scene.one):  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0)
        scene.deaths.forget(scene.one)
        await waiting
        scene.close()
    assert scene.log == ["read 0"]


class Asked(list[asyncio.Event]):
    """Nothing is read; counts how often that is asked."""

    times = 0

    def __bool__(self) -> bool:
        self.times += 1
        return False


async def test_who_is_deaf_and_dead_is_not_asked_all_the_time() -> None:
    async with asyncio.TaskGroup() as tasks:
        scene, asked = Scene(tasks, seconds=0.3), Asked()
        scene.reading = asked
        scene.session.link.pause()
        scene.kill()
        while "buried" not in scene.log:  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0.01)
        scene.theirs.close()
        scene.session.link.hang_up("")
    assert asked.times < 30
