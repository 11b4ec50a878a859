"""Moments at which something may die: each brings a machine there and keeps it there.

Where the daemon is at work it stops itself at the boundary (see `doom`), so that nothing depends
on who is quicker. `Scene.go_on` lets it work on.
"""

import os
import select
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType

from tests.agent.daemon.nodes import until
from tests.deaths.machine import Machine, Worker


@dataclass
class Scene:
    """A machine at a moment.

    Attributes:
        victim: Makes the workload that something is to befall.
        staged: Steps that were staged: not one of them may be lost.
        asked: The victim still waits for an answer.
        writing: It holds a slot that it has begun to write.
        forked: The child of the victim that outlives it.
    """

    machine: Machine
    victims: Callable[..., Worker]
    victim: Worker = field(init=False)
    staged: set[int] = field(default_factory=set)
    asked: bool = False
    writing: bool = False
    forks: bool = False
    child: int | None = None

    def board(self) -> Worker:
        """The victim is on its way."""
        self.victim = self.victims(self.machine)
        return self.victim

    def aboard(self) -> Worker:
        """The victim is on board, and its memory where a restart finds it."""
        self.board()
        assert self.victim.do("connect")["connected"]
        self.fork()
        assert self.victim.do("reserve") == {}
        if self.machine.stores:
            until("the fd store has its slots", lambda: len(self.machine.manager.names()) == 3)
        return self.victim

    def stage(self, *steps: int) -> None:
        """The daemon has them."""
        for step in steps:
            assert self.victim.do("stage", step=step) == {}
            self.staged.add(step)
            self.machine.knows("job", step)

    def stops(self, label: str, nth: int = 0) -> None:
        """A daemon that stops there."""
        report = str(self.machine.home / "boundary")
        self.machine.begin(report=report, label=label, nth=nth, signal=int(signal.SIGSTOP))
        until("evacd listens", self.machine.listens)

    def stopped(self) -> None:
        """Wait for it."""
        until("the daemon stops itself", self.machine.stopped)

    def go_on(self) -> None:
        """It works on."""
        assert self.machine.process
        self.machine.process.send_signal(signal.SIGCONT)

    def fork(self) -> None:
        """A child that keeps the socket open, where the victim is to have one."""
        if self.forks:
            # Seen by its number alone, and gone at the test's end.
            self.child = os.pidfd_open(self.victim.do("fork")["child"])

    def child_lives(self) -> bool:
        """The child of the victim has not ended."""
        poll = select.poll()
        poll.register(-1 if self.child is None else self.child, select.POLLIN)
        return self.child is not None and not poll.poll(0)

    def close(self) -> None:
        """Nobody outlives it."""
        if self.child is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.child, signal.SIGKILL)
            os.close(self.child)
            self.child = None


def _before_register(scene: Scene) -> None:
    scene.machine.start()
    assert scene.machine.process
    scene.machine.process.send_signal(signal.SIGSTOP)
    # Its hello waits in the kernel.
    scene.board().do("state")
    scene.fork()


def _filling(scene: Scene) -> None:
    scene.stops("stage warm before")
    assert scene.board().do("connect")["connected"]
    scene.fork()
    scene.victim.ask("reserve")
    scene.asked = True
    scene.stopped()


def _writing(scene: Scene) -> None:
    scene.machine.start()
    scene.aboard()
    scene.stage(1)
    scene.victim.do("begin", step=2)
    scene.writing = True


def _inspected(scene: Scene) -> None:
    scene.stops("stage inspect before", 1)
    scene.aboard()
    scene.stage(1)
    scene.victim.do("stage", step=2)
    scene.staged.add(2)
    scene.stopped()


def _complete(scene: Scene) -> None:
    scene.machine.start()
    scene.aboard()
    scene.stage(1, 2)


def _flushing(label: str) -> Callable[[Scene], None]:
    def bring(scene: Scene) -> None:
        scene.stops(label)
        scene.aboard()
        scene.stage(1, 2)
        scene.machine.drain_unheard()
        scene.stopped()

    return bring


def _retention(scene: Scene) -> None:
    scene.stops("retention unlink before")
    scene.aboard()
    scene.stage(1)
    scene.machine.drain(3600.0)
    until("the first is safe", lambda: scene.machine.saved(1))
    assert scene.victim.do("stage", step=2) == {}
    scene.staged.add(2)
    scene.stopped()


def _adoption(scene: Scene) -> None:
    scene.stops("adoption sendmsg before")
    former = scene.machine.worker().ready()
    if scene.machine.stores:
        until("the fd store has its slots", lambda: len(scene.machine.manager.names()) == 3)
    for step in (1, 2):
        assert former.do("stage", step=step) == {}
        scene.machine.knows("job", step)
    former.kill()
    scene.staged = {1, 2}
    until("it is saved", lambda: scene.machine.saved(2))
    assert scene.board().do("connect")["connected"]
    scene.fork()
    scene.victim.ask("adopt")
    scene.asked = True
    scene.stopped()


def _idle(scene: Scene) -> None:
    _complete(scene)
    scene.machine.drain(3600.0)
    scene.machine.settled()


MOMENTS: Mapping[str, Callable[[Scene], None]] = MappingProxyType(
    {
        "before register": _before_register,
        "reserve: filling": _filling,
        "writing": _writing,
        "inspected": _inspected,
        "complete": _complete,
        "flush: body": _flushing("flush pwrite before"),
        "flush: manifest": _flushing("manifest link before"),
        "flush: .metadata": _flushing("metadata link before"),
        "flush: marker": _flushing("marker rename before"),
        "retention": _retention,
        "adoption": _adoption,
        "idle": _idle,
    }
)
# What comes after a death: tested with those that leave nobody.
LATER = ("past its TTL", "ranks move")
