"""What this node makes of what its jobs' rendezvous answer: whom it follows, and what it tells of that."""

from asyncio import TaskGroup
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from evac.generation import Generation
from evacd.agreement import Agreement
from evacd.facts import Candidate, Confidence, Kept, Order, Unit
from evacd.rendezvous import Agreed
from tests.agent.flush.simulated import LoopClock

JOB = "u/j"
G3, G4, G5 = (Generation(1, step) for step in (3, 4, 5))


class Aboard:
    """One job with some generations."""

    def __init__(self, *held: Generation) -> None:
        candidates = tuple(Candidate(one, 10) for one in sorted(held, reverse=True))
        self.unit = Unit(JOB, 0, 0.0, ("file:///store",), candidates)

    def units(self) -> tuple[Unit, ...]:
        return (self.unit,)

    def agree(self, unit: str, generation: Generation) -> str | None:
        assert unit == JOB
        self.unit = replace(self.unit, agreed=generation)
        return None

    def disagree(self, unit: str, generation: Generation) -> None:
        if (unit, generation) == (JOB, self.unit.agreed):
            self.unit = replace(self.unit, agreed=None)


class Node:
    """One daemon's part in it, and what it told."""

    def __init__(self, *held: Generation) -> None:
        self.board = Aboard(*held)
        self.told: list[tuple[str, int, str]] = []
        self.planned = 0
        self.looked = 0
        self.agreement = Agreement(
            self.board,
            node="me",
            boot="b",
            looks=[self.look],
            clock=LoopClock(),
            news=self.news,
            record=self.record,
        )

    async def look(self, job: str) -> None:
        assert job == JOB
        self.looked += 1

    def news(self) -> None:
        self.planned += 1

    def record(self, name: str, data: Mapping[str, Any]) -> None:
        assert data["unit"] == JOB
        self.told.append((name, data["generation"]["step"], data.get("reason", "")))

    def heard(self, generation: Generation, node: str = "other") -> None:
        self.agreement.heard(Agreed(JOB, generation, node, "b"))


def kept(generation: Generation, *, durable: bool = False) -> Kept:
    return Kept(JOB, generation, 10, 1.0, durable=durable, store="file:///store")


def test_another_ones_choice_is_followed_and_planned_for_once() -> None:
    node = Node(G4, G5)
    for _ in range(3):
        node.heard(G4)

    assert node.board.unit.agreed == G4
    assert node.planned == 1
    assert node.told == [("choice.made", 4, ""), ("choice.followed", 4, "")]


def test_one_that_is_not_here_is_told_and_followed_once_it_is() -> None:
    node = Node(G4)
    node.heard(G5)
    node.heard(G5)
    assert node.told[1:] == [("choice.refused", 5, "not complete here, but step 4")]

    node.board.unit = replace(node.board.unit, candidates=(Candidate(G5, 1), Candidate(G4, 1)))
    node.heard(G5)

    assert node.told[2:] == [("choice.followed", 5, "")]


def test_an_older_one_of_who_came_later_is_news_and_a_newer_one_is_none() -> None:
    node = Node(G3, G4, G5)
    node.heard(G5, "me")
    node.heard(G4)
    node.heard(G5, "a store that knows less")

    assert node.board.unit.agreed == G4
    assert [name for name, step, _ in node.told if step == 5] == ["choice.made", "choice.followed"]


def test_who_has_all_ranks_of_its_job_needs_no_agreement() -> None:
    node = Node(G4)
    node.board.unit = replace(node.board.unit, alone=True)

    node.heard(G4, "me")

    assert node.told == []
    assert node.board.unit.agreed is None


def test_what_did_not_fit_is_told_once_and_what_was_kept_is_not() -> None:
    node = Node(G4, G5)
    node.heard(G4)
    other = kept(G5)
    node.agreement.ended(other)
    for _ in range(2):
        node.agreement.over({JOB: other}, {})
    assert node.told[2:] == [
        (
            "choice.refused",
            4,
            "it did not fit in the window; step 5 (incarnation 1) was saved instead",
        )
    ]

    node = Node(G4, G5)
    node.heard(G4)
    # First as agreed, then the newer one in what was left of the window.
    node.agreement.ended(kept(G4))
    node.agreement.ended(other)
    node.agreement.over({JOB: other}, {})
    assert len(node.told) == 2


def test_who_stays_takes_back_what_it_has_chosen_alone() -> None:
    node = Node(G4)
    node.heard(G4, "me")
    node.agreement.stay()
    assert node.board.unit.agreed is None

    node.heard(G4)
    node.agreement.stay()
    assert node.board.unit.agreed == G4


@pytest.mark.looptime
async def test_news_are_looked_for_as_long_as_the_order_runs() -> None:
    node = Node(G4)
    now = LoopClock().monotonic()
    order = Order("o", now + 10.0, Confidence.CERTAIN, "test", "drain", given=now)

    async with TaskGroup() as tasks:
        tasks.create_task(node.agreement.watch(order))

    assert node.looked >= 10
