"""What holds for every sequence of answers and ticks."""

import itertools
import math
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from evacd.facts import Cancelled, Confidence, Notice, Noticed, Probe, Quiet, Unknown
from evacd.order import NEXT, Amended, Event, Given, Machine, State, StoodDown, Transition

SOURCES = st.sampled_from(["gcp", "operator"])
IDS = st.sampled_from(["a", "b", "c"])
SECONDS = st.integers(-50, 400).map(float)

NOTICES = st.builds(
    Notice,
    source=SOURCES,
    kind=st.sampled_from(["preempted", "maintenance"]),
    id=IDS,
    confidence=st.sampled_from(Confidence),
    deadline=st.one_of(st.none(), SECONDS, st.sampled_from([math.inf, -math.inf, math.nan])),
    seen=SECONDS,
)
SILENT = st.one_of(
    st.builds(Quiet, SOURCES),
    st.builds(Unknown, SOURCES, st.just("HTTP 503")),
)
PROBES = st.one_of(
    st.builds(Noticed, NOTICES),
    st.builds(Cancelled, SOURCES, IDS),
    SILENT,
)


@dataclass(frozen=True)
class Tick:
    need: float


@dataclass(frozen=True)
class Move:
    now: float
    what: Probe | Tick


TICKS = st.builds(Tick, st.one_of(st.integers(0, 300).map(float), st.just(math.inf)))


@st.composite
def histories(draw: st.DrawFn) -> list[Move]:
    """Answers and ticks, in an order in which time never runs backwards."""
    whats = draw(st.lists(st.one_of(PROBES, TICKS), max_size=30))
    gaps = draw(st.lists(st.integers(0, 40), min_size=len(whats), max_size=len(whats)))
    times = itertools.accumulate(gaps)
    return [Move(float(now), what) for now, what in zip(times, whats, strict=True)]


def fresh() -> Machine:
    ids = itertools.count(1)
    return Machine(new_id=lambda: f"o{next(ids)}")


def play(machine: Machine, move: Move) -> tuple[Transition, ...]:
    if isinstance(move.what, Tick):
        return machine.tick(now=move.now, need=move.what.need)
    return machine.feed(move.what, now=move.now)


def test_the_table_is_total() -> None:
    assert set(NEXT) == set(itertools.product(State, Event))


def test_without_a_cancel_the_table_only_rises() -> None:
    assert all(
        after >= before for (before, event), after in NEXT.items() if event is not Event.CANCELLED
    )


def test_a_cancel_always_ends_in_calm() -> None:
    assert {NEXT[state, Event.CANCELLED] for state in State} == {State.CALM}


@given(histories())
def test_at_most_one_order_runs_and_the_transitions_tell_it_all(history: list[Move]) -> None:
    machine = fresh()
    running = None
    seen: set[str] = set()
    for move in history:
        for told in play(machine, move):
            match told:
                case Given(order):
                    assert running is None
                    assert order.id not in seen
                    assert order.given == move.now
                    seen.add(order.id)
                    running = order
                case Amended(order):
                    assert running is not None
                    assert (order.id, order.given) == (running.id, running.given)
                    assert order.amendments == running.amendments + 1
                    running = order
                case StoodDown(order, reason):
                    assert order == running
                    assert reason
                    running = None
                case _:
                    pass
        assert machine.order == running
        assert (machine.state is State.LEAVING) == (running is not None)


@given(histories())
def test_the_deadline_is_finite_and_never_grows_without_a_cancel(history: list[Move]) -> None:
    machine = fresh()
    for move in history:
        before = machine.order
        play(machine, move)
        after = machine.order
        if after is not None:
            assert math.isfinite(after.deadline)
        if before is not None and not isinstance(move.what, Cancelled):
            assert after is not None
            assert after.deadline <= before.deadline
            assert after.confidence >= before.confidence


@given(histories(), NOTICES)
def test_a_certain_notice_has_an_order_in_the_same_feed(
    history: list[Move], notice: Notice
) -> None:
    machine = fresh()
    for move in history:
        play(machine, move)
    now = history[-1].now if history else 0.0

    machine.feed(Noticed(notice), now=now)

    if notice.confidence >= Confidence.CERTAIN:
        assert machine.order is not None
        assert machine.order.confidence >= notice.confidence
        latest = notice.deadline if notice.deadline is not None else now
        assert machine.order.deadline <= (latest if math.isfinite(latest) else now)


@given(histories(), SILENT)
def test_quiet_and_unknown_never_change_anything(history: list[Move], silent: Probe) -> None:
    plain, disturbed = fresh(), fresh()
    for move in history:
        assert disturbed.feed(silent, now=move.now) == ()
        assert play(disturbed, move) == play(plain, move)
        assert disturbed.order == plain.order


@given(histories(), st.lists(st.integers(1, 3), min_size=30, max_size=30))
def test_duplicates_yield_nothing(history: list[Move], copies: list[int]) -> None:
    once, often = fresh(), fresh()
    for move, count in zip(history, copies, strict=False):
        expected = play(once, move)
        assert [play(often, move) for _ in range(count)] == [expected, *[()] * (count - 1)]


@given(histories())
def test_once_everything_is_cancelled_the_node_is_calm(history: list[Move]) -> None:
    machine = fresh()
    for move in history:
        play(machine, move)
    now = history[-1].now if history else 0.0

    for source in ("gcp", "operator"):
        for id in ("a", "b", "c"):
            machine.feed(Cancelled(source, id), now=now)

    assert machine.order is None
    assert machine.state is State.CALM


@given(st.integers(1, 5000).map(float), st.integers(0, 5000).map(float))
def test_a_planned_order_starts_at_deadline_minus_need_and_not_before(
    deadline: float, need: float
) -> None:
    machine = fresh()
    notice = Notice("aws", "reboot", "r", Confidence.PLANNED, deadline, seen=0.0)
    machine.tick(now=0.0, need=need)
    machine.feed(Noticed(notice), now=0.0)

    machine.tick(now=max(deadline - need - 0.5, 0.0), need=need)
    early = machine.order
    machine.tick(now=max(deadline - need, 0.0), need=need)

    assert (early is not None) == (deadline - need <= 0.0)
    assert machine.order is not None
