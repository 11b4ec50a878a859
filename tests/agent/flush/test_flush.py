"""The drivers of the lanes, in simulated time: what is done when, and what becomes of it."""

import asyncio
from dataclasses import replace

import pytest

from evac.generation import Generation
from evac.store import Owner
from evacd.facts import Candidate, Kept, Lost, Unit
from evacd.flush.save import Place, Unsaved
from tests.agent.flush.simulated import (
    LANE,
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


async def test_higher_priority_goes_first_and_all_that_fits_is_kept() -> None:
    aboard = Aboard(staged("low", 1, 300), staged("high", 9, 500))
    link = Link(aboard)
    async with flushing(aboard, link, told := Told()) as flush:
        flush.evacuate(order(30.0))
        await flush.settled.wait()

    assert link.log == [(0.0, "high", 9), (5.0, "low", 9)]
    assert [type(outcome) for outcome in told.outcomes] == [Kept, Kept]


async def test_what_does_not_fit_goes_in_overtime_after_what_does() -> None:
    aboard = Aboard(staged("huge", 9, 5000), staged("small", 1, 100))
    link = Link(aboard)
    async with flushing(aboard, link, Told()) as flush:
        flush.evacuate(order(10.0))
        await flush.settled.wait()

    assert link.log == [(0.0, "small", 9), (1.0, "huge", 9)]
    assert all(isinstance(outcome, Kept) for outcome in flush.outcomes.values())


async def test_a_failure_costs_its_unit_only() -> None:
    aboard = Aboard(staged("broken", 9, 100), staged("fine", 1, 100))
    link = Link(aboard, refuses=["broken"])
    async with flushing(aboard, link, Told()) as flush:
        flush.evacuate(order(30.0))
        await flush.settled.wait()

    assert flush.outcomes["broken"] == Lost("broken", "the disk is full")
    assert isinstance(flush.outcomes["fine"], Kept)


async def test_an_older_generation_is_tried_where_the_newest_fails() -> None:
    aboard = Aboard(staged("job", 9, 100, 100))
    link = Link(aboard, resets=["job"])
    async with flushing(aboard, link, Told()) as flush:
        flush.evacuate(order(30.0))
        await flush.settled.wait()

    assert [step for _, _, step in link.log][:2] == [9, 8]


async def test_a_store_that_has_no_room_is_not_asked_for_room_for_older_ones() -> None:
    aboard = Aboard(staged("job", 9, 100, 100, 10))
    link = Link(aboard, refuses=["job"])
    async with flushing(aboard, link, Told()) as flush:
        flush.evacuate(order(30.0))
        await flush.settled.wait()

    assert [step for _, _, step in link.log] == [9, 7]


async def test_a_generation_that_is_fenced_is_asked_for_once_and_the_next_one_whatever_its_size() -> (
    None
):
    aboard = Aboard(staged("job", 9, 100, 100, 100))
    link = Link(aboard, fences=[("job", 9), ("job", 8)])
    async with flushing(aboard, link, Told()) as flush:
        flush.evacuate(order(30.0))
        await flush.settled.wait()

    assert [step for _, _, step in link.log] == [9, 8, 7]
    assert isinstance(flush.outcomes["job"], Kept)


async def test_an_order_whose_every_generation_is_fenced_settles_without_another_try() -> None:
    aboard = Aboard(staged("job", 9, 100, 100))
    link = Link(aboard, fences=[("job", 9), ("job", 8)])
    async with flushing(aboard, link, Told()) as flush:
        flush.evacuate(order(30.0))
        await flush.settled.wait()
        assert asyncio.get_running_loop().time() == pytest.approx(2.0)

    assert [step for _, _, step in link.log] == [9, 8]
    assert flush.outcomes["job"] == Lost("job", "fenced")


async def test_who_has_nothing_safe_comes_before_a_newer_generation_of_who_has() -> None:
    aboard = Aboard(staged("greedy", 9, 200), staged("small", 1, 100))
    link = Link(aboard)
    async with flushing(aboard, link, Told()) as flush:
        flush.evacuate(order(30.0))
        await asyncio.sleep(1.0)
        newer = (Candidate(Generation(1, 10), 200 * MB), Candidate(Generation(1, 9), 200 * MB))
        aboard.all["greedy"] = Unit("greedy", 9, 0.0, (LANE,), newer)
        await flush.settled.wait()

    assert [(unit, step) for _, unit, step in link.log] == [
        ("greedy", 9),
        ("small", 9),
        ("greedy", 10),
    ]


async def test_a_generation_that_lacks_other_nodes_ranks_is_kept_but_not_durable() -> None:
    aboard = Aboard(staged("job", 9, 100))
    async with flushing(aboard, Link(aboard, partial=["job"]), Told()) as flush:
        flush.evacuate(order(30.0))
        await flush.settled.wait()

    kept = flush.outcomes["job"]
    assert isinstance(kept, Kept)
    assert not kept.durable
    assert aboard.all["job"].candidates


async def test_older_generations_are_thinned_out_where_one_was_completed() -> None:
    aboard = Aboard(staged("job", 9, 100))
    async with flushing(aboard, Link(aboard), Told()) as flush:
        flush.evacuate(order(30.0))
        await flush.settled.wait()

    assert flush.crowded == {Place(LANE, "job", Owner(0, 0))}


async def test_a_callback_that_answers_in_overtime_is_kept_after_all() -> None:
    slow = Unit("slow", 9, 0.0, (LANE,), turn_seconds=2.0)
    aboard = Aboard(slow, staged("next", 1, 100))
    aboard.turn_takes = 40.0
    async with flushing(aboard, Link(aboard), Told()) as flush:
        flush.evacuate(order(30.0))
        await flush.settled.wait()
        assert isinstance(flush.outcomes["slow"], Lost)
        await asyncio.sleep(40.0)

    assert isinstance(flush.outcomes["slow"], Kept)


async def test_a_shorter_deadline_changes_the_very_next_step() -> None:
    aboard = Aboard(staged("first", 9, 300), staged("big", 5, 1500), staged("small", 1, 100))
    link = Link(aboard)
    async with flushing(aboard, link, Told()) as flush:
        flush.evacuate(order(30.0))
        await asyncio.sleep(1.0)
        flush.evacuate(order(6.0))
        await flush.settled.wait()

    assert [unit for _, unit, _ in link.log] == ["first", "small", "big"]


async def test_a_slower_link_than_assumed_is_believed_at_the_next_step() -> None:
    aboard = Aboard(staged("first", 9, 1000), staged("big", 5, 1000), staged("small", 1, 10))
    link = Link(aboard, rate=RATE / 4)
    async with flushing(aboard, link, Told()) as flush:
        flush.evacuate(order(60.0))
        await flush.settled.wait()

    # At the assumed rate the big one would end at 50 s; at the real one at 80 s.
    assert [unit for _, unit, _ in link.log] == ["first", "small", "big"]


async def test_a_deadline_that_passes_in_mid_file_stops_nothing() -> None:
    aboard = Aboard(staged("first", 9, 500), staged("second", 1, 500))
    link = Link(aboard, rate=RATE / 10)
    async with flushing(aboard, link, Told()) as flush:
        flush.evacuate(order(12.0))
        await flush.settled.wait()

    assert link.log == [(0.0, "first", 9), (50.0, "second", 9)]
    assert all(isinstance(outcome, Kept) for outcome in flush.outcomes.values())


async def test_a_stand_down_begins_no_further_step() -> None:
    aboard = Aboard(staged("first", 9, 300), staged("second", 1, 300))
    link = Link(aboard)
    async with flushing(aboard, link, Told()) as flush:
        flush.evacuate(order(30.0))
        await asyncio.sleep(1.0)
        flush.stand_down()
        await flush.settled.wait()

    assert [unit for _, unit, _ in link.log] == ["first"]


async def test_a_newer_generation_that_comes_in_time_is_saved_too_but_not_past_the_deadline() -> (
    None
):
    aboard = Aboard(staged("job", 1, 100))
    link = Link(aboard)
    async with flushing(aboard, link, Told()) as flush:
        flush.evacuate(order(10.0))
        await flush.settled.wait()
        aboard.all["job"] = Unit("job", 1, 0.0, (LANE,), (Candidate(Generation(1, 10), 100 * MB),))
        flush.wake()
        await flush.settled.wait()
        await asyncio.sleep(10.0)
        aboard.all["job"] = Unit("job", 1, 0.0, (LANE,), (Candidate(Generation(1, 11), 100 * MB),))
        flush.wake()
        await flush.settled.wait()

    assert [step for _, _, step in link.log] == [9, 10]


async def test_orphans_are_rescued_without_an_order_and_nobody_else_is() -> None:
    aboard = Aboard(staged("dead", 1, 100), staged("alive", 9, 100))
    link = Link(aboard)
    async with flushing(aboard, link, Told()) as flush:
        flush.rescue("dead")
        await flush.settled.wait()

    assert [unit for _, unit, _ in link.log] == ["dead"]


async def test_an_orphan_that_is_lost_is_told_although_an_earlier_one_was_kept() -> None:
    aboard = Aboard(staged("dead", 1, 100))
    link = Link(aboard)
    async with flushing(aboard, link, told := Told()) as flush:
        flush.rescue("dead")
        await flush.settled.wait()
        later = (Candidate(Generation(1, 10), 100 * MB),)
        aboard.all["dead"] = replace(aboard.all["dead"], candidates=later)
        link.resets = ["dead"]
        flush.rescue("dead")
        await flush.settled.wait()

    assert [type(outcome) for outcome in told.outcomes] == [Kept, Lost]
    assert flush.outcomes["dead"] == Lost("dead", "connection reset")


class Refusing(Link):
    """It takes nothing, and says so at once."""

    async def save(self, *_: object, **__: object) -> Unsaved:
        return Unsaved("the disk is full", for_good=True)


async def test_of_jobs_that_came_and_went_for_weeks_only_the_last_are_told() -> None:
    aboard = Aboard()
    async with flushing(aboard, Refusing(aboard), told := Told()) as flush:
        for number in range(300):
            aboard.all = {f"job-{number}": staged(f"job-{number}", 1, 1)}
            flush.rescue(f"job-{number}")
            await flush.settled.wait()

    assert len(told.outcomes) == 300
    assert list(flush.outcomes) == [f"job-{number}" for number in range(300 - 257, 300)]
    assert flush.failures.keys() == flush.outcomes.keys()


async def test_an_orphan_that_the_store_refused_is_tried_again_at_the_next_death() -> None:
    aboard = Aboard(staged("dead", 1, 100))
    link = Link(aboard, resets=["dead"])
    async with flushing(aboard, link, Told()) as flush:
        flush.rescue("dead")
        await flush.settled.wait()
        link.resets = []
        flush.rescue("dead")
        await flush.settled.wait()

    assert [step for _, _, step in link.log] == [9, 9]
    assert isinstance(flush.outcomes["dead"], Kept)


async def test_who_leaves_alone_has_a_deadline_of_its_own() -> None:
    aboard = Aboard(staged("leaves", 1, 900, 300), staged("stays", 9, 100))
    link = Link(aboard)
    async with flushing(aboard, link, Told()) as flush:
        flush.rescue("leaves", deadline=5.0)
        await flush.settled.wait()

    # 9 s are too long for it; nobody who stays moves.
    assert [(unit, step) for _, unit, step in link.log] == [("leaves", 8)]
    assert isinstance(flush.outcomes["leaves"], Kept)


async def test_who_leaves_alone_is_told_that_it_staged_nothing_or_was_safe_before() -> None:
    empty = Unit("empty", 1, 0.0, (LANE,))
    safe = Unit("safe", 1, 0.0, (LANE,), durable=Generation(1, 5))
    aboard = Aboard(empty, safe)
    async with flushing(aboard, Link(aboard), told := Told()) as flush:
        flush.rescue("empty", deadline=5.0)
        flush.rescue("safe", deadline=5.0)
        await flush.settled.wait()

    assert flush.outcomes["empty"] == Lost("empty", "nothing was staged")
    assert isinstance(flush.outcomes["safe"], Kept)
    assert len(told.outcomes) == 2


async def test_a_leave_that_is_over_shortens_no_later_order() -> None:
    aboard = Aboard(Unit("job", 1, 0.0, (LANE,)))
    link = Link(aboard)
    async with flushing(aboard, link, Told()) as flush:
        flush.rescue("job", deadline=5.0)
        await flush.settled.wait()
        await asyncio.sleep(10.0)
        aboard.all["job"] = staged("job", 1, 500, 100)
        flush.evacuate(order(30.0))
        await flush.settled.wait()

    assert [step for _, _, step in link.log] == [9]


async def test_a_hung_callback_is_cut_off_at_what_it_asked_for_while_others_wait() -> None:
    hung = Unit("hung", 9, 0.0, (LANE,), turn_seconds=2.0)
    aboard = Aboard(hung, staged("next", 1, 100))
    aboard.turn_takes = 1e6
    link = Link(aboard)
    async with flushing(aboard, link, Told()) as flush:
        flush.evacuate(order(30.0))
        await flush.settled.wait()

    assert aboard.turns == [("hung", 2.0)]
    assert link.log == [(2.0, "next", 9)]
    assert isinstance(flush.outcomes["hung"], Lost)


async def test_the_last_callback_gets_all_the_time_that_is_left() -> None:
    aboard = Aboard(Unit("index", 1, 0.0, (LANE,), turn_seconds=2.0))
    aboard.turn_takes = 20.0
    async with flushing(aboard, Link(aboard), Told()) as flush:
        flush.evacuate(order(30.0))
        await flush.settled.wait()

    assert aboard.turns == [("index", 29.0)]
    assert isinstance(flush.outcomes["index"], Kept)


async def test_who_staged_nothing_is_reported_lost_with_the_reason_once() -> None:
    empty = Unit("empty", 9, 0.0, (LANE,), empty_because="rank 1 has no complete generation")
    aboard = Aboard(empty, staged("fine", 1, 100))
    async with flushing(aboard, Link(aboard), told := Told()) as flush:
        flush.evacuate(order(30.0))
        await flush.settled.wait()
        flush.wake()
        await flush.settled.wait()

    lost = [data for name, data in told.events if name == "flush.lost"]
    assert lost == [{"unit": "empty", "reason": "rank 1 has no complete generation"}]


async def test_a_unit_that_left_between_plan_and_step_is_lost_and_no_error() -> None:
    aboard = Aboard(staged("first", 9, 100), staged("gone", 1, 100))
    link = Link(aboard)

    async def leave() -> None:
        await asyncio.sleep(0.5)
        held = aboard.all.pop("gone")
        aboard.units = lambda: (*aboard.all.values(), held)  # type: ignore[method-assign] # as a late reader would see it

    async with flushing(aboard, link, Told()) as flush, asyncio.TaskGroup() as tasks:
        flush.evacuate(order(30.0))
        tasks.create_task(leave())
        await flush.settled.wait()

    assert flush.outcomes["gone"] == Lost("gone", "it left")


async def test_every_event_of_the_path_is_recorded_in_order() -> None:
    aboard = Aboard(staged("job", 1, 100))
    async with flushing(aboard, Link(aboard), told := Told()) as flush:
        flush.evacuate(order(30.0))
        await flush.settled.wait()

    names = [name for name, _ in told.events]
    assert names == ["plan.made", "flush.started", "flush.finished", "commit.finished"]


async def test_who_is_durable_already_is_kept_and_takes_nobodys_time() -> None:
    safe = Unit("safe", 9, 0.0, (LANE,), durable=Generation(1, 9))
    aboard = Aboard(safe, staged("job", 1, 100))
    async with flushing(aboard, link := Link(aboard), told := Told()) as flush:
        flush.evacuate(order(30.0))
        await flush.settled.wait()
        flush.wake()
        await flush.settled.wait()

    assert flush.outcomes["safe"] == Kept("safe", Generation(1, 9), 0, 0.0, store=LANE)
    assert link.log == [(0.0, "job", 9)]
    finished = [data["unit"] for name, data in told.events if name == "flush.finished"]
    assert finished == ["safe", "job"]


async def test_who_is_durable_already_is_told_where_and_how_large_it_is() -> None:
    lanes = ("file:///first", "s3://second")
    safe = Unit("safe", 9, 0.0, lanes, durable=Generation(1, 9))
    aboard = Aboard(safe, replace(safe, name="unknown"))
    async with flushing(aboard, Link(aboard), told := Told(), lanes=lanes) as flush:
        flush.known.note("safe", Generation(1, 9), "s3://second", 5 * MB)
        flush.known.note("unknown", Generation(1, 8), "s3://second", 5 * MB)
        flush.evacuate(order(30.0))
        await flush.settled.wait()

    kept = Kept("safe", Generation(1, 9), 0, 0.0, store="s3://second", already=5 * MB)
    assert flush.outcomes["safe"] == kept
    assert flush.outcomes["unknown"] == Kept("unknown", Generation(1, 9), 0, 0.0)
    (event,) = [data for _, data in told.events if data.get("unit") == "safe"]
    assert (event["store"], event["already"]) == ("s3://second", 5 * MB)


async def test_an_older_generation_is_not_taken_for_a_newer_one_of_who_is_kept() -> None:
    aboard = Aboard(staged("job", 9, 100, 100))
    link = Link(aboard, partial=["job"])
    async with flushing(aboard, link, Told()) as flush:
        flush.evacuate(order(30.0))
        await flush.settled.wait()

    assert [step for _, _, step in link.log] == [9]
