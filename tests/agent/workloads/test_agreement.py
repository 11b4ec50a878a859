"""The pin on what a job's nodes have agreed on: nothing writes over it until the job has resumed."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evac.generation import Generation
from evac.wire import Register, Reserve
from evacd.workloads.agreement import agree, disagree, expire, shown
from evacd.workloads.job import Slot, Workload
from evacd.workloads.policy import Refusal
from evacd.workloads.record import JobRecord, decode, encode, of_job
from evacd.workloads.returning import remember
from evacd.workloads.roster import Roster
from tests.agent.workloads.test_roster import PAGE, come, process, reserve, stage, steps

LATER = 1000.0


@pytest.fixture
def roster() -> Roster:
    return Roster(budget=100 * PAGE)


def aboard(roster: Roster, *staged: int, incarnation: int = 1, pid: int = 1) -> Workload:
    workload = come(roster, 0, pid, world=1)
    reserve(roster, workload, incarnation=incarnation)
    for step in staged:
        stage(roster, workload, step)
    return workload


def held(roster: Roster) -> set[int]:
    (job,) = roster.jobs.values()
    return {generation.step for generation, _ in job.common()}


def unit(roster: Roster) -> str:
    (name,) = roster.jobs
    return name


@given(pinned=st.integers(1, 3), more=st.lists(st.integers(4, 40), unique=True, max_size=8))
def test_whatever_is_staged_on_the_pinned_one_stays(pinned: int, more: list[int]) -> None:
    roster = Roster(budget=100 * PAGE)
    workload = aboard(roster, 1, 2, 3)
    assert agree(roster, unit(roster), Generation(1, pinned), until=LATER) is None

    for step in sorted(more):
        stage(roster, workload, step)

    assert held(roster) >= {pinned, max([3, *more])}
    (job,) = roster.units(())
    assert job.agreed == Generation(1, pinned)


@given(
    pinned=st.integers(1, 3),
    life=st.lists(st.sampled_from(["stage", "die", "come", "others"]), max_size=12),
)
def test_no_life_takes_the_pinned_one_before_it_has_served(pinned: int, life: list[str]) -> None:
    roster = Roster(budget=5 * PAGE)
    workload, step, pids = aboard(roster, 1, 2, 3), 3, 1
    agree(roster, "me/job", Generation(1, pinned), until=LATER)

    for what in life:
        pids += 1
        if what == "stage" and isinstance(slot := roster.acquire(workload), Slot):
            step += 1
            roster.staged(slot, Generation(1, step), body_nbytes=100)
        elif what == "die" and workload.alive:
            roster.died(workload, now=1.0)
        elif what == "come" and not workload.alive:
            workload = come(roster, 0, pids, world=1)
            # In the launch of before, as when the new world has not begun yet.
            roster.reserve(workload, Reserve(PAGE, "a.bin", incarnation=1), limit=3)
            for each in workload.slots.values():
                roster.filled(each)
        elif what == "others":
            other = come_as_other(roster, pids)
            roster.reserve(other, Reserve(PAGE, "a.bin"), limit=3)
        roster.tidy()

        assert pinned in {one.step for one, _ in roster.jobs["me/job"].common()}
        assert roster.jobs["me/job"].agreed == Generation(1, pinned)


def come_as_other(roster: Roster, pid: int) -> Workload:
    answer = roster.register(
        Register("other", pid, 100),
        unit="you/other",
        process=process(pid, uid=7),
        share=100 * PAGE,
        now=0.0,
    )
    assert isinstance(answer, Workload)
    return answer


def test_the_pin_stays_when_its_owner_dies_and_its_memory_is_wanted(roster: Roster) -> None:
    workload = aboard(roster, 1, 2, 3)
    agree(roster, unit(roster), Generation(1, 2), until=LATER)
    roster.died(workload, now=1.0)
    roster.ledger.budget = roster.ledger.used

    # The newest, too, goes before what all nodes have: two slots are to be had.
    again = come(roster, 0, 2, world=1)
    granted = reserve(roster, again, incarnation=2)

    assert len(granted) == 2
    assert held(roster) == {2}


def test_it_ends_when_the_new_world_has_staged(roster: Roster) -> None:
    workload = aboard(roster, 1, 2, 3)
    agree(roster, unit(roster), Generation(1, 2), until=LATER)
    roster.died(workload, now=1.0)

    aboard(roster, 4, incarnation=2, pid=2)

    assert shown(roster.jobs) == []
    assert held(roster) == {4}


def test_it_ends_when_it_is_durable(roster: Roster) -> None:
    aboard(roster, 1, 2, 3)
    agree(roster, unit(roster), Generation(1, 2), until=LATER)

    roster.mark_durable(unit(roster), Generation(1, 2), "s3://a")

    assert shown(roster.jobs) == []


def test_it_ends_in_time_and_when_its_node_stays(roster: Roster) -> None:
    aboard(roster, 1, 2, 3)
    name = unit(roster)
    agree(roster, name, Generation(1, 2), until=LATER)
    expire(roster, now=LATER - 1)
    disagree(roster, name, Generation(1, 3))
    assert [one["step"] for one in shown(roster.jobs)] == [2]

    expire(roster, now=LATER)
    assert shown(roster.jobs) == []

    agree(roster, name, Generation(1, 2), until=LATER)
    disagree(roster, name, Generation(1, 2))
    assert shown(roster.jobs) == []


def test_what_is_staged_a_moment_later_is_pinned_then(roster: Roster) -> None:
    workload = aboard(roster, 1, 2)
    assert agree(roster, unit(roster), Generation(1, 3), until=LATER) is None
    assert [one["held"] for one in shown(roster.jobs)] == [False]

    for step in (3, 4, 5, 6):
        stage(roster, workload, step)

    assert [one["held"] for one in shown(roster.jobs)] == [True]
    assert held(roster) >= {3, 6}


def test_what_is_of_no_use_is_refused(roster: Roster) -> None:
    aboard(roster, 1, 2, 3, incarnation=2)
    name = unit(roster)

    def refusal(generation: Generation, unit: str = name) -> str:
        found = agree(roster, unit, generation, until=LATER)
        assert isinstance(found, Refusal)
        return found.reason

    assert "resumed since" in refusal(Generation(1, 900))
    assert "nobody of" in refusal(Generation(2, 2), "u/other")
    # What is not here takes no pin from what is.
    assert agree(roster, name, Generation(2, 2), until=LATER) is None
    assert "step 2" in refusal(Generation(2, 0))
    roster.mark_durable(name, Generation(2, 3), "s3://a")
    assert "durable already" in refusal(Generation(2, 2))


def test_the_next_daemon_knows_of_it(roster: Roster) -> None:
    aboard(roster, 1, 2, 3)
    agree(roster, unit(roster), Generation(1, 2), until=LATER)
    record = decode(encode(of_job(roster.jobs[unit(roster)])))
    assert isinstance(record, JobRecord)

    other = Roster(budget=100 * PAGE)
    aboard(other, 1, 2, 3)
    remember(other, record, ["s3://a"])

    assert shown(other.jobs) == shown(roster.jobs)
    assert other.jobs[unit(other)].agreed_until == LATER
    assert steps(other)


@pytest.mark.parametrize("stores", [("s3://b", "s3://a"), ("s3://b",), ()])
def test_the_next_daemon_knows_what_is_durable_in_a_store_of_its_own(
    roster: Roster, stores: tuple[str, ...]
) -> None:
    aboard(roster, 1, 2, 3)
    roster.mark_durable(unit(roster), Generation(1, 2), "s3://a")
    record = decode(encode(of_job(roster.jobs[unit(roster)])))
    assert isinstance(record, JobRecord)

    other = Roster(budget=100 * PAGE)
    aboard(other, 1, 2, 3)
    remember(other, record, stores)

    (found,) = other.units(stores)
    if "s3://a" in stores:
        assert (found.durable, found.durable_in) == (Generation(1, 2), "s3://a")
    else:
        assert (found.durable, found.durable_in) == (None, "")
    # As a version before has written it: nobody knows where, and it is taken at its word.
    remember(other, replace(record, durable_in=""), stores)
    assert other.units(stores)[0].durable == Generation(1, 2)
