"""The client against the real daemon's board, in its own thread and its own loop."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import pytest

import evac
from evac.admin import read_status, request
from evac.generation import Generation
from evac.segment import PAGE, Header, SlotState
from evac.wire import Accepted, Cancel, Drain, Drill, Message, Refuse
from evacd.clock import SystemClock
from evacd.facts import Confidence, Notice, Order
from evacd.workloads import Board, BoardSettings, Died, Happening, Joined, Left, StagedOne
from tests.handlers.client.honest import LIMIT

SLOT = 4 * PAGE
UNIT_MEMORY = 64 * SLOT

_R = TypeVar("_R")


class Node:
    """A `Board` and the loop that it lives on."""

    def __init__(self, folder: Path) -> None:
        self.path, self.admin = folder / "evacd.sock", folder / "admin.sock"
        self.happened: SimpleQueue[Happening] = SimpleQueue()
        self.asked: list[Message] = []
        self.clock = SystemClock()
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)
        self._thread.start()
        assert self._started.wait(LIMIT)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        settings = BoardSettings(
            workload_path=self.path,
            admin_path=self.admin,
            workload_mode=0o666,
            admin_group="",
            memory_bytes=UNIT_MEMORY,
            user_bytes=1 << 62,
            slots=3,
            orphan_seconds=3600.0,
            max_priority=100,
            allow_users=(),
            node="node-7",
            boot="boot",
            version="0.1.0",
            stores=("file:///mnt/a",),
        )
        self.board = Board(
            settings,
            clock=self.clock,
            happened=self.happened.put,
            status=lambda: {"board": self.board.snapshot()},
            admin=self._ask,
        )
        with suppress(asyncio.CancelledError):
            async with asyncio.TaskGroup() as tasks:
                serving = tasks.create_task(self.board.serve())
                await self.board.ready.wait()
                self._started.set()
                await self._over.wait()
                serving.cancel()

    def call(self, function: Callable[[], _R]) -> _R:
        """Run *function* on the board's loop."""
        done: Future[_R] = Future()

        def run() -> None:
            try:
                done.set_result(function())
            except Exception as error:  # noqa: BLE001 - raised where the result is asked for
                done.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return done.result(LIMIT)

    def turn(self, unit: str) -> "Future[Any]":
        """Begin a turn of *unit*."""
        waited = self.board.turn(unit, seconds=LIMIT, order="o1")
        return asyncio.run_coroutine_threadsafe(waited, self._loop)

    def next(self, kind: type[_R]) -> _R:
        """The next happening of *kind*; others are passed over."""
        while True:
            happening = self.happened.get(timeout=LIMIT)
            if isinstance(happening, kind):
                return happening

    def stop(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(LIMIT)

    def _ask(self, message: Drain | Cancel | Drill) -> Message:
        self.asked.append(message)
        return Accepted() if isinstance(message, Drain) else Refuse(reason="no order runs")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    one = Node(tmp_path)
    yield one
    one.stop()


@pytest.fixture
def client(node: Node, connect: Callable[..., evac.Client]) -> evac.Client:
    one = connect(priority=5)
    assert one.wait_connected(LIMIT)
    return one


def stage(client: evac.Client, step: int, body: bytes) -> None:
    slot = client.acquire(LIMIT)
    assert slot is not None, client.last_refusal
    slot.begin(incarnation=0)
    slot.memory[PAGE : PAGE + len(body)] = body
    slot.complete(Header(SlotState.COMPLETE, 0, step, len(body)))
    client.staged(slot, step)


def order(node: Node, seconds: float = 1e6) -> Order:
    now = node.clock.monotonic()
    return Order("o1", now + seconds, Confidence.CERTAIN, "gcp", "preempted", given=now)


def test_what_is_staged_is_what_the_daemon_holds(node: Node, client: evac.Client) -> None:
    assert client.node == "node-7"
    assert client.stores == ("file:///mnt/a",)
    client.reserve(incarnation=0, nbytes=SLOT, body="a.bin", layout="l")
    stage(client, 4, b"state of four")
    unit = client.prefix
    assert node.next(StagedOne) == StagedOne(unit, 0, Generation(0, 4))

    def held() -> tuple[bytes, int]:
        with node.board.hold(unit, Generation(0, 4)) as parts:
            return bytes(parts[0].data), parts[0].rank

    assert node.call(held) == (b"state of four", 0)


def test_stages_go_on_for_as_long_as_training_does(node: Node, client: evac.Client) -> None:
    client.reserve(incarnation=0, nbytes=SLOT, body="a.bin", slots=3)
    for step in range(1, 30):
        stage(client, step, b"%d" % step)
        assert node.next(StagedOne).generation == Generation(0, step)
    assert client.refusals == 0


def test_a_step_that_is_not_newer_is_refused_later(node: Node, client: evac.Client) -> None:
    client.reserve(incarnation=0, nbytes=SLOT, body="a.bin")
    stage(client, 5, b"x")
    stage(client, 5, b"y")
    client.status(LIMIT)
    assert client.refusals == 1
    assert "not newer" in client.last_refusal
    stage(client, 6, b"z")


def test_a_header_that_says_another_step_is_refused(node: Node, client: evac.Client) -> None:
    client.reserve(incarnation=0, nbytes=SLOT, body="a.bin")
    slot = client.acquire(LIMIT)
    assert slot is not None
    slot.complete(Header(SlotState.COMPLETE, 0, 5, 1))
    client.staged(slot, 6)
    client.status(LIMIT)
    assert client.refusals == 1
    assert "header says step 5" in client.last_refusal


def test_more_memory_than_the_node_gives_is_refused_with_numbers(client: evac.Client) -> None:
    with pytest.raises(evac.Refused, match="the budget of this node is"):
        client.reserve(nbytes=2 * UNIT_MEMORY, body="a.bin")


def test_a_second_process_on_the_same_rank_stays_off_board(
    node: Node, client: evac.Client, path: Path
) -> None:
    code = (
        "import evac, sys, logging\n"
        "logging.basicConfig(format='%(message)s')\n"
        "client = evac.connect('job', socket=sys.argv[1])\n"
        "print(client.wait_connected(0.5))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
    assert f"already registered by pid {os.getpid()}" in done.stderr
    assert client.connected


def test_orders_reach_everybody_and_late_comers(
    node: Node, client: evac.Client, connect: Callable[..., evac.Client]
) -> None:
    heard: SimpleQueue[object] = SimpleQueue()
    client.on_order(heard.put)
    client.on_stand_down(heard.put)
    client.on_advice(heard.put)
    notice = Notice("aws", "rebalance", "n", Confidence.ADVISORY, None, 0.0)
    assert node.call(lambda: node.board.advise(notice)) == 1
    given = order(node)
    assert node.call(lambda: node.board.give(given)) == 1
    assert heard.get(timeout=LIMIT) == evac.Advice(source="aws", kind="rebalance")
    first = heard.get(timeout=LIMIT)
    assert isinstance(first, evac.RunningOrder)
    assert (first.id, first.confidence, first.kind) == ("o1", "certain", "preempted")

    late = connect("late")
    assert late.wait_connected(LIMIT)
    late.on_order(heard.put)
    assert isinstance(heard.get(timeout=LIMIT), evac.RunningOrder)

    assert node.call(lambda: node.board.stand_down(given, "it was withdrawn")) == 2
    assert heard.get(timeout=LIMIT) == "it was withdrawn"


def test_a_callback_workload_takes_its_turn(
    node: Node, connect: Callable[..., evac.Client]
) -> None:
    client = connect("server", mode="callback", need_seconds=1)

    @client.on_turn
    def flush(budget: evac.TurnBudget) -> int:
        return 77 if 0 < budget.seconds_left() <= LIMIT and budget.order == "o1" else 0

    assert client.wait_connected(LIMIT)
    result = node.turn(client.prefix).result(LIMIT)
    assert (result.ok, result.nbytes) == (True, 77)


def test_a_callback_that_raises_is_a_turn_that_failed(
    node: Node, connect: Callable[..., evac.Client]
) -> None:
    client = connect("server", mode="callback", need_seconds=1)

    @client.on_turn
    def flush(budget: evac.TurnBudget) -> int:
        raise OSError("disk full")

    assert client.wait_connected(LIMIT)
    result = node.turn(client.prefix).result(LIMIT)
    assert not result.ok
    assert "OSError: disk full" in result.reason


_STAGES = """
import os, signal, sys, evac
from evac.segment import Header, SlotState
client = evac.connect("job", socket=sys.argv[1])
assert client.wait_connected(20)
client.reserve(incarnation=0, nbytes=16384, body="a.bin")
slot = client.acquire(20)
slot.memory[4096:4101] = b"state"
slot.complete(Header(SlotState.COMPLETE, 0, 9, 5))
client.staged(slot, 9)
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_what_a_stopped_and_then_killed_process_staged_is_kept(node: Node) -> None:
    with subprocess.Popen([sys.executable, "-c", _STAGES, str(node.path)]) as process:
        try:
            unit = node.next(Joined).unit
            assert node.next(StagedOne).generation == Generation(0, 9)
        finally:
            process.send_signal(signal.SIGKILL)
        assert node.next(Died).unit == unit

    def held() -> bytes:
        with node.board.hold(unit, Generation(0, 9)) as parts:
            return bytes(parts[0].data)

    assert node.call(held) == b"state"


def test_a_forked_child_keeps_nobody_alive(node: Node) -> None:
    code = (
        "import os, signal, sys, time, evac\n"
        "client = evac.connect('job', socket=sys.argv[1])\n"
        "assert client.wait_connected(20)\n"
        "client.reserve(nbytes=16384, body='a.bin')\n"
        "ready, tell = os.pipe()\n"
        "child = os.fork()\n"
        "if child == 0: os.write(tell, b'x'); signal.pause()\n"
        "os.read(ready, 1)\n"  # the child is past what runs at a fork
        "print(child, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(node.path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            assert node.next(Died).rank == 0
            maps = Path(f"/proc/{child}/maps").read_text()
            assert "evac-slot" not in maps
            fds = [os.readlink(one) for one in Path(f"/proc/{child}/fd").iterdir()]
            assert not [one for one in fds if "evac-slot" in one or "socket:" in one]
        finally:
            os.kill(child, signal.SIGKILL)


def test_who_leaves_is_gone_with_all_that_was_staged(node: Node, client: evac.Client) -> None:
    client.reserve(incarnation=0, nbytes=SLOT, body="a.bin")
    stage(client, 1, b"x")
    client.leave()
    assert node.next(Left).rank == 0
    assert node.call(lambda: node.board.units()) == ()


def test_status_counts_who_is_on_board(node: Node, client: evac.Client) -> None:
    mine, theirs = client.status(LIMIT), read_status(node.admin, timeout=LIMIT)
    assert [one["job"] for one in mine["board"]["workloads"]] == ["job"]
    assert mine == theirs


def test_drain_is_for_the_admin_socket_alone(node: Node) -> None:
    drain = Drain(seconds=30)
    assert request(node.admin, drain, timeout=LIMIT) == Accepted()
    assert request(node.admin, Cancel(), timeout=LIMIT) == Refuse(reason="no order runs")
    refused = request(node.path, drain, timeout=LIMIT)
    assert isinstance(refused, Refuse)
    assert "admin socket" in refused.reason
    assert node.asked == [drain, Cancel()]


def test_a_board_that_comes_again_is_found(tmp_path: Path) -> None:
    first = Node(tmp_path)
    with evac.connect("job", socket=first.path) as client:
        assert client.wait_connected(LIMIT)
        client.reserve(incarnation=0, nbytes=SLOT, body="a.bin")
        first.stop()
        second = Node(tmp_path)
        try:
            second.next(Joined)
            assert client.wait_connected(LIMIT)
            client.reserve(incarnation=0, nbytes=SLOT, body="a.bin")
            stage(client, 3, b"again")
            assert second.next(StagedOne).generation == Generation(0, 3)
        finally:
            second.stop()
