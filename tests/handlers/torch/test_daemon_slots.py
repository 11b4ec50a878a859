"""The checkpointer with the real board: what was staged outlives whoever staged it."""

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from evac._memory import SlotMemory
from evac.errors import NotConnected
from evac.generation import Generation
from evac.torch.daemon_slots import DaemonSlots
from evac.torch.layout import Layout
from tests.handlers.torch import ranks, scenes
from tests.handlers.torch.fakes import FakeClient
from tests.handlers.torch.node import node
from tests.handlers.torch.ranks import process
from tests.handlers.torch.training import Run


@pytest.mark.parametrize("world", [1, 2])
def test_what_a_killed_job_had_staged_is_flushed_and_resumed_from(
    tmp_path: Path, store: str, world: int
) -> None:
    out, again = str(tmp_path / "saved"), str(tmp_path / "again")
    with node(tmp_path, store) as here:
        jobs = [
            process(scenes.stage_and_hang, rank, world, str(tmp_path), str(here.socket), 5, out)
            for rank in range(world)
        ]
        newest = Generation(incarnation=1, step=5)
        unit = here.wait_staged(newest, world)
        for job in jobs:
            assert job.pid is not None
            os.kill(job.pid, signal.SIGKILL)
            job.join(30)
        assert here.flush(unit, newest)
    ranks.run(world, scenes.restore, store, 5, again, out)


def test_an_own_store_and_a_daemon_agree_on_the_place(
    tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run()
    with run.saver(store=store) as saver:
        run.train()
        saver.step(1)
    with node(tmp_path, store) as here:
        monkeypatch.setenv("EVAC_SOCKET", str(here.socket))
        with Run().saver() as again:
            assert again.restore() == 1
            run.train()
            again.stage(2)
            here.wait_staged(Generation(incarnation=2, step=2), 1)


class Hanging(FakeClient):
    """Its daemon is stopped: it is connected, and answers nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.hangs = True

    def acquire(self, timeout: float = 0.25) -> SlotMemory | None:
        if not self.hangs:
            return super().acquire(timeout)
        self.now += timeout
        return None


def test_a_daemon_that_hangs_costs_training_one_percent() -> None:
    client = Hanging()
    slots = DaemonSlots(client.as_client(), slots=3, clock=lambda: client.now)
    waited = 0.0
    for _ in range(10_000):
        client.now += 0.01
        before = client.now
        assert slots.acquire() is None
        waited += client.now - before
    assert 0 < waited <= 0.012 * client.now

    client.hangs = False
    client.reserve(nbytes=4096, slots=1, body="b", layout="l", incarnation=1)
    client.now += 30.0
    assert slots.acquire() is not None


class Making(FakeClient):
    """Its daemon is making memory: one slot after the other, and the next when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.made = 1

    @property
    def openings(self) -> int:
        return self.made

    def acquire(self, timeout: float = 0.25) -> SlotMemory | None:
        if len(self.kept) < self.made:
            return super().acquire(timeout)
        self.now += timeout
        return None


def test_memory_long_in_the_making_is_waited_for_once_a_slot_and_used_as_soon_as_it_is_there() -> (
    None
):
    client = Making()
    slots = DaemonSlots(client.as_client(), slots=3, clock=lambda: client.now)
    layout = cast(Layout, SimpleNamespace(body="b", name="l"))
    assert slots.reserve(4096, layout, 1) == ""
    for made in (1, 2, 3):
        client.made = made
        slot = slots.acquire()
        assert slot is not None
        client.staged(slot, made)
        began = client.now
        for _ in range(100):
            client.now += 0.01
            assert slots.acquire() is None
        assert client.now - began == pytest.approx(100 * 0.01 + 0.25)

    assert slots.reserve(4096, layout, 1) == ""
    client.kept.clear()
    assert slots.acquire() is not None


class Late(FakeClient):
    """Its daemon takes longer to make a first slot than is waited for, or hangs."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.asked = 0
        self.came = 0

    @property
    def openings(self) -> int:
        return self.came

    def reserve(self, **given: Any) -> None:
        super().reserve(**given)
        self.asked += 1
        self.now += 60.0
        raise NotConnected(self.socket, "no slot within 60 s")

    def come(self) -> None:
        self.came += 1


def test_a_reservation_that_comes_late_is_used_and_not_begun_anew_at_each_stage() -> None:
    client = Late()
    slots = DaemonSlots(client.as_client(), slots=3, clock=lambda: client.now)
    layout = cast(Layout, SimpleNamespace(body="b", name="l"))
    for _ in range(500):
        assert slots.reserve(4096, layout, 1)
        client.now += 1.0
    assert client.asked == 1
    client.come()
    assert slots.reserve(4096, layout, 1) == ""
    assert slots.acquire() is not None
    assert client.asked == 1


@pytest.mark.parametrize("change", ["nothing, for ten minutes", "layout", "connection"])
def test_what_does_not_come_or_is_of_no_use_any_more_is_asked_for_again(change: str) -> None:
    client = Late()
    slots = DaemonSlots(client.as_client(), slots=3, clock=lambda: client.now)
    layout = cast(Layout, SimpleNamespace(body="b", name="l"))
    assert slots.reserve(4096, layout, 1)
    if change == "layout":
        layout = cast(Layout, SimpleNamespace(body="b", name="another"))
        client.come()
    elif change == "connection":
        client.restart()
    else:
        client.now += 600.0
    assert slots.reserve(4096, layout, 1)
    assert client.asked == 2
