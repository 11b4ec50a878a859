"""The laws of the roster, over random lives of a small node; then examples."""

from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)

from evac.errors import GenerationError
from evac.generation import Generation
from evac.wire import Register, Reserve
from evacd.workloads import returning
from evacd.workloads.job import Process, Slot, SlotState, Workload
from evacd.workloads.policy import Refusal
from evacd.workloads.roster import Roster

PAGE = 4096
BUDGET = 11 * PAGE
# Each job is another user's; together they may want more than there is.
SHARES = {"a": 8 * PAGE, "b": 6 * PAGE}
UIDS = {"a": 1001, "b": 1002}
PLENTY = 100 * PAGE


def process(pid: int, uid: int = 0) -> Process:
    return Process(pid, started=pid, uid=uid, gid=0)


class Lives(RuleBasedStateMachine):
    """Two jobs of two ranks that come, stage, die and come again."""

    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.roster = Roster(budget=BUDGET)
        self.now = 0.0
        self.pids = 0
        self.alive: dict[tuple[str, int], Workload] = {}
        self.launch: dict[str, int] = {}
        self.memory: set[int] = set()
        self.step = 0
        self.held_now: list[Slot] = []
        self.filling: list[Slot] = []

    # What each unit has safe, in memory or in a store; no rule below but the last may lower it.
    def safe(self) -> dict[str, Generation]:
        found = {}
        for name, job in self.roster.jobs.items():
            both = [g for g in (job.newest_common(), job.durable) if g is not None]
            if both:
                found[name] = max(both)
        return found

    def unharmed(self, before: dict[str, Generation]) -> None:
        after = self.safe()
        assert all(unit in after and after[unit] >= one for unit, one in before.items())
        gone = {slot.key for slot in self.roster.ledger.freed()}
        assert gone <= self.memory
        self.memory -= gone

    @initialize()
    def a_pair_has_a_generation(self) -> None:
        for rank in (0, 1):
            self.register("a", rank)
            self._reserve(self.alive["a", rank], slots=3, pages=1, soon=True)
        for rank in (0, 1):
            self._write(self.alive["a", rank], 2, "staged")

    @rule(unit=st.sampled_from("ab"), rank=st.integers(0, 1))
    def register(self, unit: str, rank: int) -> None:
        before = {slot.key for slot in self._slots()}
        message = Register(unit, rank, 2)
        if (unit, rank) in self.alive:
            thief = process(9999, UIDS[unit])
            answer = self.roster.register(
                message, unit=unit, process=thief, share=SHARES[unit], now=self.now
            )
            assert isinstance(answer, Refusal)
        else:
            self.pids += 1
            mine = process(self.pids, UIDS[unit])
            answer = self.roster.register(
                message, unit=unit, process=mine, share=SHARES[unit], now=self.now
            )
            assert isinstance(answer, Workload)
            self.alive[unit, rank] = answer
        # A rank that nobody counted on makes the job's generations partial ones; they stay.
        assert {slot.key for slot in self._slots()} == before

    def _collect(self) -> None:
        self.memory -= {slot.key for slot in self.roster.ledger.freed()}

    @precondition(lambda self: self.alive)
    @rule(
        data=st.data(),
        slots=st.integers(1, 4),
        pages=st.integers(1, 2),
        newer=st.booleans(),
        soon=st.booleans(),
    )
    def reserve(self, data: st.DataObject, slots: int, pages: int, newer: bool, soon: bool) -> None:
        workload = self._pick(data)
        if newer and self.launch.get(workload.unit, 0) < 3:
            self.launch[workload.unit] = self.launch.get(workload.unit, 0) + 1
        self._reserve(workload, slots, pages, soon=soon)

    def _reserve(self, workload: Workload, slots: int, pages: int, *, soon: bool) -> None:
        before = self.safe()
        message = Reserve(
            nbytes=pages * PAGE,
            slots=slots,
            body="__0_0.distcp",
            incarnation=self.launch.get(workload.unit, 0),
        )
        got = self.roster.reserve(workload, message, limit=3)
        if not isinstance(got, Refusal):
            assert 1 <= len(got) <= min(slots, 3)
            self.memory |= {slot.key for slot in got}
            self.roster.ledger.pin(got)
            self.filling += got
            if soon:
                self.memory_comes()
        self.unharmed(before)

    @rule()
    def memory_comes(self) -> None:
        before = self.safe()
        for slot in self.filling:
            self.roster.filled(slot)
        self.roster.unhold(self.filling)
        self.filling = []
        self.unharmed(before)

    @precondition(lambda self: self.alive)
    @rule(
        data=st.data(),
        ahead=st.integers(1, 3),
        outcome=st.sampled_from(["staged", "released", "left"]),
    )
    def write(self, data: st.DataObject, ahead: int, outcome: str) -> None:
        self._write(self._pick(data), self.step + ahead, outcome)

    @rule(unit=st.sampled_from("ab"), many=st.integers(1, 2))
    def train(self, unit: str, many: int) -> None:
        """What a healthy job does: both ranks stage the same steps."""
        for _ in range(many):
            self.step += 3
            for rank in (0, 1):
                if (unit, rank) in self.alive:
                    self._write(self.alive[unit, rank], self.step, "staged")

    def _write(self, workload: Workload, step: int, outcome: str) -> None:
        before = self.safe()
        held = {slot.key for slot in self._slots() if slot.holds}
        slot = self.roster.acquire(workload)
        self.unharmed(before)
        if isinstance(slot, Refusal):
            assert slot.reason.startswith("no free slot")
            return
        assert slot.key not in held
        assert slot.state is SlotState.WRITING
        assert self.roster.acquire(workload) is slot
        if outcome == "released":
            self.roster.release(workload, slot.number)
        elif outcome == "staged":
            checked = self.roster.staging(workload, slot.number, step)
            if not isinstance(checked, Refusal):
                generation = Generation(slot.shape.incarnation, step)
                self.roster.staged(slot, generation, body_nbytes=10)
        self.unharmed(before)

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), held=st.booleans())
    def hand_back(self, data: st.DataObject, held: bool) -> None:
        """Its owner says of all that it has what it likes."""
        workload = self._pick(data)
        before = self.safe()
        complete = [(s, s.generation) for _, s in workload.complete()]
        read = {slot.key: slot.state for slot in self._slots() if slot.holds}
        for slot in list(workload.slots.values()):
            returning.handed_back(workload, slot, held=held)
        assert all(s.state is SlotState.COMPLETE and s.generation == g for s, g in complete)
        assert read == {slot.key: slot.state for slot in self._slots() if slot.holds}
        self.unharmed(before)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        workload = self._pick(data)
        before = self.safe()
        del self.alive[workload.unit, workload.rank]
        self.roster.died(workload, now=self.now)
        assert all(slot.state is SlotState.COMPLETE for slot in workload.slots.values())
        self.unharmed(before)

    @rule(target=held, data=st.data())
    def hold(self, data: st.DataObject) -> tuple[Slot, ...]:
        whole = self._whole()
        if not whole:
            return ()
        unit, generation = data.draw(st.sampled_from(whole))
        slots = self.roster.hold(unit, generation)
        assert {slot.generation for slot in slots} == {generation}
        self.held_now += slots
        return slots

    @rule(data=st.data())
    def mark_durable(self, data: st.DataObject) -> None:
        whole = self._whole()
        before = self.safe()
        if whole:
            unit, generation = data.draw(st.sampled_from(whole))
            self.roster.mark_durable(unit, generation, "s3://a")
            left = next(u for u in self.roster.units(("lane",)) if u.name == unit)
            assert all(c.generation > generation for c in left.candidates)
        self.unharmed(before)

    @rule(slots=consumes(held))
    def unhold(self, slots: tuple[Slot, ...]) -> None:
        before = self.safe()
        self.roster.unhold(slots)
        self.unharmed(before)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        workload = self._pick(data)
        others = {k: v for k, v in self.safe().items() if k != workload.unit}
        del self.alive[workload.unit, workload.rank]
        self.roster.leave(workload)
        self.unharmed(others)

    @rule(seconds=st.floats(0, 10))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.roster.expire(now=self.now, seconds=15.0)
        self._collect()

    @invariant()
    def the_budget_is_never_exceeded(self) -> None:
        assert self.roster.ledger.used <= BUDGET

    @invariant()
    def no_user_ever_holds_more_than_its_share(self) -> None:
        for unit, uid in UIDS.items():
            held = [slot for slot in self._slots() if slot.owner.process.uid == uid]
            assert sum(slot.nbytes for slot in held) <= SHARES[unit]

    @invariant()
    def memory_is_neither_lost_nor_given_back_twice(self) -> None:
        assert {slot.key for slot in self._slots()} == self.memory

    @invariant()
    def units_are_what_the_jobs_are_now(self) -> None:
        lanes = ("lane",)
        units = self.roster.units(lanes)
        assert units == tuple(job.unit(lanes) for job in self.roster.jobs.values())
        assert self.roster.units(lanes) is units

    @invariant()
    def what_is_in_use_is_what_the_slots_take(self) -> None:
        ledger, slots = self.roster.ledger, self._slots()
        assert ledger.used == sum(slot.nbytes for slot in slots)
        for uid in UIDS.values():
            mine = [slot.nbytes for slot in slots if slot.owner.process.uid == uid]
            assert ledger.used_by(uid) == sum(mine)

    @invariant()
    def what_is_held_is_there(self) -> None:
        assert {slot.key for slot in self.held_now if slot.holds} <= self.memory
        assert all(slot.holds for slot in self._slots() if slot.condemned)

    @invariant()
    def a_candidate_is_whole(self) -> None:
        for unit in self.roster.units(("lane",)):
            job = self.roster.jobs[unit.name]
            newest_first = [one.generation for one in unit.candidates]
            assert newest_first == sorted(newest_first, reverse=True)
            assert unit.candidates or unit.empty_because
            for candidate in unit.candidates:
                parts = job.parts()[candidate.generation]
                assert job.launches[candidate.generation.incarnation] <= parts.keys()

    def _whole(self) -> list[tuple[str, Generation]]:
        units = self.roster.units(("lane",))
        return [(unit.name, one.generation) for unit in units for one in unit.candidates]

    def _slots(self) -> list[Slot]:
        return list(self.roster.ledger.slots.values())

    def _pick(self, data: st.DataObject) -> Workload:
        return self.alive[data.draw(st.sampled_from(sorted(self.alive)))]


Lives.TestCase.settings = hypothesis_settings(
    max_examples=200, stateful_step_count=50, deadline=None
)
TestLives = Lives.TestCase


# --- examples ---------------------------------------------------------------------------


@pytest.fixture
def roster() -> Roster:
    return Roster(budget=PLENTY)


def come(
    roster: Roster, rank: int, pid: int, *, world: int = 2, share: int = PLENTY, **more: Any
) -> Workload:
    register = Register("job", rank, world, **more)
    answer = roster.register(register, unit="me/job", process=process(pid), share=share, now=0.0)
    assert isinstance(answer, Workload), answer
    return answer


def reserve(roster: Roster, workload: Workload, *, incarnation: int = 0, slots: int = 3, nbytes: int = PAGE, layout: str = "") -> tuple[Slot, ...]:  # fmt: skip
    message = Reserve(nbytes, "a.bin", incarnation=incarnation, slots=slots, layout=layout)
    got = roster.reserve(workload, message, limit=3)
    assert not isinstance(got, Refusal), got
    for slot in got:
        roster.filled(slot)
    return got


def stage(roster: Roster, workload: Workload, step: int) -> Slot:
    slot = roster.acquire(workload)
    assert isinstance(slot, Slot), slot
    checked = roster.staging(workload, slot.number, step)
    assert checked is slot, checked
    roster.staged(slot, Generation(slot.shape.incarnation, step), body_nbytes=100)
    return slot


def steps(roster: Roster) -> list[tuple[int, int]]:
    (unit,) = roster.units(("lane",))
    return [(one.generation.incarnation, one.generation.step) for one in unit.candidates]


def why(roster: Roster) -> str:
    return roster.units(("lane",))[0].empty_because


def pair(roster: Roster, pid: int = 1, **more: Any) -> tuple[Workload, Workload]:
    both = come(roster, 0, pid), come(roster, 1, pid + 1)
    for one in both:
        reserve(roster, one, **more)
    return both


def test_the_candidate_is_what_both_ranks_have(roster: Roster) -> None:
    one, other = pair(roster)
    assert why(roster) == "nothing was staged"
    stage(roster, one, 10)
    assert why(roster) == "rank 1 has no complete generation"
    stage(roster, other, 10)
    stage(roster, one, 20)

    assert steps(roster) == [(0, 10)]
    assert roster.units(("lane",))[0].candidates[0].nbytes == 200


def test_a_registered_rank_that_has_reserved_nothing_makes_a_job_incomplete(roster: Roster) -> None:
    one = come(roster, 0, 1)
    reserve(roster, one)
    come(roster, 1, 2)
    stage(roster, one, 10)

    assert steps(roster) == []


def test_the_generation_that_all_have_is_not_granted_away(roster: Roster) -> None:
    one, other = pair(roster, slots=1)
    stage(roster, one, 10)
    stage(roster, other, 10)

    refusal = roster.acquire(one)
    assert isinstance(refusal, Refusal)
    assert refusal.reason == "no free slot: step 10 is the newest that all ranks have"
    roster.mark_durable("me/job", Generation(0, 10), "s3://a")
    assert isinstance(roster.acquire(one), Slot)
    assert "already durable" in why(roster)


def test_a_held_slot_is_not_granted_and_survives_its_owner(roster: Roster) -> None:
    one, other = pair(roster, slots=2)
    for step in (10, 20):
        stage(roster, one, step)
        stage(roster, other, step)
    held = roster.hold("me/job", Generation(0, 10))

    assert isinstance(roster.acquire(one), Refusal)
    roster.leave(one)
    assert held[0] not in roster.ledger.freed()
    roster.unhold(held)
    assert held[0] in roster.ledger.freed()
    with pytest.raises(GenerationError):
        roster.hold("me/job", Generation(0, 20_000))


def test_a_step_that_is_not_newer_is_refused(roster: Roster) -> None:
    one = come(roster, 0, 1, world=1)
    reserve(roster, one)
    stage(roster, one, 10)
    slot = roster.acquire(one)
    assert isinstance(slot, Slot)

    for step in (9, 10):
        assert isinstance(roster.staging(one, slot.number, step), Refusal)


def test_an_older_incarnation_cannot_reserve_after_a_newer_one_staged(roster: Roster) -> None:
    one = come(roster, 0, 1, world=1)
    reserve(roster, one, incarnation=2)
    stage(roster, one, 10)

    message = Reserve(PAGE, "a.bin", incarnation=1)
    assert isinstance(roster.reserve(one, message, limit=3), Refusal)


def test_a_rank_has_one_living_process(roster: Roster) -> None:
    one = come(roster, 0, 123)

    answer = roster.register(
        Register("job", 0, 2), unit="me/job", process=process(124), share=PLENTY, now=0.0
    )
    assert answer == Refusal("rank 0 of job job is already registered by pid 123")
    roster.died(one, now=1.0)
    assert come(roster, 0, 124) is not one


def test_the_same_process_may_come_again_and_keeps_what_it_staged(roster: Roster) -> None:
    one = come(roster, 0, 1, world=1)
    reserve(roster, one)
    stage(roster, one, 10)
    roster.acquire(one)

    assert come(roster, 0, 1, world=1) is one
    assert [slot.state for slot in one.slots.values()] == [SlotState.COMPLETE]
    assert isinstance(roster.acquire(one), Refusal)
    assert steps(roster) == [(0, 10)]
    reserve(roster, one)
    stage(roster, one, 20)
    # Superseded, and never to be written again: it goes.
    assert steps(roster) == [(0, 20)]


def test_what_the_dead_left_stays_until_a_newer_launch_has_staged(roster: Roster) -> None:
    old = pair(roster)
    for one in old:
        stage(roster, one, 10)
    for one in old:
        roster.died(one, now=1.0)
    assert steps(roster) == [(0, 10)]

    new = pair(roster, pid=11, incarnation=1)
    assert steps(roster) == [(0, 10)]
    stage(roster, new[0], 12)
    assert steps(roster) == [(0, 10)]
    stage(roster, new[1], 12)
    assert steps(roster) == [(1, 12)]
    assert set(roster.workloads.values()) == set(new)


def test_a_smaller_world_needs_no_rank_that_it_has_not(roster: Roster) -> None:
    old = pair(roster)
    for one in old:
        stage(roster, one, 10)
        roster.died(one, now=1.0)
    new = come(roster, 0, 11, world=1)
    reserve(roster, new, incarnation=1)
    stage(roster, new, 12)

    assert steps(roster) == [(1, 12)]


def test_ranks_that_moved_replace_those_that_died(roster: Roster) -> None:
    old = [come(roster, rank, 1 + rank, world=4) for rank in (0, 1)]
    for one in old:
        reserve(roster, one)
        stage(roster, one, 10)
        roster.died(one, now=1.0)
    new = [come(roster, rank, 11 + rank, world=4) for rank in (2, 3)]
    for one in new:
        reserve(roster, one, incarnation=1)
    assert steps(roster) == [(0, 10)]
    for one in new:
        stage(roster, one, 12)

    assert steps(roster) == [(1, 12)]


def test_what_is_left_of_a_launch_is_not_taken_for_the_whole(roster: Roster) -> None:
    one, other = pair(roster)
    stage(roster, one, 10)
    stage(roster, other, 10)
    roster.died(one, now=0.0)
    stage(roster, other, 20)

    roster.expire(now=100.0, seconds=50.0)
    assert steps(roster) == []


def test_ranks_of_different_layouts_are_no_generation(roster: Roster) -> None:
    one, other = come(roster, 0, 1), come(roster, 1, 2)
    reserve(roster, one, layout="x")
    reserve(roster, other, layout="y")
    stage(roster, one, 10)
    stage(roster, other, 10)

    assert steps(roster) == []
    assert "disagree" in why(roster)


def test_fewer_slots_are_given_where_memory_is_short(roster: Roster) -> None:
    one = come(roster, 0, 1, world=1)

    assert len(reserve(roster, one, nbytes=40 * PAGE)) == 2
    assert len(reserve(roster, one, nbytes=99 * PAGE)) == 1
    message = Reserve(101 * PAGE, "a.bin")
    answer = roster.reserve(one, message, limit=3)
    assert isinstance(answer, Refusal)
    assert "404 KiB does not fit: the budget of this node is 400 KiB" in answer.reason
    # A refused reservation costs nothing: the former one is still there.
    assert isinstance(roster.acquire(one), Slot)


def test_a_user_s_share_is_all_that_its_workloads_get_together(roster: Roster) -> None:
    one, other = (come(roster, rank, rank + 1, share=50 * PAGE) for rank in (0, 1))

    assert len(reserve(roster, one, nbytes=20 * PAGE)) == 2
    answer = roster.reserve(other, Reserve(20 * PAGE, "a.bin"), limit=3)

    assert answer == Refusal(
        "a slot of 80 KiB does not fit: your user's share of this node is 200 KiB, of which "
        "160 KiB are in use and 0 B of those could be freed"
    )
    assert len(reserve(roster, other, nbytes=10 * PAGE)) == 1
    roster.leave(one)
    assert len(reserve(roster, other, nbytes=20 * PAGE)) == 2


def test_orphans_go_for_a_reserve_but_never_the_newest_that_is_nowhere_else(roster: Roster) -> None:
    one = come(roster, 0, 1, world=1)
    reserve(roster, one, nbytes=30 * PAGE)
    for step in (10, 20, 30):
        stage(roster, one, step)
    roster.died(one, now=0.0)
    other = roster.register(
        Register("b", 0, 1), unit="me/b", process=process(2), share=PLENTY, now=0.0
    )
    assert isinstance(other, Workload)

    assert len(reserve(roster, other, nbytes=35 * PAGE)) == 2
    assert roster.units(("lane",))[0].candidates[0].generation.step == 30
    assert roster.ledger.used == 100 * PAGE


def test_the_dead_are_forgotten_in_time(roster: Roster) -> None:
    one = come(roster, 0, 1, world=1)
    reserve(roster, one)
    stage(roster, one, 10)
    roster.died(one, now=100.0)

    roster.expire(now=149.0, seconds=50.0)
    assert steps(roster) == [(0, 10)]
    roster.expire(now=150.0, seconds=50.0)
    assert roster.units(("lane",)) == ()
    assert roster.ledger.used == 0


def test_callback_workloads_take_turns_and_hold_nothing(roster: Roster) -> None:
    one = come(roster, 0, 1, mode="callback", need_seconds=7.0)
    come(roster, 1, 2, mode="callback", need_seconds=9.0)

    (unit,) = roster.units(("lane",))
    assert unit.turn_seconds == 9.0
    assert isinstance(roster.reserve(one, Reserve(PAGE, "a.bin"), limit=3), Refusal)
    refused = roster.register(
        Register("job", 2, 3), unit="me/job", process=process(3), share=PLENTY, now=0.0
    )
    assert isinstance(refused, Refusal)
    roster.died(one, now=0.0)
    assert roster.seat("me/job", 0) is None


def test_no_user_takes_all_slots_from_the_others() -> None:
    roster, share = Roster(budget=1 << 40), 1 << 40
    greedy = [come(roster, rank, rank + 1, world=251, share=share) for rank in range(251)]
    message = Reserve(nbytes=PAGE, slots=16, body="a.bin", incarnation=0)
    got = [roster.reserve(one, message, limit=16) for one in greedy]
    assert all(isinstance(one, tuple) for one in got[:-1])
    assert isinstance(got[-1], Refusal)
    assert "no more of your user" in got[-1].reason
    # What it gives up it may have again.
    assert isinstance(roster.reserve(greedy[0], message, limit=16), tuple)

    stranger = roster.register(
        Register("other", 0, 1), unit="you/other", process=process(9999, 7), share=share, now=0.0
    )
    assert isinstance(stranger, Workload)
    other = roster.reserve(stranger, message, limit=16)
    assert isinstance(other, tuple)
    assert len(other) == 16
