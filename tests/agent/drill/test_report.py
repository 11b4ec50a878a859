"""What a drill has found, beside what was predicted."""

from evac.generation import Generation
from evacd.drill import compare
from evacd.drill.report import Ended
from evacd.facts import Candidate, Kept, Lost, Unit
from evacd.plan.risk import Risk, risk

NOW, RESERVE, WINDOW = 1000.0, 2.0, 30.0
STEP = Generation(1, 5)


def unit(name: str, nbytes: int, priority: int = 1) -> Unit:
    return Unit(name, priority, 0.0, ("lane",), (Candidate(STEP, nbytes),))


def predicted(*units: Unit) -> Risk:
    return risk(
        units, window_seconds=WINDOW, rates={"lane": 10.0}, reserve=RESERVE,
        commit_seconds=0.0, now=NOW,
    )  # fmt: skip


def kept(name: str, at: float, *, durable: bool = True) -> Ended:
    return Ended(Kept(name, STEP, 100, 1.0, durable), at)


def test_a_plan_alone_says_who_would_be_lost() -> None:
    report = compare(
        predicted(unit("a/fits", 100, 9), unit("a/huge", 1000)),
        reserve=RESERVE, began=NOW, ended=None,
    )  # fmt: skip

    assert report.lost == ("a/huge",)
    assert report.drilled_margin_seconds is None
    assert [one.drilled_lost for one in report.units] == [None, None]


def test_margins_of_both_count_to_the_same_point() -> None:
    report = compare(
        predicted(unit("a/job", 100)),
        reserve=RESERVE, began=NOW, ended={"a/job": kept("a/job", NOW + 10.0)},
    )  # fmt: skip

    one = report.units[0]
    assert one.predicted_margin_seconds == one.drilled_margin_seconds == 18.0
    assert report.predicted_margin_seconds == report.drilled_margin_seconds == 18.0


def test_what_came_whole_after_the_window_would_have_been_lost() -> None:
    report = compare(
        predicted(unit("a/job", 100)),
        reserve=RESERVE, began=NOW, ended={"a/job": kept("a/job", NOW + 33.0)},
    )  # fmt: skip

    assert report.lost == ("a/job",)
    assert report.units[0].reason == "was whole 3.0 s after the window"
    assert report.drilled_margin_seconds == -5.0


def test_what_was_tried_counts_more_than_what_was_planned() -> None:
    ended = {
        "a/huge": kept("a/huge", NOW + 5.0),
        "a/fits": Ended(Lost("a/fits", "the disk is full"), NOW + 6.0),
    }
    report = compare(
        predicted(unit("a/fits", 100, 9), unit("a/huge", 1000)),
        reserve=RESERVE, began=NOW, ended=ended,
    )  # fmt: skip

    assert report.lost == ("a/fits",)
    assert report.units[0].reason == "the disk is full"


def test_whose_turn_never_came_is_lost() -> None:
    report = compare(predicted(unit("a/job", 100)), reserve=RESERVE, began=NOW, ended={})

    assert report.lost == ("a/job",)
    assert report.units[0].reason == "its turn never came"


def test_what_is_durable_already_takes_no_time() -> None:
    safe = Unit("a/safe", 1, 0.0, ("lane",), durable=STEP)
    report = compare(
        predicted(safe), reserve=RESERVE, began=NOW, ended={"a/safe": kept("a/safe", NOW + 0.1)}
    )

    assert report.lost == ()
    assert report.units[0].drilled_margin_seconds is None
    assert report.drilled_margin_seconds == WINDOW - RESERVE


def test_what_was_durable_already_is_not_told_as_if_it_had_been_drilled() -> None:
    safe = Unit("a/safe", 1, 0.0, ("lane",), durable=STEP)
    there = Ended(Kept("a/safe", STEP, 0, 0.0), NOW + 0.1)
    report = compare(predicted(safe), reserve=RESERVE, began=NOW, ended={"a/safe": there})

    assert report.units[0].reason == "was durable already: no byte of it moved in this drill"


def test_a_part_without_the_other_nodes_is_no_loss_of_this_node() -> None:
    report = compare(
        predicted(unit("a/job", 100)),
        reserve=RESERVE, began=NOW, ended={"a/job": kept("a/job", NOW + 1.0, durable=False)},
    )  # fmt: skip

    assert report.lost == ()
    assert report.units[0].reason == "other nodes' parts of this generation are missing"
