"""Orders, advice and turns, over a real socket."""

import sys
from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, current_thread

import pytest

import evac
from evac._callbacks import Callbacks
from evac.wire import Advice, Done, OrderGiven, StandDown, Turn
from tests.handlers.client.honest import LIMIT, Daemon

Connect = Callable[..., evac.Client]


def given(order: str = "o1", seconds: float = 1e6, *, amended: bool = False) -> OrderGiven:
    return OrderGiven(
        order=order,
        seconds_left=seconds,
        confidence="certain",
        source="gcp",
        kind="preemption",
        amended=amended,
    )


@pytest.fixture
def turning(daemon: Daemon, connect: Connect) -> evac.Client:
    one = connect(mode="callback", need_seconds=5)
    assert one.wait_connected(LIMIT)
    return one


def test_an_order_its_amendment_and_its_end_are_heard_in_order(
    daemon: Daemon, client: evac.Client
) -> None:
    heard: SimpleQueue[object] = SimpleQueue()
    client.on_order(heard.put)
    client.on_stand_down(heard.put)
    client.on_advice(heard.put)
    daemon.tell(Advice(source="gcp", kind="rebalance"))
    daemon.tell(given())
    daemon.tell(given(seconds=1e5, amended=True))
    daemon.tell(StandDown(order="o1", reason="cancelled"))
    assert heard.get(timeout=LIMIT) == Advice(source="gcp", kind="rebalance")
    first, second = heard.get(timeout=LIMIT), heard.get(timeout=LIMIT)
    assert isinstance(first, evac.RunningOrder)
    assert isinstance(second, evac.RunningOrder)
    assert (first.id, first.confidence, first.source) == ("o1", "certain", "gcp")
    assert 0 < second.seconds_left() <= 1e5 < first.seconds_left()
    assert heard.get(timeout=LIMIT) == "cancelled"
    assert client.order is None


def test_who_asks_late_hears_of_the_running_order(daemon: Daemon, client: evac.Client) -> None:
    heard: SimpleQueue[evac.RunningOrder] = SimpleQueue()
    daemon.tell(given())
    client.status(LIMIT)  # answered after the order

    @client.on_order
    def hear(order: evac.RunningOrder) -> None:
        heard.put(order)

    assert heard.get(timeout=LIMIT).id == "o1"


def test_a_function_that_raises_keeps_no_other_from_hearing(
    daemon: Daemon, client: evac.Client
) -> None:
    heard: SimpleQueue[str] = SimpleQueue()

    @client.on_order
    def fail(_order: evac.RunningOrder) -> None:
        raise RuntimeError("mine")

    client.on_order(lambda order: heard.put(order.id))
    daemon.tell(given())
    assert heard.get(timeout=LIMIT) == "o1"


def test_a_turn_is_flushed_in_its_own_thread_and_answered(
    daemon: Daemon, turning: evac.Client
) -> None:
    seen: list[tuple[str, bool, str]] = []

    @turning.on_turn
    def flush(budget: evac.TurnBudget) -> int:
        seen.append((current_thread().name, 0 < budget.seconds_left() <= 60, budget.order))
        return 4096

    daemon.tell(Turn(turn=3, seconds=60, order="o1"))
    assert daemon.wait(Done) == [Done(turn=3, ok=True, nbytes=4096)]
    assert seen == [("evac-turn", True, "o1")]


def test_a_turn_that_fails_says_why(daemon: Daemon, turning: evac.Client) -> None:
    @turning.on_turn
    def flush(budget: evac.TurnBudget) -> None:
        raise OSError("disk full" * 100)

    daemon.tell(Turn(turn=1, seconds=60, order="o1"))
    done = daemon.wait(Done)[0]
    assert not done.ok
    assert done.reason.startswith("OSError: disk full")


def test_a_function_that_exits_ends_its_flush_and_no_later_one(
    daemon: Daemon, turning: evac.Client
) -> None:
    ends: SimpleQueue[BaseException] = SimpleQueue()
    for error in (SystemExit(0), KeyboardInterrupt()):
        ends.put(error)

    @turning.on_turn
    def flush(budget: evac.TurnBudget) -> int:
        if not ends.empty():
            raise ends.get()
        return 7

    for number in (1, 2, 3):
        daemon.tell(Turn(turn=number, seconds=60, order="o1"))
        daemon.wait(Done, number)

    first, second, third = daemon.wait(Done, 3)
    assert (first.turn, first.ok, first.reason) == (1, False, "SystemExit(0) ended the function")
    assert second.reason == "KeyboardInterrupt() ended the function"
    assert third == Done(turn=3, ok=True, nbytes=7)


def test_a_function_that_exits_keeps_no_other_from_hearing(
    daemon: Daemon, client: evac.Client
) -> None:
    heard: SimpleQueue[str] = SimpleQueue()
    client.on_order(lambda _: sys.exit(1))
    client.on_order(lambda order: heard.put(order.id))
    daemon.tell(given())
    assert heard.get(timeout=LIMIT) == "o1"


def test_a_turn_that_comes_before_on_turn_waits_for_it(
    daemon: Daemon, turning: evac.Client
) -> None:
    daemon.tell(Turn(turn=1, seconds=60, order="o1"))
    turning.status(LIMIT)  # answered after the turn
    turning.on_turn(lambda budget: None)
    assert daemon.wait(Done) == [Done(turn=1, ok=True, nbytes=0)]


def test_a_long_turn_keeps_no_stand_down_waiting(daemon: Daemon, turning: evac.Client) -> None:
    over = Event()
    turning.on_stand_down(lambda reason: over.set())

    @turning.on_turn
    def flush(budget: evac.TurnBudget) -> int:
        assert over.wait(LIMIT)
        return 1

    daemon.tell(Turn(turn=1, seconds=60, order="o1"))
    daemon.tell(StandDown(order="o1"))
    assert daemon.wait(Done)[0].ok


def test_on_turn_needs_callback_mode(client: evac.Client) -> None:
    with pytest.raises(ValueError, match="mode='callback'"):
        client.on_turn(lambda budget: 0)


def test_a_turn_told_twice_runs_once_and_only_shrinks() -> None:
    now = [100.0]
    budgets: SimpleQueue[evac.TurnBudget] = SimpleQueue()
    end, done = Event(), SimpleQueue[Done]()

    def flush(budget: evac.TurnBudget) -> int:
        budgets.put(budget)
        assert end.wait(LIMIT)
        return 2

    callbacks = Callbacks(done.put, lambda: now[0])
    callbacks.on_turn(flush)
    callbacks.hear(Turn(turn=1, seconds=30, order="o1"))
    budget = budgets.get(timeout=LIMIT)
    now[0] = 110.0
    callbacks.hear(Turn(turn=1, seconds=5, order="o1"))
    assert budget.seconds_left() == 5
    callbacks.hear(Turn(turn=1, seconds=500, order="o1"))
    assert budget.seconds_left() == 5
    now[0] = 200.0
    assert budget.seconds_left() == 0
    end.set()
    assert done.get(timeout=LIMIT) == Done(turn=1, ok=True, nbytes=2)
    assert budgets.empty()


def test_seconds_left_counts_down_to_overtime() -> None:
    now = [10.0]
    callbacks = Callbacks(lambda done: None, lambda: now[0])
    callbacks.hear(given(seconds=30))
    order = callbacks.order
    assert order is not None
    now[0] = 25.0
    assert order.seconds_left() == 15
    now[0] = 45.0
    assert order.seconds_left() == 0


def test_a_turn_of_a_daemon_that_is_gone_is_not_answered_to_the_next() -> None:
    begun, end, done = Event(), Event(), SimpleQueue[Done]()
    over = Event()

    def flush(budget: evac.TurnBudget) -> int:
        begun.set()
        assert end.wait(LIMIT)
        if budget.order == "o2":
            over.set()
        return 1

    callbacks = Callbacks(done.put)
    callbacks.on_turn(flush)
    callbacks.hear(Turn(turn=1, seconds=30, order="o1"))
    assert begun.wait(LIMIT)
    callbacks.forget()
    callbacks.hear(Turn(turn=1, seconds=30, order="o2"))
    end.set()
    assert done.get(timeout=LIMIT).turn == 1
    assert over.wait(LIMIT)
    assert done.empty()
