import os
from pathlib import Path

import pytest

from evac.torch.choice import Alone, Choice
from evac.torch.complaints import Complaints
from evac.torch.identity import Identity, claim
from evac.torch.image import tail
from evac.torch.layout import Layout, plan
from evac.torch.own_slots import KEEP, OwnSlots
from evac.torch.world import World
from tests.handlers.torch.fakes import FakeClient
from tests.handlers.torch.training import Run, wait_committed

LAYOUT: Layout = plan(World(), {"value": 1})
TAIL = tail(LAYOUT)


def folder_of(store: str) -> Path:
    return Path(store.removeprefix("file://"))


def whole(store: str) -> list[str]:
    return sorted(path.parent.name for path in folder_of(store).glob("*/run/step-*/.metadata"))


def own(store: str, *, choice: Choice | None = None, slots: int = 3) -> OwnSlots:
    made = OwnSlots(
        store,
        "me/run",
        Identity("run", "", 0, 1),
        lambda incarnation: choice or Alone(),
        Complaints(),
        slots=slots,
    )
    assert made.reserve(TAIL.slot_nbytes, LAYOUT, 1) == ""
    return made


def stage(slots: OwnSlots, step: int) -> bool:
    slot = slots.acquire()
    if slot is None:
        return False
    slot.begin(1)
    header = TAIL.header(incarnation=1, step=step)
    slot.complete(header)
    slots.staged(slot, header)
    return True


class Follows:
    """The choice as a rank that does not lead sees it; the test leads."""

    leads = False

    def __init__(self) -> None:
        self.pick_now: int | None = None
        self.finished: list[int | None] = []
        self.over = False

    def settled(self) -> bool:
        raise AssertionError("a follower does not ask")

    def pick(self, step: int) -> None:
        raise AssertionError("a follower picks nothing")

    def picked(self) -> int | None:
        return self.pick_now

    def done(self) -> None:
        self.finished.append(self.pick_now)
        self.pick_now = None

    def end(self) -> None:
        assert self.over

    def ended(self) -> bool:
        return self.over


def test_the_last_generation_is_committed_before_close_returns(store: str) -> None:
    slots = own(store)
    for step in range(1, 40):
        stage(slots, step)
    slots.close()
    assert "step-39.1" in whole(store)


def test_only_so_many_generations_stay(store: str) -> None:
    run = Run()
    with run.saver(store=store) as saver:
        for step in range(1, KEEP + 4):
            run.train()
            saver.stage(step)
            wait_committed(store, step)
    assert len(whole(store)) == KEEP


class Leads(Follows):
    """The choice as rank 0 sees it, with others that are slow."""

    leads = True

    def __init__(self) -> None:
        super().__init__()
        self.others_are_done = True
        self.picks: list[int] = []

    def settled(self) -> bool:
        return self.others_are_done

    def pick(self, step: int) -> None:
        self.picks.append(step)
        self.others_are_done = False

    def picked(self) -> int | None:
        return None

    def done(self) -> None:
        pass

    def end(self) -> None:
        self.over = True


def test_a_follower_commits_what_was_picked_and_nothing_else(store: str) -> None:
    choice = Follows()
    slots = own(store, choice=choice)
    assert stage(slots, 1)
    assert stage(slots, 2)
    choice.pick_now = 2
    wait_committed(store, 2)
    assert stage(slots, 3)
    choice.over = True
    slots.close()
    assert whole(store) == ["step-2.1"]
    assert choice.finished == [2]


def test_a_follower_makes_room_only_from_what_was_passed_over(store: str) -> None:
    choice = Follows()
    slots = own(store, choice=choice)
    assert all(stage(slots, step) for step in (1, 2, 3, 4, 5))
    choice.pick_now = 3
    wait_committed(store, 3)
    choice.over = True
    slots.close()
    assert whole(store) == ["step-3.1"]


def test_a_follower_says_so_where_it_had_to_leave_the_pick_out(store: str) -> None:
    choice = Follows()
    slots = own(store, choice=choice)
    assert stage(slots, 1)
    choice.pick_now = 2
    assert stage(slots, 3)
    choice.over = True
    slots.close()
    assert choice.finished == [2]
    assert whole(store) == []


def test_the_leader_picks_the_next_only_when_all_have_done_with_the_last(store: str) -> None:
    choice = Leads()
    slots = own(store, choice=choice)
    assert stage(slots, 1)
    wait_committed(store, 1)
    assert all(stage(slots, step) for step in (2, 3, 4, 5))
    assert choice.picks == [1]
    choice.others_are_done = True
    slots.close()
    assert choice.picks == [1, 5]
    assert whole(store) == ["step-1.1", "step-5.1"]


def test_a_slot_that_is_given_back_is_free_again(store: str) -> None:
    choice = Follows()
    slots = own(store, choice=choice, slots=1)
    slot = slots.acquire()
    assert slot is not None
    assert slots.acquire() is None
    slots.release(slot)
    assert slots.acquire() is slot
    choice.over = True
    slots.close()


@pytest.fixture
def broken(tmp_path: Path) -> str:
    """A store whose root is a file."""
    (tmp_path / "broken").write_text("")
    return f"file://{tmp_path}/broken"


def test_a_failing_store_is_told_once_and_training_goes_on(
    store: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run()
    saver = run.saver(store=store)
    run.train()
    assert saver.stage(1)
    wait_committed(store, 1)
    # From now on nothing can be written there.
    root = folder_of(store)
    os.rename(root, f"{root}.away")
    root.write_text("")
    for step in (2, 3, 4):
        run.train()
        assert saver.stage(step)
    saver.close()
    assert saver.stats.failed >= 1
    assert caplog.text.count("not kept") == 1
    # A full disk is no bug of ours: forty lines of trace would hide what it says.
    assert "Traceback" not in caplog.text


def test_a_store_that_cannot_be_reached_at_the_start_is_told_once_and_tried_again(
    broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run()
    with run.saver(store=broken) as saver:
        run.train()
        assert not saver.stage(1)
        assert not saver.stage(2)
        assert caplog.text.count("no incarnation") == 1
        Path(broken.removeprefix("file://")).unlink()
        assert saver.stage(3)
    assert whole(broken) == ["step-3.1"]


def test_a_daemon_that_appears_later_takes_over(store: str) -> None:
    client = FakeClient([store])
    client.connected = False
    run = Run()
    saver = run.saver(store=store, client=client.as_client())
    run.train()
    assert saver.stage(1)
    wait_committed(store, 1)
    client.connected = True
    assert saver.stage(2)
    assert client.kept == [(0, 2)]
    assert client.reservations[0]["incarnation"] == 1
    saver.close()
    assert whole(store) == ["step-1.1"]
    assert client.closed


def test_a_daemon_that_stays_away_is_replaced_until_it_is_back(
    store: str, caplog: pytest.LogCaptureFixture
) -> None:
    client, now = FakeClient([store]), [100.0]
    run = Run()
    saver = run.saver(store=store, client=client.as_client(), patience=30.0, clock=lambda: now[0])

    def stage(step: int) -> bool:
        run.train()
        return saver.stage(step)

    assert stage(1)
    client.connected, client.lost = False, 100.0
    now[0] = 129.9
    assert not stage(2)
    assert saver.stats.last_reason == "step 2: the daemon is away"
    now[0] = 130.0
    assert stage(3)
    wait_committed(store, 3)
    client.connected, client.lost = True, None
    client.restart()
    assert stage(4)
    # And again: the ranks' common choice goes on where it was.
    client.connected, client.lost = False, 200.0
    now[0] = 231.0
    assert stage(5)
    wait_committed(store, 5)
    saver.close()
    assert whole(store) == ["step-3.1", "step-5.1"]
    assert [step for _, step in client.kept] == [1, 4]
    assert [one["incarnation"] for one in client.reservations] == [1, 1]
    assert caplog.text.count("evacd is away for 30 s") == 2


def test_without_a_store_a_daemon_is_waited_for_for_ever(store: str) -> None:
    client, now = FakeClient([store]), [100.0]
    run = Run()
    saver = run.saver(client=client.as_client(), clock=lambda: now[0])
    run.train()
    assert saver.stage(1)
    client.connected, client.lost, now[0] = False, 100.0, 1e6
    assert not saver.stage(2)
    client.connected, client.lost = True, None
    client.restart()
    assert saver.stage(3)


def test_a_start_is_new_in_the_daemons_store_and_in_the_own_one(store: str, tmp_path: Path) -> None:
    theirs = f"file://{tmp_path}/theirs"
    for above in (0, 1):
        claim((store,), "me/run", Identity("run", "", 0, 1), above=above)
    client = FakeClient([theirs])
    run = Run()
    run.train()
    saver = run.saver(store=store, client=client.as_client())
    assert saver.stage(1)
    assert client.reservations[0]["incarnation"] == 3


def test_memory_is_freed_while_nobody_stages_here_and_is_there_again_after_it(store: str) -> None:
    slots = own(store)
    assert stage(slots, 1)
    slots.rest()
    wait_committed(store, 1)
    assert slots.reserve(TAIL.slot_nbytes, LAYOUT, 1) == ""
    assert stage(slots, 2)
    slots.close()
    assert whole(store) == ["step-1.1", "step-2.1"]
