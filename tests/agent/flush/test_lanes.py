"""Several stores at work beside each other, in simulated time."""

import asyncio
from dataclasses import replace

import pytest

from evac.generation import Generation
from evacd.facts import Candidate, Kept, Lost, Unit
from evacd.plan.rate import Rate
from tests.agent.flush.simulated import (
    MB,
    RATE,
    Aboard,
    Link,
    Told,
    flushing,
    order,
    staged,
)

pytestmark = pytest.mark.looptime

S3, DISK, PEER = "s3://bucket", "file:///disk", "evac://peer:7000"
BOTH = (S3, DISK)


async def test_what_does_not_fit_on_the_first_store_goes_to_the_next_one_meanwhile() -> None:
    aboard = Aboard(staged("big", 9, 2500, lanes=BOTH), staged("small", 1, 1000, lanes=BOTH))
    link = Link(aboard)
    async with flushing(aboard, link, Told(), lanes=BOTH) as flush:
        flush.evacuate(order(30.0))
        await flush.settled.wait()

    assert sorted(link.log) == [(0.0, "big", 9), (0.0, "small", 9)]
    assert {(unit, lane) for unit, _, _, lane in link.lanes} == {("big", S3), ("small", DISK)}
    assert all(isinstance(one, Kept) and one.durable for one in flush.outcomes.values())


async def test_with_time_for_all_the_second_store_is_left_alone() -> None:
    aboard = Aboard(staged("a", 9, 500, lanes=BOTH), staged("b", 1, 500, lanes=BOTH))
    link = Link(aboard)
    async with flushing(aboard, link, Told(), lanes=BOTH) as flush:
        flush.evacuate(order(30.0))
        await flush.settled.wait()

    assert [lane for *_, lane in link.lanes] == [S3, S3]


async def test_a_store_that_refuses_is_followed_by_the_next_one_and_nobody_is_told_of_a_loss() -> (
    None
):
    aboard = Aboard(staged("job", 9, 100, lanes=BOTH))
    link = Link(aboard, refuses=[f"job on {S3}"])
    async with flushing(aboard, link, told := Told(), lanes=BOTH) as flush:
        flush.evacuate(order(30.0))
        await flush.settled.wait()

    assert link.lanes == [("job", 9, "full", S3), ("job", 9, "full", DISK)]
    (kept,) = told.outcomes
    assert isinstance(kept, Kept)
    assert kept.store == DISK
    failed = [data for name, data in told.events if name == "flush.failed"]
    assert [(one["lane"], one["reason"]) for one in failed] == [(S3, "the disk is full")]


async def test_who_is_refused_by_every_store_is_lost_once() -> None:
    aboard = Aboard(staged("job", 9, 100, lanes=BOTH))
    link = Link(aboard, refuses=["job"])
    async with flushing(aboard, link, told := Told(), lanes=BOTH) as flush:
        flush.evacuate(order(30.0))
        await flush.settled.wait()

    assert len(link.lanes) == 2
    assert told.outcomes == [Lost("job", "the disk is full")]


async def test_a_store_that_never_took_a_byte_comes_behind_one_that_did() -> None:
    aboard = Aboard(staged("job", 9, 100, lanes=BOTH))
    link = Link(aboard)
    async with flushing(aboard, link, Told(), lanes=BOTH) as flush:
        flush.rates[DISK] = Rate(RATE, measured=True)
        flush.evacuate(order(30.0))
        await flush.settled.wait()

    assert [lane for *_, lane in link.lanes] == [DISK]


async def test_a_peers_memory_is_followed_by_a_durable_store_while_time_remains() -> None:
    lanes = (PEER, DISK)
    aboard = Aboard(staged("job", 9, 1000, lanes=lanes))
    link = Link(aboard, rates={DISK: RATE / 4})
    async with flushing(aboard, link, told := Told(), lanes=lanes) as flush:
        flush.rates |= {PEER: Rate(RATE, measured=True), DISK: Rate(RATE / 4, measured=True)}
        flush.evacuate(order(60.0))
        await flush.settled.wait()

    assert [lane for *_, lane in link.lanes] == [PEER, DISK]
    first, second = told.outcomes
    assert isinstance(first, Kept)
    assert isinstance(second, Kept)
    assert (first.store, first.durable) == (PEER, False)
    assert (second.store, second.durable) == (DISK, True)


async def test_what_a_dead_process_left_goes_where_it_lasts() -> None:
    aboard = Aboard(staged("dead", 9, 1000, lanes=(PEER, DISK)))
    link = Link(aboard)
    async with flushing(aboard, link, Told(), lanes=(PEER, DISK)) as flush:
        flush.rescue("dead")
        await flush.settled.wait()

    assert [lane for *_, lane in link.lanes] == [DISK]

    aboard = Aboard(staged("dead", 9, 1000, lanes=(PEER, DISK)))
    link = Link(aboard, refuses=[f"dead on {DISK}"])
    async with flushing(aboard, link, Told(), lanes=(PEER, DISK)) as flush:
        flush.rescue("dead")
        await flush.settled.wait()

    assert [lane for *_, lane in link.lanes] == [DISK, PEER]


async def test_what_only_a_peer_has_is_never_called_durable() -> None:
    aboard = Aboard(staged("job", 9, 1000, lanes=(PEER,)))
    link = Link(aboard)
    async with flushing(aboard, link, Told(), lanes=(PEER,)) as flush:
        flush.evacuate(order(60.0))
        await flush.settled.wait()

    kept = flush.outcomes["job"]
    assert isinstance(kept, Kept)
    assert not kept.durable
    assert aboard.all["job"].candidates, "it was marked as durable"
    assert not flush.crowded


async def test_weights_alone_are_followed_by_the_whole_also_past_the_deadline() -> None:
    one = staged("job", 9, 4000)
    weights = Candidate(Generation(1, 9), 1000 * MB, kind="weights")
    aboard = Aboard(replace(one, candidates=(*one.candidates, weights)))
    link = Link(aboard)
    async with flushing(aboard, link, told := Told()) as flush:
        flush.evacuate(order(20.0))
        await flush.settled.wait()

    assert [(step, kind) for _, step, kind, _ in link.lanes] == [(9, "weights"), (9, "full")]
    first, second = told.outcomes
    assert isinstance(first, Kept)
    assert isinstance(second, Kept)
    assert (first.kind, first.durable) == ("weights", False)
    assert (second.kind, second.durable) == ("full", True)


async def test_what_survivors_hold_goes_after_everybodys_own_bytes_or_not_at_all() -> None:
    shared = Unit(
        "shared", 9, 0.0, (S3,), (Candidate(Generation(1, 9), 500 * MB, held_nbytes=800 * MB),)
    )
    aboard = Aboard(shared, staged("own", 1, 1000, lanes=(S3,)))
    link = Link(aboard)
    async with flushing(aboard, link, Told(), lanes=(S3,)) as flush:
        flush.evacuate(order(30.0))
        await flush.settled.wait()
    assert [(unit, kind) for unit, _, kind, _ in link.lanes] == [
        ("shared", "full"),
        ("own", "full"),
        ("shared", "held"),
    ]
    kept = flush.outcomes["shared"]
    assert isinstance(kept, Kept)
    assert (kept.nbytes, kept.durable) == (1300 * MB, True)

    aboard = Aboard(shared, staged("own", 1, 1000, lanes=(S3,)))
    link = Link(aboard)
    async with flushing(aboard, link, Told(), lanes=(S3,)) as flush:
        flush.evacuate(order(20.0))
        await flush.settled.wait()
    assert [kind for _, _, kind, _ in link.lanes] == ["full", "full"]


async def test_a_deadline_that_is_cut_stops_what_cannot_be_whole_for_what_can() -> None:
    aboard = Aboard(staged("job", 9, 6000, 1000), staged("other", 1, 500))
    link = Link(aboard)
    async with flushing(aboard, link, told := Told()) as flush:
        flush.evacuate(order(90.0))
        await asyncio.sleep(2.0)
        flush.evacuate(order(25.0))
        await flush.settled.wait()

    assert link.cancelled == [("job", 9, "full", "file:///store")]
    assert [(unit, step) for unit, step, *_ in link.lanes] == [
        ("job", 9),
        ("job", 8),
        ("other", 9),
    ]
    assert all(isinstance(one, Kept) for one in flush.outcomes.values())
    assert [data["unit"] for name, data in told.events if name == "flush.stopped"] == ["job"]


async def test_a_link_that_slows_down_in_mid_step_is_left_for_the_other_store() -> None:
    aboard = Aboard(staged("job", 9, 2000, lanes=BOTH))
    link = Link(aboard)
    async with flushing(aboard, link, Told(), lanes=BOTH) as flush:
        flush.evacuate(order(60.0))
        await asyncio.sleep(3.0)
        link.rates[S3] = RATE / 50
        await flush.settled.wait()
        ended = asyncio.get_running_loop().time()

    assert [lane for *_, lane in link.lanes] == [S3, DISK]
    kept = flush.outcomes["job"]
    assert isinstance(kept, Kept)
    assert kept.store == DISK
    assert ended < 60.0


async def test_a_step_is_stopped_once_at_most_however_its_link_behaves() -> None:
    aboard = Aboard(staged("job", 9, 3000, 2900, 2800))
    link = Link(aboard)

    async def wobble() -> None:
        while True:
            link.rate = RATE / 20
            await asyncio.sleep(4.0)
            link.rate = RATE * 2
            await asyncio.sleep(4.0)

    async with flushing(aboard, link, Told()) as flush, asyncio.TaskGroup() as tasks:
        wobbling = tasks.create_task(wobble())
        flush.evacuate(order(40.0))
        await flush.settled.wait()
        wobbling.cancel()

    assert len(link.cancelled) == len(set(link.cancelled)) <= 3
    assert isinstance(flush.outcomes["job"], Kept)


async def test_a_more_urgent_one_that_comes_late_waits_for_the_step_that_runs() -> None:
    aboard = Aboard(staged("low", 1, 1000))
    link = Link(aboard)
    async with flushing(aboard, link, Told()) as flush:
        flush.evacuate(order(30.0))
        await asyncio.sleep(1.0)
        aboard.all["high"] = staged("high", 9, 500)
        aboard.all["lowest"] = staged("lowest", 0, 100)
        flush.wake()
        await flush.settled.wait()

    assert not link.cancelled
    assert [unit for unit, *_ in link.lanes] == ["low", "high", "lowest"]


async def test_a_fresh_generation_takes_the_place_of_the_older_one_only_where_it_fits() -> None:
    for deadline, went in ((30.0, [9, 10]), (40.0, [9, 10]), (16.5, [9])):
        aboard = Aboard(staged("job", 9, 1500))
        link = Link(aboard)
        async with flushing(aboard, link, Told()) as flush:
            began = asyncio.get_running_loop().time()
            flush.evacuate(order(began + deadline))
            await asyncio.sleep(2.0)
            fresh = Candidate(Generation(1, 10), 1500 * MB)
            aboard.all["job"] = replace(
                aboard.all["job"], candidates=(fresh, *aboard.all["job"].candidates)
            )
            flush.wake()
            await flush.settled.wait()

        assert [step for _, step, *_ in link.lanes] == went
        # With 40 s there is time for both, one after the other.
        assert bool(link.cancelled) == (deadline == 30.0)


async def test_of_what_moves_only_the_rest_is_at_risk() -> None:
    aboard = Aboard(staged("job", 9, 1000, lanes=BOTH))
    async with flushing(aboard, Link(aboard), Told(), lanes=BOTH) as flush:
        flush.evacuate(order(30.0))
        await asyncio.sleep(5.0)
        (candidate,) = flush.routed(aboard.all["job"]).candidates
        await flush.settled.wait()

    assert 450 * MB < candidate.left_on(S3) < 550 * MB
    assert candidate.left_on(DISK) == 1000 * MB


async def test_a_plan_names_the_store_of_each_step() -> None:
    aboard = Aboard(staged("big", 9, 2500, lanes=BOTH), staged("small", 1, 1000, lanes=BOTH))
    async with flushing(aboard, Link(aboard), told := Told(), lanes=BOTH) as flush:
        flush.evacuate(order(30.0))
        await flush.settled.wait()

    plans = [data for name, data in told.events if name == "plan.made"]
    assert {(step["unit"], step["lane"]) for step in plans[0]["steps"]} == {
        ("big", S3),
        ("small", DISK),
    }
