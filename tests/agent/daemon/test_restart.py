"""A daemon, or the machine under it, starts again while its cloud still says the same."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evac import incident
from tests.agent.daemon.nodes import Node, until
from tests.agent.daemon.test_leaving import Scheduler, standing
from tests.agent.daemon.test_notice import Cloud

START = Callable[..., Node]


@pytest.fixture
def scheduler(tmp_path: Path) -> Scheduler:
    return Scheduler(tmp_path)


@pytest.fixture
def clouds() -> Iterator[Callable[[str], Cloud]]:
    """Makes clouds; closed at the end."""
    made: list[Cloud] = []

    def make(name: str) -> Cloud:
        made.append(Cloud(name))
        return made[-1]

    yield make
    for cloud in made:
        cloud.close()


@pytest.fixture
def start(node: Node, scheduler: Scheduler) -> START:
    def start(*flags: str) -> Node:
        return node.start(*flags, "--poll-seconds", "0.2", *scheduler.flags())

    return start


def reboot(node: Node) -> None:
    """What the next daemon finds is of another boot, as the kernel gives each boot another id."""
    found = standing(node)
    for each in (found, *found["notices"]):
        each["boot"] = "the boot before"
    (node.home / "state" / "standing.json").write_text(json.dumps(found))


def order(node: Node) -> dict[str, Any]:
    """The running order, once it is on the disk."""
    found: dict[str, Any] = until("an order is given", lambda: node.status()["order"])
    path = node.home / "state" / "standing.json"
    until("its notice is on the disk", lambda: path.exists() and standing(node)["notices"])
    return found


def polled(node: Node) -> None:
    """Wait until every source of the cloud has answered for some polls."""
    until(
        "the sources have answered for a while",
        lambda: (
            (sources := node.status()["sources"])
            and all(each["answers"] and each["seconds"] > 1.0 for each in sources)
        ),
    )


def incidents(node: Node) -> int:
    return len(incident.load(node.journal, last=10))


class TestReboot:
    def test_maintenance_that_is_still_listed_after_its_reboot_is_over(
        self, node: Node, scheduler: Scheduler, start: START, clouds: Callable[[str], Cloud]
    ) -> None:
        aws = clouds("aws")
        start(*aws.flags)
        aws.do("maintenance-past")
        assert order(node)["source"] == "aws/maintenance"
        scheduler.says("close ended")
        node.kill()
        reboot(node)

        start(*aws.flags)

        scheduler.says("reopen ended")
        polled(node)
        assert node.status()["order"] is None
        assert scheduler.said.count("close began") == 1
        assert incidents(node) == 1
        # The next daemon of this boot knows it as well, and a new event is none of that.
        node.kill()
        start(*aws.flags)
        polled(node)
        assert node.status()["order"] is None
        aws.do("preempt")
        assert order(node)["source"] == "aws/spot"

    def test_maintenance_that_is_to_come_is_not_over_after_a_reboot(
        self, node: Node, scheduler: Scheduler, start: START, clouds: Callable[[str], Cloud]
    ) -> None:
        aws = clouds("aws")
        start(*aws.flags)
        # Failing hardware orders at once, and is taken away days later.
        aws.do("retire")
        before = order(node)
        node.kill()
        reboot(node)

        start(*aws.flags)

        after = order(node)
        assert after["source"] == "aws/maintenance"
        assert after["id"] != before["id"]

    def test_an_event_of_azure_that_had_started_before_the_boot_is_over(
        self, node: Node, scheduler: Scheduler, start: START, clouds: Callable[[str], Cloud]
    ) -> None:
        azure = clouds("azure")
        start(*azure.flags)
        azure.do("redeploy")
        azure.do("start")
        until("it has started", lambda: (o := node.status()["order"]) and o["seconds_left"] < 0)
        order(node)
        scheduler.says("close ended")
        until("that is on the disk", lambda: _ends_soon(node))
        node.kill()
        reboot(node)

        start(*azure.flags)

        scheduler.says("reopen ended")
        polled(node)
        assert node.status()["order"] is None
        assert scheduler.said.count("close began") == 1


def _ends_soon(node: Node) -> bool:
    """The deadline that was noted is the start of the event, not its date."""
    return any(each["deadline"] <= each["seen"] + 60 for each in standing(node)["notices"])


def twice_given(node: Node) -> list[float]:
    """When the last incident's order was given; empty until it was given again."""
    given = [each.at for each in node.events() if each.name == "order.given"]
    return given if len(given) > 1 else []


class TestRestart:
    def test_a_notice_gets_no_more_time_and_its_order_and_incident_go_on(
        self, node: Node, scheduler: Scheduler, start: START, clouds: Callable[[str], Cloud]
    ) -> None:
        gcp = clouds("gcp")
        start(*gcp.flags).staged(5)
        gcp.do("preempt")
        before = order(node)
        (noted,) = standing(node)["notices"]
        scheduler.says("close ended")
        node.settled()
        node.kill()
        until("some of its time is gone", lambda: _now() > noted["seen"] + 3.0)

        start(*gcp.flags)

        after = order(node)
        assert after["id"] == before["id"]
        assert after["seconds_left"] <= before["seconds_left"] - 2.0
        assert standing(node)["notices"] == [noted]
        assert incidents(node) == 1
        # The journal follows the order by a moment: its disk never holds the daemon up.
        given = until("the order is on record again", lambda: twice_given(node))
        assert len(given) == 2
        assert given[1] >= given[0] + 2.0

        gcp.do("clear")

        scheduler.says("reopen ended")
        until("it is forgotten", lambda: not standing(node)["notices"])
        gcp.do("preempt")
        until("an order is given", lambda: node.status()["order"])
        assert node.status()["order"]["id"] != before["id"]
        until("it is an incident of its own", lambda: incidents(node) == 2)

    def test_a_drain_goes_on_with_its_order_and_its_deadline(
        self, node: Node, start: START
    ) -> None:
        start()
        node.drain(600.0)
        before = order(node)
        noted = standing(node)["notices"], standing(node)["drain"]
        node.kill()

        start()

        after = order(node)
        assert after["id"] == before["id"]
        assert after["seconds_left"] < before["seconds_left"]
        assert (standing(node)["notices"], standing(node)["drain"]) == noted
        assert incidents(node) == 1

    def test_a_new_drain_after_a_cancelled_one_has_its_own_order_and_time(
        self, node: Node, start: START
    ) -> None:
        start()
        node.drain(1.0)
        before = order(node)
        node.cancel()
        until("that is on the disk", lambda: not standing(node)["notices"])
        node.kill()
        start()

        node.drain(600.0)

        after = order(node)
        assert after["id"] != before["id"]
        assert after["seconds_left"] > 500


def _now() -> float:
    """The daemon's clock: it goes on while there is no daemon."""
    return time.monotonic()  # noqa: TID251 - real processes live in real time
