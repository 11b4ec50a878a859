"""Callback workloads are asked once each under an order, also those that come when others have had their turn."""

import asyncio
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evacd.facts import Kept, Lost, Unit
from evacd.flush.asked import Asked
from evacd.workloads import TurnResult
from tests.agent.flush.simulated import LANE, Aboard, Link, Told, flushing, order, staged


def calling(*callers: int, name: str = "index", need: float = 2.0) -> Unit:
    return Unit(name, 5, 0.0, (LANE,), turn_seconds=need, callers=frozenset(callers))


class TestAsked:
    @given(st.lists(st.frozensets(st.integers(0, 9)), max_size=8))
    def test_each_is_asked_once_and_none_is_left_out(self, aboard: list[frozenset[int]]) -> None:
        asked, all_of_them = Asked(), list[int]()
        for callers in aboard:
            lacks = asked.lacks(calling(*callers))
            if (begun := asked.begin("index", callers)) is not None:
                all_of_them += begun[1]
            assert lacks == (begun is not None)
            assert not asked.lacks(calling(*callers))

        assert sorted(all_of_them) == sorted(frozenset[int]().union(*aboard))

    @given(st.lists(st.booleans(), min_size=1, max_size=5), st.randoms())
    def test_it_is_safe_when_all_turns_were_and_no_sooner(
        self, well: list[bool], random: Random
    ) -> None:
        asked = Asked()
        for number in range(len(well)):
            assert asked.begin("index", frozenset({number})) == (number, frozenset({number}))
        numbers = list(range(len(well)))
        random.shuffle(numbers)
        told = [asked.end("index", n, TurnResult(well[n], 1, "")) for n in numbers]

        last = told[-1]
        assert last is not None
        assert (last.ok, last.nbytes) == (all(well), len(well))
        before = told[:-1]
        assert not any(one is not None and one.ok for one in before)
        # Whoever waits for the latest turn hears nothing of the others first.
        latest = numbers.index(len(well) - 1)
        assert [one is None for one in told] == [at < latest for at in range(len(well))]

    def test_another_order_asks_everybody_anew(self) -> None:
        asked = Asked()
        asked.begin("index", frozenset({1}))
        asked.forget()

        assert asked.lacks(calling(1))
        assert asked.end("index", 0, TurnResult(True, 0, "")) == TurnResult(True, 0, "")


@pytest.mark.looptime
async def test_who_comes_when_others_have_had_their_turn_gets_one_of_its_own() -> None:
    """As after a restart of evacd amid the order: the first process to come back is asked at once."""
    aboard = Aboard()
    async with flushing(aboard, Link(aboard), told := Told()) as flush:
        flush.evacuate(order(30.0))
        aboard.all["index"] = calling(1)
        flush.wake()
        await asyncio.sleep(2.0)
        assert told.outcomes == [Kept("index", None, 7, 0.5)]

        aboard.all["index"] = calling(1, 2)
        flush.wake()
        await asyncio.sleep(0.1)
        # Not all of it is safe.
        assert flush.outcomes == {}
        assert not flush.settled.is_set()
        await flush.settled.wait()

    assert aboard.asked == [{1}, {2}]
    assert told.outcomes[1:] == [Kept("index", None, 14, 0.5)]


@pytest.mark.looptime
async def test_who_comes_while_others_have_their_turn_is_next() -> None:
    aboard = Aboard(calling(1))
    aboard.turn_takes = 1.5
    async with flushing(aboard, Link(aboard), Told()) as flush:
        flush.evacuate(order(30.0))
        await asyncio.sleep(1.0)
        aboard.all["index"] = calling(1, 2)
        flush.wake()
        await flush.settled.wait()

    assert aboard.asked == [{1}, {2}]
    assert flush.outcomes == {"index": Kept("index", None, 14, 1.5)}


@pytest.mark.looptime
async def test_for_whom_comes_too_late_nobody_in_time_waits() -> None:
    """It has 2 s left and says that it needs 5 s: asked all the same, behind what still fits."""
    aboard = Aboard(calling(1, need=5.0))
    aboard.turn_takes = 5.0
    async with flushing(aboard, Link(aboard), told := Told()) as flush:
        flush.evacuate(order(30.0))
        await asyncio.sleep(26.0)
        aboard.all["index"] = calling(1, 2, need=5.0)
        aboard.all["small"] = staged("small", 1, 100)
        flush.wake()
        await flush.settled.wait()

    events = [
        (name, data["unit"]) for name, data in told.events if name.endswith(("given", "started"))
    ]
    assert events == [("turn.given", "index"), ("flush.started", "small"), ("turn.given", "index")]


@pytest.mark.looptime
async def test_one_that_fails_costs_the_whole_its_safety_and_is_named() -> None:
    aboard = Aboard(calling(1))
    async with flushing(aboard, Link(aboard), told := Told()) as flush:
        flush.evacuate(order(10.0))
        await asyncio.sleep(2.0)
        aboard.turn_takes = 1e6
        aboard.all["index"] = calling(1, 2)
        flush.wake()
        await asyncio.sleep(60.0)

    assert [type(outcome) for outcome in told.outcomes] == [Kept, Lost]
    assert isinstance(flush.outcomes["index"], Lost)


@pytest.mark.looptime
async def test_who_leaves_without_having_been_asked_is_waited_for_by_nobody() -> None:
    aboard = Aboard(calling(1))
    async with flushing(aboard, Link(aboard), Told()) as flush:
        flush.evacuate(order(30.0))
        await asyncio.sleep(2.0)
        aboard.all["index"] = replace(aboard.all["index"], callers=frozenset())
        flush.wake()
        await flush.settled.wait()

    assert aboard.asked == [{1}]
    assert isinstance(flush.outcomes["index"], Kept)
