"""A callback workload flushes once at a time, whoever gives it how many turns meanwhile."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st

import evac
import evac.aio
from evac._turns import Turns
from evac.wire import Done, Turn
from tests.handlers.client.honest import LIMIT, Daemon

Connect = Callable[..., evac.Client]


def turn(number: int, seconds: float = 60.0, order: str = "o1") -> Turn:
    return Turn(turn=number, seconds=seconds, order=order)


# --- the book -------------------------------------------------------------------------------


@given(
    st.lists(
        st.one_of(st.integers(1, 6), st.sampled_from(["well", "badly", "forget", "function"])),
        max_size=30,
    )
)
def test_of_each_turn_one_answer_is_given_and_no_two_flushes_are_under_way(
    said: list[int | str],
) -> None:
    turns, function, under_way = Turns(lambda: 0.0), False, 0
    asked: set[int] = set()
    for one in said:
        if isinstance(one, int):
            turns.take(turn(one, order=f"o{one % 2}"))
            asked.add(one)
        elif one == "function":
            function = True
        elif one == "forget":
            turns.forget()
            asked.clear()
        elif under_way:
            answered, again = turns.ended(well=one == "well")
            assert len(answered) == len(set(answered))
            assert set(answered) <= asked
            asked -= set(answered)
            under_way = int(again is not None)
            assert one == "badly" or len({number % 2 for number in asked}) < 2
        if function:
            under_way += turns.begin() is not None
        assert under_way <= 1
        assert under_way or not (function and asked), "nobody is left without"


def test_less_time_counts_and_more_does_not() -> None:
    turns = Turns(lambda: 0.0)
    turns.take(turn(1, 60.0))
    budget = turns.begin()
    assert budget is not None
    assert not turns.take(turn(1, 40.0))
    assert budget.seconds_left() == 40.0
    assert not turns.take(turn(2, 20.0))
    assert budget.seconds_left() == 20.0
    assert not turns.take(turn(3, 3600.0))
    assert budget.seconds_left() == 20.0


# --- both shells ----------------------------------------------------------------------------


@pytest.fixture
def turning(daemon: Daemon, connect: Connect) -> evac.Client:
    one = connect(mode="callback", need_seconds=5)
    assert one.wait_connected(LIMIT)
    return one


class Flush:
    """Tells of each call, and ends it as it is told to."""

    def __init__(self) -> None:
        self.began: SimpleQueue[str] = SimpleQueue()
        self.ends: SimpleQueue[bool] = SimpleQueue()

    def __call__(self, budget: evac.TurnBudget) -> int:
        self.began.put(budget.order)
        if not self.ends.get(timeout=LIMIT):
            raise OSError("disk full")
        return 7

    async def later(self, budget: evac.TurnBudget) -> int:
        return await asyncio.to_thread(self, budget)


def test_a_turn_that_comes_meanwhile_is_answered_by_the_same_flush(
    daemon: Daemon, turning: evac.Client
) -> None:
    flush = Flush()
    turning.on_turn(flush)
    daemon.tell(turn(1))
    assert flush.began.get(timeout=LIMIT) == "o1"
    daemon.tell(turn(2))
    turning.status(LIMIT)  # answered after the turn

    flush.ends.put(True)

    assert daemon.wait(Done, 2) == [Done(turn=one, ok=True, nbytes=7) for one in (1, 2)]
    assert flush.began.empty()


def test_another_orders_turn_has_a_flush_of_its_own_behind_it(
    daemon: Daemon, turning: evac.Client
) -> None:
    flush = Flush()
    turning.on_turn(flush)
    daemon.tell(turn(1))
    assert flush.began.get(timeout=LIMIT) == "o1"
    daemon.tell(turn(2, order="o2"))
    turning.status(LIMIT)  # answered after the turn
    assert flush.began.empty()

    flush.ends.put(True)
    assert flush.began.get(timeout=LIMIT) == "o2"
    flush.ends.put(True)

    assert daemon.wait(Done, 2) == [Done(turn=one, ok=True, nbytes=7) for one in (1, 2)]


def test_where_that_flush_fails_the_other_turn_has_one_of_its_own(
    daemon: Daemon, turning: evac.Client
) -> None:
    flush = Flush()
    turning.on_turn(flush)
    daemon.tell(turn(1))
    assert flush.began.get(timeout=LIMIT) == "o1"
    daemon.tell(turn(2))
    turning.status(LIMIT)  # answered after the turn

    flush.ends.put(False)
    assert flush.began.get(timeout=LIMIT) == "o1"
    flush.ends.put(True)

    first, second = daemon.wait(Done, 2)
    assert (first.turn, first.ok, first.reason) == (1, False, "OSError: disk full")
    assert second == Done(turn=2, ok=True, nbytes=7)


def test_a_daemon_that_comes_back_in_the_middle_is_answered_and_begins_no_second_flush(
    path: Path, connect: Connect
) -> None:
    daemon, flush = Daemon(path), Flush()
    turning = connect(mode="callback", need_seconds=5)
    turning.on_turn(flush)
    assert turning.wait_connected(LIMIT)
    daemon.tell(turn(1))
    assert flush.began.get(timeout=LIMIT) == "o1"
    daemon.stop()
    path.unlink()
    another = Daemon(path)
    try:
        another.wait_until(lambda: any(peer.register for peer in another.peers))
        assert turning.wait_connected(LIMIT)
        another.tell(turn(1))
        turning.status(LIMIT)  # answered after the turn

        flush.ends.put(True)

        assert another.wait(Done) == [Done(turn=1, ok=True, nbytes=7)]
        assert flush.began.empty()
    finally:
        another.stop()


async def test_the_same_holds_on_a_loop(daemon: Daemon, path: Path) -> None:
    flush = Flush()
    async with evac.aio.connect("job", mode="callback", need_seconds=5, socket=path) as client:
        client.on_turn(flush.later)
        assert await client.wait_connected(LIMIT)
        daemon.tell(turn(1))
        assert await asyncio.to_thread(flush.began.get, timeout=LIMIT) == "o1"
        for number, order in ((2, "o1"), (3, "o1"), (4, "o2")):
            daemon.tell(turn(number, order=order))
        await client.status(LIMIT)  # answered after the turns

        flush.ends.put(False)
        for order in ("o1", "o2"):
            assert await asyncio.to_thread(flush.began.get, timeout=LIMIT) == order
            flush.ends.put(True)

        done = await asyncio.to_thread(daemon.wait, Done, 4)
    assert (done[0].turn, [one.ok for one in done]) == (1, [False, True, True, True])
    assert {one.turn for one in done[1:3]} == {2, 3}
    assert flush.began.empty()


async def test_a_function_that_ends_by_no_mere_exception_has_failed_and_the_next_turn_is_flushed(
    daemon: Daemon, path: Path
) -> None:
    class Mine(BaseException):
        pass

    ends: list[BaseException] = [Mine("own"), asyncio.CancelledError()]
    async with evac.aio.connect("job", mode="callback", need_seconds=1.0, socket=path) as client:
        assert await client.wait_connected(LIMIT)

        @client.on_turn
        async def flush(_budget: object) -> int:
            if ends:
                raise ends.pop()
            return 7

        for number in (1, 2, 3):
            daemon.tell(turn(number))
            done = await asyncio.to_thread(daemon.wait, Done, number)

    first, second, third = done
    assert first == Done(turn=1, ok=False, reason="CancelledError() ended the function")
    assert second == Done(turn=2, ok=False, reason="Mine('own') ended the function")
    assert third == Done(turn=3, ok=True, nbytes=7)


def test_a_function_that_exits_ends_the_loop_and_its_turn_is_answered(
    daemon: Daemon, path: Path
) -> None:
    async def work() -> None:
        made = evac.aio.connect("job", mode="callback", need_seconds=1.0, socket=path)
        async with made as client:
            assert await client.wait_connected(LIMIT)

            @client.on_turn
            async def flush(_budget: object) -> int:
                sys.exit(3)

            daemon.tell(turn(1))
            await asyncio.sleep(LIMIT)

    with pytest.raises(SystemExit, match="3"):
        asyncio.run(work())

    assert daemon.wait(Done) == [Done(turn=1, ok=False, reason="SystemExit(3) ended the function")]


def test_a_close_waits_for_no_flush(daemon: Daemon, connect: Connect) -> None:
    hung, over = Event(), Event()
    one = connect(mode="callback", need_seconds=5)

    @one.on_turn
    def flush(_: evac.TurnBudget) -> int:
        hung.set()
        return int(over.wait(LIMIT))

    assert one.wait_connected(LIMIT)
    daemon.tell(turn(1))
    assert hung.wait(LIMIT)
    one.close()
    over.set()
