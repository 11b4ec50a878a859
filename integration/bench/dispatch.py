"""How long from a notice that is seen until the last of 64 workloads has been told.

A second process plays the workloads: 64 connections registered with a real board (64 ranks of a
job), and 64 plain socket pairs. Beside the daemon's way (order machine, message, 64 sends)
stands the least that any way can cost: the same bytes sent to the 64 pairs. Both end when the
last of the 64 packets has been read by the other process.
"""

import asyncio
import logging
import os
import select
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import quantiles

import structlog
from harness import Ratio, Variant, main

from evac.wire import Hello, OrderGiven, Register, encode
from evacd.clock import SystemClock
from evacd.facts import Confidence, Notice, Noticed
from evacd.order.machine import Machine
from evacd.workloads import Board, BoardSettings

WORKLOADS = 64
SAMPLES = 200
# The workloads are asleep in their poll when a notice comes, and so is the daemon.
PAUSE = 0.002
_STAMP = struct.Struct("<q")
_CLOCK = SystemClock()


def workloads(path: Path, pairs: Sequence[socket.socket], report: int) -> None:
    """The second process: register, then stamp the moment of every 64th packet."""
    sockets = list(pairs)
    for rank in range(WORKLOADS):
        one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        while one.connect_ex(str(path)):
            time.sleep(0.01)
        for number, message in enumerate(
            (Hello(version=1), Register(job="bench", rank=rank, world=WORKLOADS)), start=1
        ):
            one.send(encode(message, id=number))
            one.recv(65536)
        sockets.append(one)
    os.write(report, _STAMP.pack(0))
    by_fd = {one.fileno(): one for one in sockets}
    poll = select.epoll()
    for fd in by_fd:
        poll.register(fd, select.EPOLLIN)
    left = WORKLOADS
    while True:
        for fd, _ in poll.poll():
            if not by_fd[fd].recv(65536):
                return
            left -= 1
            if left == 0:
                os.write(report, _STAMP.pack(time.monotonic_ns()))
                left = WORKLOADS


class Dispatch:
    """Both ways to tell 64 workloads, on one event loop, and the answer of who was told."""

    def __init__(self, board: Board, pairs: Sequence[socket.socket], told: int) -> None:
        self._board = board
        self._pairs = pairs
        self._told = told
        self._notice = Notice(
            source="gcp",
            kind="preempted",
            id="bench",
            confidence=Confidence.CERTAIN,
            deadline=_CLOCK.monotonic() + 1e6,
            seen=_CLOCK.monotonic(),
        )
        order = OrderGiven(
            order="bench",
            seconds_left=30.123456,
            confidence="certain",
            source="gcp",
            kind="preempted",
        )
        self._packet = encode(order)

    def evac(self) -> None:
        """From the notice, as its source gives it, to the last send."""
        machine = Machine(lambda: "bench")
        machine.feed(Noticed(self._notice), now=_CLOCK.monotonic())
        if machine.order is None or self._board.give(machine.order) != WORKLOADS:
            raise RuntimeError("the order did not reach everybody")

    def raw(self) -> None:
        """The sends alone."""
        for one in self._pairs:
            one.sendall(self._packet)

    async def sample(self, tell: Callable[[], None]) -> float:
        """Milliseconds until the last of 64 was told."""
        await asyncio.sleep(PAUSE)
        begun = time.monotonic_ns()
        tell()
        return (await self.stamp() - begun) / 1e6

    async def stamp(self) -> int:
        """The next report of the other process."""
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._told, ready.set)
        await ready.wait()
        loop.remove_reader(self._told)
        return int(_STAMP.unpack(os.read(self._told, _STAMP.size))[0])

    async def figures(self, tell: Callable[[], None]) -> Mapping[str, float]:
        """One round."""
        cuts = quantiles([await self.sample(tell) for _ in range(SAMPLES)], n=100)
        return {"p50_ms": cuts[49], "p99_ms": cuts[98]}


def settings(folder: Path) -> BoardSettings:
    """A board for this bench."""
    return BoardSettings(
        workload_path=folder / "evacd.sock",
        admin_path=folder / "admin.sock",
        workload_mode=0o600,
        admin_group="",
        memory_bytes=0,
        user_bytes=0,
        slots=1,
        orphan_seconds=60.0,
        max_priority=0,
        allow_users=(),
        node="bench",
        boot="",
        version="",
        stores=(),
        max_workloads=WORKLOADS,
        max_strangers=WORKLOADS,
    )


def bench(folder: Path, pairs: Sequence[socket.socket], told: int) -> int:
    """Serve, wait until all are on board, measure."""
    with asyncio.Runner() as runner:

        async def begin() -> tuple[Dispatch, "asyncio.Task[None]"]:
            board = Board(
                settings(folder),
                clock=_CLOCK,
                happened=lambda happening: None,
                status=dict,
                admin=lambda message: message,
            )
            # Owned by this bench for as long as its loop lives, and cancelled below.
            serving = asyncio.get_running_loop().create_task(board.serve())
            await board.ready.wait()
            dispatch = Dispatch(board, pairs, told)
            await dispatch.stamp()
            return dispatch, serving

        dispatch, serving = runner.run(begin())
        try:
            return main(
                "dispatch",
                [
                    Variant("evac 64", lambda: runner.run(dispatch.figures(dispatch.evac))),
                    Variant("raw sends 64", lambda: runner.run(dispatch.figures(dispatch.raw))),
                ],
                [
                    Ratio("p50", "p50_ms", "evac 64", None, 1.0, at_least=False),
                    Ratio("vs_raw", "p50_ms", "evac 64", "raw sends 64", 2.0, at_least=False),
                ],
                warmup=1,
            )
        finally:
            serving.cancel()


def run() -> int:
    """Split in two processes, and end both."""
    # Standard output is the harness's.
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    made = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(WORKLOADS)]
    told, report = os.pipe()
    with tempfile.TemporaryDirectory() as name:
        child = os.fork()
        if child == 0:
            try:
                for mine, _ in made:
                    mine.close()
                workloads(Path(name) / "evacd.sock", [theirs for _, theirs in made], report)
            finally:
                os._exit(0)
        try:
            return bench(Path(name), [mine for mine, _ in made], told)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


if __name__ == "__main__":
    sys.exit(run())
