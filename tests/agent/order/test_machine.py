"""Each rule of the order by one example; the laws are in test_laws."""

import math

import pytest

from evacd.facts import Cancelled, Confidence, Notice, Noticed, Order, Quiet, Unknown
from evacd.order import (
    Advised,
    Amended,
    Given,
    Machine,
    State,
    StoodDown,
    Waiting,
    Withdrawn,
)


def notice(
    id: str = "n1",
    *,
    confidence: Confidence = Confidence.CERTAIN,
    deadline: float | None = 130.0,
    source: str = "gcp",
    kind: str = "preempted",
) -> Notice:
    return Notice(
        source=source,
        kind=kind,
        id=id,
        confidence=confidence,
        deadline=deadline,
        seen=100.0,
    )


def planned(id: str = "p1", *, deadline: float | None = 1000.0) -> Notice:
    return notice(id, confidence=Confidence.PLANNED, deadline=deadline, kind="maintenance")


FIRST = Order(
    id="o1",
    deadline=130.0,
    confidence=Confidence.CERTAIN,
    source="gcp",
    kind="preempted",
    given=100.0,
)


def test_a_certain_notice_is_an_order_at_once(machine: Machine) -> None:
    assert machine.feed(Noticed(notice()), now=100.0) == (Given(FIRST),)
    assert machine.order == FIRST
    assert machine.state is State.LEAVING


def test_a_notice_told_sixty_times_gives_one_order(machine: Machine) -> None:
    told = [machine.feed(Noticed(notice()), now=100.0 + second) for second in range(60)]

    assert told == [(Given(FIRST),), *[()] * 59]


@pytest.mark.parametrize("deadline", [None, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("confidence", [Confidence.CERTAIN, Confidence.STARTED])
def test_without_a_usable_time_the_deadline_is_now(
    machine: Machine, confidence: Confidence, deadline: float | None
) -> None:
    machine.feed(Noticed(notice(confidence=confidence, deadline=deadline)), now=100.0)

    assert machine.order is not None
    assert machine.order.deadline == 100.0


def test_without_a_usable_time_repeats_do_not_move_the_deadline(machine: Machine) -> None:
    machine.feed(Noticed(notice(deadline=None)), now=100.0)

    assert machine.feed(Noticed(notice(deadline=None)), now=105.0) == ()


def test_an_order_is_given_even_where_its_deadline_is_past(machine: Machine) -> None:
    (given,) = machine.feed(Noticed(notice(deadline=40.0)), now=100.0)

    assert isinstance(given, Given)
    assert given.order.deadline == 40.0


def test_advice_that_still_stands_is_told_again_after_its_time() -> None:
    machine = Machine(lambda: "o1", advise_again=600.0)
    rebalance = notice(confidence=Confidence.ADVISORY, deadline=None, kind="rebalance")
    told = [
        second
        for second in range(0, 1900, 100)
        if machine.feed(Noticed(rebalance), now=100.0 + second) == (Advised(rebalance),)
    ]

    assert told == [0, 600, 1200, 1800]
    assert machine.order is None


def test_a_planned_or_certain_notice_is_never_told_as_advice_again() -> None:
    machine = Machine(lambda: "o1", advise_again=10.0)
    for each in (planned(), notice()):
        machine.feed(Noticed(each), now=100.0)

        assert machine.feed(Noticed(each), now=100_000.0) == ()


def test_an_advisory_notice_advises_once_and_orders_nothing(machine: Machine) -> None:
    rebalance = notice(confidence=Confidence.ADVISORY, deadline=None, kind="rebalance")

    assert machine.feed(Noticed(rebalance), now=100.0) == (Advised(rebalance),)
    assert machine.feed(Noticed(rebalance), now=101.0) == ()
    assert machine.tick(now=10_000.0, need=10.0) == ()
    assert machine.order is None
    assert machine.state is State.ADVISED


def test_an_advisory_notice_never_sets_a_deadline(machine: Machine) -> None:
    machine.feed(Noticed(notice(confidence=Confidence.ADVISORY, deadline=50.0)), now=100.0)

    machine.feed(Noticed(notice(confidence=Confidence.CERTAIN, deadline=130.0)), now=101.0)

    assert machine.order is not None
    assert machine.order.deadline == 130.0


def test_a_planned_notice_waits_until_deadline_minus_need(machine: Machine) -> None:
    machine.tick(now=90.0, need=60.0)

    assert machine.feed(Noticed(planned()), now=100.0) == (Waiting(planned(), starts_at=940.0),)
    assert machine.state is State.WAITING
    assert machine.tick(now=939.9, need=60.0) == ()
    (given,) = machine.tick(now=940.0, need=60.0)
    assert given == Given(
        Order(
            id="o1",
            deadline=1000.0,
            confidence=Confidence.PLANNED,
            source="gcp",
            kind="maintenance",
            given=940.0,
        )
    )


def test_a_node_is_known_to_go_from_a_planned_notice_on_and_not_by_advice(machine: Machine) -> None:
    advice = notice("a1", confidence=Confidence.ADVISORY, deadline=None)
    machine.feed(Noticed(advice), now=100.0)
    assert not machine.goes
    machine.feed(Noticed(planned()), now=100.0)
    assert machine.goes
    machine.feed(Cancelled(planned().source, "p1"), now=110.0)
    assert not machine.goes


def test_a_planned_notice_starts_earlier_when_more_has_to_be_saved(machine: Machine) -> None:
    machine.feed(Noticed(planned()), now=100.0)

    assert machine.tick(now=500.0, need=60.0) == ()
    assert isinstance(machine.tick(now=501.0, need=500.0)[0], Given)


def test_a_planned_notice_that_is_already_due_is_an_order_at_once(machine: Machine) -> None:
    machine.tick(now=90.0, need=950.0)

    assert isinstance(machine.feed(Noticed(planned()), now=100.0)[0], Given)


def test_a_planned_notice_is_told_again_only_when_its_time_comes_nearer(
    machine: Machine,
) -> None:
    machine.feed(Noticed(planned()), now=100.0)
    nearer = planned(deadline=900.0)

    assert machine.feed(Noticed(planned(deadline=2000.0)), now=101.0) == ()
    assert machine.feed(Noticed(nearer), now=102.0) == (Waiting(nearer, starts_at=900.0),)
    assert machine.tick(now=899.0, need=0.0) == ()


def test_a_planned_notice_without_a_time_only_advises(machine: Machine) -> None:
    undated = planned(deadline=None)

    assert machine.feed(Noticed(undated), now=100.0) == (Advised(undated),)
    assert machine.tick(now=500.0, need=900.0) == ()
    assert machine.feed(Noticed(undated), now=501.0) == ()


def test_a_planned_notice_that_gets_a_time_waits_for_it(machine: Machine) -> None:
    machine.feed(Noticed(planned(deadline=None)), now=100.0)

    assert machine.feed(Noticed(planned()), now=101.0) == (Waiting(planned(), starts_at=1000.0),)


def test_a_later_notice_shortens_the_deadline_under_the_same_order(machine: Machine) -> None:
    machine.feed(Noticed(notice()), now=100.0)

    told = machine.feed(
        Noticed(notice("n2", source="aws", kind="terminate", deadline=120.0)), now=101.0
    )

    assert told == (
        Amended(
            Order(
                id="o1",
                deadline=120.0,
                confidence=Confidence.CERTAIN,
                source="aws",
                kind="terminate",
                given=100.0,
                amendments=1,
            )
        ),
    )


def test_a_later_notice_raises_the_confidence(machine: Machine) -> None:
    machine.feed(Noticed(notice()), now=100.0)

    (amended,) = machine.feed(
        Noticed(notice("n2", confidence=Confidence.STARTED, deadline=500.0)), now=101.0
    )

    assert isinstance(amended, Amended)
    assert (amended.order.deadline, amended.order.confidence) == (130.0, Confidence.STARTED)


def test_a_longer_deadline_is_never_taken(machine: Machine) -> None:
    machine.feed(Noticed(notice()), now=100.0)

    assert machine.feed(Noticed(notice(deadline=190.0)), now=101.0) == ()
    assert machine.feed(Noticed(notice("n2", deadline=190.0)), now=101.0) == ()
    assert machine.order == FIRST


def test_a_moving_time_under_one_id_only_shortens(machine: Machine) -> None:
    machine.feed(Noticed(notice()), now=100.0)

    for moved in (131.0, 129.0, 140.0, 128.0):
        machine.feed(Noticed(notice(deadline=moved)), now=101.0)

    assert machine.order is not None
    assert (machine.order.deadline, machine.order.amendments) == (128.0, 2)


def test_a_planned_notice_that_becomes_certain_starts_at_once(machine: Machine) -> None:
    machine.feed(Noticed(notice(confidence=Confidence.PLANNED, deadline=1000.0)), now=100.0)

    (given,) = machine.feed(Noticed(notice(deadline=1000.0)), now=101.0)

    assert isinstance(given, Given)
    assert given.order.confidence is Confidence.CERTAIN


def test_an_earlier_planned_notice_shortens_a_running_order(machine: Machine) -> None:
    machine.feed(Noticed(notice()), now=100.0)

    (amended,) = machine.feed(Noticed(planned(deadline=125.0)), now=101.0)

    assert isinstance(amended, Amended)
    assert (amended.order.deadline, amended.order.kind) == (125.0, "maintenance")


def test_a_waiting_notice_that_ends_earlier_joins_the_order_it_meets(machine: Machine) -> None:
    machine.feed(Noticed(planned(deadline=125.0)), now=100.0)

    (given,) = machine.feed(Noticed(notice()), now=101.0)

    assert isinstance(given, Given)
    assert given.order.deadline == 125.0


def test_a_later_planned_notice_waits_beside_a_running_order(machine: Machine) -> None:
    machine.feed(Noticed(notice()), now=100.0)

    assert isinstance(machine.feed(Noticed(planned()), now=101.0)[0], Waiting)
    assert machine.order == FIRST


def test_a_cancel_of_its_only_notice_stands_the_order_down(machine: Machine) -> None:
    machine.feed(Noticed(notice()), now=100.0)

    told = machine.feed(Cancelled("gcp", "n1", "host recovered"), now=110.0)

    assert told == (StoodDown(FIRST, "host recovered"),)
    assert machine.order is None
    assert machine.state is State.CALM


def test_a_stand_down_always_has_a_reason(machine: Machine) -> None:
    machine.feed(Noticed(notice()), now=100.0)

    (stood_down,) = machine.feed(Cancelled("gcp", "n1"), now=110.0)

    assert stood_down == StoodDown(FIRST, "gcp preempted was cancelled")


def test_a_cancelled_id_that_comes_again_is_a_new_order(machine: Machine) -> None:
    machine.feed(Noticed(notice()), now=100.0)
    machine.feed(Cancelled("gcp", "n1"), now=110.0)

    (given,) = machine.feed(Noticed(notice(deadline=400.0)), now=300.0)

    assert isinstance(given, Given)
    assert (given.order.id, given.order.deadline) == ("o2", 400.0)


def test_a_cancel_of_one_of_two_notices_leaves_the_order_with_the_others_time(
    machine: Machine,
) -> None:
    machine.feed(Noticed(notice()), now=100.0)
    machine.feed(Noticed(notice("n2", kind="drain", source="operator", deadline=180.0)), now=101.0)

    (amended,) = machine.feed(Cancelled("gcp", "n1"), now=102.0)

    assert isinstance(amended, Amended)
    assert (amended.order.id, amended.order.deadline) == ("o1", 180.0)
    assert (amended.order.source, amended.order.kind) == ("operator", "drain")
    (stood_down,) = machine.feed(Cancelled("operator", "n2"), now=103.0)
    assert isinstance(stood_down, StoodDown)


def test_a_cancel_leaves_a_planned_notice_waiting(machine: Machine) -> None:
    machine.feed(Noticed(planned()), now=100.0)
    machine.feed(Noticed(notice()), now=101.0)

    (stood_down,) = machine.feed(Cancelled("gcp", "n1"), now=102.0)

    assert isinstance(stood_down, StoodDown)
    assert machine.state is State.WAITING


def test_a_cancel_keeps_the_order_where_a_planned_notice_is_due(machine: Machine) -> None:
    machine.feed(Noticed(planned()), now=100.0)
    machine.feed(Noticed(notice()), now=101.0)
    machine.tick(now=102.0, need=10.0)

    (amended,) = machine.feed(Cancelled("gcp", "n1"), now=995.0)

    assert isinstance(amended, Amended)
    assert (amended.order.id, amended.order.deadline) == ("o1", 1000.0)


def test_a_cancel_of_a_waiting_notice_withdraws_it(machine: Machine) -> None:
    machine.feed(Noticed(planned()), now=100.0)

    assert machine.feed(Cancelled("gcp", "p1", "rescheduled"), now=101.0) == (
        Withdrawn(planned(), "rescheduled"),
    )
    assert machine.tick(now=2000.0, need=60.0) == ()
    assert machine.state is State.CALM


def test_after_a_cancel_a_waiting_notice_may_come_back_later(machine: Machine) -> None:
    machine.feed(Noticed(planned()), now=100.0)
    machine.feed(Cancelled("gcp", "p1"), now=101.0)
    later = planned(deadline=5000.0)

    assert machine.feed(Noticed(later), now=102.0) == (Waiting(later, starts_at=5000.0),)


def test_a_cancel_of_what_never_was_changes_nothing(machine: Machine) -> None:
    machine.feed(Noticed(notice()), now=100.0)

    assert machine.feed(Cancelled("gcp", "other"), now=101.0) == ()
    assert machine.feed(Cancelled("aws", "n1"), now=101.0) == ()
    assert machine.order == FIRST


def test_quiet_and_unknown_clear_nothing(machine: Machine) -> None:
    machine.feed(Noticed(notice()), now=100.0)

    assert machine.feed(Quiet("gcp"), now=101.0) == ()
    assert machine.feed(Unknown("gcp", "HTTP 503"), now=101.0) == ()
    assert machine.order == FIRST


def test_the_same_id_from_two_sources_is_two_notices(machine: Machine) -> None:
    machine.feed(Noticed(notice("x", source="gcp")), now=100.0)
    machine.feed(Noticed(notice("x", source="operator")), now=100.0)

    machine.feed(Cancelled("gcp", "x"), now=101.0)

    assert machine.order is not None
    assert machine.order.source == "operator"
