"""What failed and may pass is tried again, behind what was not tried yet, as long as there is time."""

import asyncio

import looptime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evac.generation import Generation
from evacd.facts import Kept, Lost, Try
from evacd.flush import Flush
from evacd.flush.tries import FIRST_SECONDS, LONGEST_SECONDS, Tries
from tests.agent.flush.simulated import MB, Aboard, Link, Told, flushing, order, staged

A: Try = ("job", Generation(1, 9), "full", "s3://a")
B: Try = ("other", Generation(1, 9), "full", "s3://a")


class TestTries:
    @given(st.lists(st.tuples(st.sampled_from((A, B)), st.floats(0.0, 60.0)), max_size=30))
    def test_what_failed_is_barred_for_its_pause_and_no_longer(
        self, failures: list[tuple[Try, float]]
    ) -> None:
        tries, now = Tries(), 0.0
        for one, later in failures:
            now += later
            tries.began(one)
            assert one in tries.barred(now + 1e9)
            tries.failed(one, now=now)
            assert one in tries.barred(now)
            assert one in tries.made
            assert one not in tries.barred(now + LONGEST_SECONDS)
            assert one not in tries.over

    def test_its_pause_grows_up_to_a_limit(self) -> None:
        tries, pauses = Tries(), []
        for _ in range(8):
            tries.began(A)
            tries.failed(A, now=100.0)
            pauses.append((tries.next(100.0) or 0.0) - 100.0)

        assert pauses[0] == FIRST_SECONDS
        assert pauses == sorted(pauses)
        assert pauses[-1] == LONGEST_SECONDS

    def test_what_is_forgotten_begins_anew(self) -> None:
        tries = Tries()
        for one in (A, B):
            tries.began(one)
            tries.failed(one, now=0.0)
        tries.forget("job")

        assert tries.made == {B}


@pytest.mark.looptime
async def test_a_job_is_saved_when_its_store_comes_back_in_time_or_in_overtime() -> None:
    for heals in (26.0, 70.0):
        aboard = Aboard(staged("job", 9, 100))
        began = asyncio.get_running_loop().time()
        link = Link(aboard, resets=["job"], heals=began + heals)
        async with flushing(aboard, link, told := Told()) as flush:
            flush.evacuate(order(began + 60.0))
            await asyncio.sleep(heals + 10.0)

        assert [type(outcome) for outcome in told.outcomes] == [Lost, Kept]
        assert flush.settled.is_set()


@pytest.mark.looptime
async def test_nothing_is_settled_while_what_failed_may_still_be_saved_in_time() -> None:
    aboard = Aboard(staged("job", 9, 100))
    async with flushing(aboard, Link(aboard, resets=["job"]), Told()) as flush:
        flush.evacuate(order(60.0))
        await asyncio.sleep(50.0)
        assert isinstance(flush.outcomes["job"], Lost)
        assert not flush.settled.is_set()
        await flush.settled.wait()
        assert asyncio.get_running_loop().time() == pytest.approx(60.0, abs=2.0)


@pytest.mark.looptime
async def test_what_a_failed_try_has_left_there_is_not_planned_to_go_once_more() -> None:
    """20 s for all of it, and 9 s are left then: it fits since four fifths lie there."""
    aboard = Aboard(staged("job", 9, 2000))
    link = Link(aboard, resets=["job"], heals=20.1, keeps=0.8)
    async with flushing(aboard, link, told := Told()) as flush:
        flush.evacuate(order(30.0))
        await flush.settled.wait()
        assert asyncio.get_running_loop().time() < 30.0

    plans = [data["steps"] for name, data in told.events if name == "plan.made"]
    assert [(s["nbytes"], s["overtime"]) for steps in plans for s in steps] == [
        (2000 * MB, False),
        (400 * MB, False),
    ]
    assert isinstance(told.outcomes[-1], Kept)


@pytest.mark.looptime
async def test_a_bug_or_a_machine_out_of_threads_costs_one_try_and_no_driver() -> None:
    aboard = Aboard(staged("broken", 9, 100), staged("fine", 1, 100))
    link = Link(aboard, breaks=["broken"], heals=10.0)
    async with flushing(aboard, link, told := Told()) as flush:
        flush.evacuate(order(30.0))
        await flush.settled.wait()

    assert [type(outcome) for outcome in told.outcomes] == [Lost, Kept, Kept]
    failed = {data["reason"] for name, data in told.events if name == "flush.failed"}
    assert failed == {"a bug in evac: RuntimeError: can't start new thread"}


@settings(max_examples=5, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 400), st.integers(0, 2), st.booleans()), min_size=1, max_size=5
    ),
    st.floats(0.0, 40.0),
)
def test_who_needs_a_store_that_heals_is_saved_and_costs_nobody_else_more_than_its_tries(
    jobs: list[tuple[int, int, bool]], heals: float
) -> None:
    """*jobs* are sizes, priorities and whether the store fails them until it has healed."""
    with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
        flush, link = runner.run(_evacuated(jobs, heals))

    assert all(isinstance(outcome, Kept) for outcome in flush.outcomes.values())
    assert len(flush.outcomes) == len(jobs)
    # Each was tried once before any was tried again.
    first, seen = [unit for _, unit, _ in link.log], set[str]()
    firsts = [at for at, unit in enumerate(first) if not (unit in seen or seen.add(unit))]  # type: ignore[func-returns-value] # notes it
    assert firsts == list(range(len(jobs)))


async def _evacuated(jobs: list[tuple[int, int, bool]], heals: float) -> tuple[Flush, Link]:
    units = [staged(f"job-{i}", priority, size) for i, (size, priority, _) in enumerate(jobs)]
    failing = [f"job-{i}" for i, (_, _, fails) in enumerate(jobs) if fails]
    aboard = Aboard(*units)
    began = asyncio.get_running_loop().time()
    link = Link(aboard, resets=failing, heals=began + heals)
    async with flushing(aboard, link, Told()) as flush:
        flush.evacuate(order(began + 200.0))
        await flush.settled.wait()
    return flush, link
