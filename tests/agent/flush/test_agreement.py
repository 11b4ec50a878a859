"""News of what the job's nodes have agreed on, in mid-flush: in simulated time."""

import asyncio
from dataclasses import replace

import pytest

from evac.generation import Generation
from evacd.facts import Candidate, Kept
from tests.agent.flush.simulated import MB, Aboard, Link, Told, flushing, order, staged

JOB = "u/j"


def agree(aboard: Aboard, step: int) -> None:
    aboard.all[JOB] = replace(aboard.all[JOB], agreed=Generation(1, step))


def steps(told: Told) -> list[int | None]:
    return [
        one.generation.step if one.generation else None
        for one in told.outcomes
        if isinstance(one, Kept)
    ]


@pytest.mark.looptime
async def test_where_one_of_them_fits_it_is_the_agreed_one() -> None:
    aboard, told = Aboard(staged(JOB, 0, 1000, 1000)), Told()
    link = Link(aboard, partial=[JOB])
    async with flushing(aboard, link, told) as flush:
        flush.evacuate(order(18.0))
        await asyncio.sleep(1.0)
        agree(aboard, 8)
        flush.wake()
        await flush.settled.wait()

    # The newest had moved for a second; its time is the agreed one's.
    assert [what[1] for what in link.cancelled] == [9]
    assert steps(told)[0] == 8
    assert flush.outcomes[JOB] == told.outcomes[-1]


@pytest.mark.looptime
async def test_where_both_fit_nothing_is_stopped_and_both_are_saved() -> None:
    aboard, told = Aboard(staged(JOB, 0, 1000, 1000)), Told()
    link = Link(aboard, partial=[JOB])
    async with flushing(aboard, link, told) as flush:
        flush.evacuate(order(40.0))
        await asyncio.sleep(1.0)
        agree(aboard, 8)
        flush.wake()
        await flush.settled.wait()

    assert link.cancelled == []
    assert steps(told) == [9, 8]


@pytest.mark.looptime
async def test_what_is_whole_in_the_store_already_stays_and_costs_nothing_more() -> None:
    aboard, told = Aboard(staged(JOB, 0, 1000, 1000)), Told()
    link = Link(aboard)
    async with flushing(aboard, link, told) as flush:
        flush.evacuate(order(40.0))
        await flush.settled.wait()
        agree(aboard, 8)
        flush.wake()
        await flush.settled.wait()

    assert steps(told) == [9]


@pytest.mark.looptime
async def test_one_that_does_not_fit_is_not_followed_before_the_deadline() -> None:
    aboard, told = Aboard(staged(JOB, 0, 500, 5000)), Told()
    link = Link(aboard, partial=[JOB])
    agree(aboard, 8)
    async with flushing(aboard, link, told) as flush:
        flush.evacuate(order(10.0))
        await asyncio.sleep(6.0)

        assert steps(told) == [9]


@pytest.mark.looptime
async def test_what_is_staged_a_moment_after_the_news_is_taken_up() -> None:
    aboard, told = Aboard(staged(JOB, 0, 1000)), Told()
    link = Link(aboard, partial=[JOB])
    agree(aboard, 10)
    async with flushing(aboard, link, told) as flush:
        flush.evacuate(order(15.0))
        await asyncio.sleep(1.0)
        unit = aboard.all[JOB]
        newer = (Candidate(Generation(1, 10), 1000 * MB), *unit.candidates)
        aboard.all[JOB] = replace(unit, candidates=newer)
        flush.wake()
        await flush.settled.wait()

    assert steps(told)[0] == 10
