"""What was announced and not taken back can be seen, whatever it started."""

import json

from evacd.facts import Cancelled, Confidence, Notice, Noticed
from evacd.order import Machine, shown


def notice(id: str, confidence: Confidence, deadline: float | None) -> Noticed:
    return Noticed(Notice("aws", id, id, confidence, deadline, 100.0))


def test_advice_and_what_is_planned_stand_beside_what_runs(machine: Machine) -> None:
    machine.tick(now=100.0, need=40.0)
    machine.feed(notice("advice", Confidence.ADVISORY, None), now=100.0)
    machine.feed(notice("reboot", Confidence.PLANNED, 1000.0), now=100.0)
    machine.feed(notice("stop", Confidence.CERTAIN, 130.0), now=100.0)

    told = shown(machine.standing(), now=110.0)

    assert json.loads(json.dumps(told)) == [
        {
            "source": "aws",
            "kind": "stop",
            "confidence": "certain",
            "seconds_left": 20.0,
            "starts_in": 0.0,
        },
        {
            "source": "aws",
            "kind": "reboot",
            "confidence": "planned",
            "seconds_left": 890.0,
            "starts_in": 850.0,
        },
        {
            "source": "aws",
            "kind": "advice",
            "confidence": "advisory",
            "seconds_left": None,
            "starts_in": None,
        },
    ]


def test_what_was_taken_back_stands_no_longer(machine: Machine) -> None:
    machine.feed(notice("reboot", Confidence.PLANNED, 1000.0), now=100.0)
    machine.feed(Cancelled("aws", "reboot"), now=101.0)

    assert machine.standing() == ()


def test_a_planned_notice_without_a_usable_time_only_advises(machine: Machine) -> None:
    machine.feed(notice("reboot", Confidence.PLANNED, None), now=100.0)

    (told,) = shown(machine.standing(), now=100.0)

    assert (told["seconds_left"], told["starts_in"]) == (None, None)


def test_a_need_that_never_ends_is_no_number_that_json_lacks(machine: Machine) -> None:
    machine.feed(notice("reboot", Confidence.PLANNED, 1000.0), now=100.0)
    machine.tick(now=100.0, need=float("inf"))

    assert shown(machine.standing(), now=100.0)[0]["starts_in"] == 0.0


def test_the_notice_that_set_the_deadline_carries_the_order(machine: Machine) -> None:
    assert machine.carrier is None
    later, sooner = (
        notice("later", Confidence.CERTAIN, 160.0),
        notice("sooner", Confidence.CERTAIN, 130.0),
    )
    machine.feed(later, now=100.0)
    assert machine.carrier == later.notice
    machine.feed(sooner, now=100.0)
    assert machine.carrier == sooner.notice
    machine.feed(Cancelled("aws", "sooner"), now=101.0)
    assert machine.carrier == later.notice
