"""A state that is laid out anew while training goes on: each generation goes with its own layout."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from evac.torch.image import tail
from evac.torch.layout import Layout, plan
from evac.torch.own_slots import OwnSlots
from evac.torch.world import World
from tests.handlers.torch.test_own_slots import LAYOUT, Follows, folder_of, own, whole
from tests.handlers.torch.training import Run, wait_committed

# Planned anew, a state takes as much room as before, or another one.
NEXT: dict[str, Layout] = {
    "the same size": plan(World(), {"other": 1}),
    "another size": plan(World(), {"value": torch.zeros(200_000)}),
}


def stage(slots: OwnSlots, step: int, layout: Layout) -> None:
    behind = tail(layout)
    slot = slots.acquire()
    assert slot is not None
    assert slot.nbytes == behind.slot_nbytes
    slot.begin(1)
    header = behind.header(incarnation=1, step=step)
    slot.complete(header)
    slots.staged(slot, header)


def commit(choice: Follows, step: int) -> None:
    choice.pick_now = step
    until = time.perf_counter() + 30
    while step not in choice.finished:
        assert time.perf_counter() < until
        time.sleep(0.005)


def metadata(store: str, step: int) -> bytes:
    (found,) = folder_of(store).glob(f"*/run/step-{step}.1/.metadata")
    return found.read_bytes()


@pytest.mark.parametrize("size", NEXT)
def test_what_was_staged_before_is_committed_as_it_was_laid_out(store: str, size: str) -> None:
    choice, layout = Follows(), NEXT[size]
    assert (tail(layout).slot_nbytes == tail(LAYOUT).slot_nbytes) == (size == "the same size")
    slots = own(store, choice=choice)
    stage(slots, 1, LAYOUT)
    assert slots.reserve(tail(layout).slot_nbytes, layout, 1) == ""
    stage(slots, 2, layout)
    commit(choice, 1)
    commit(choice, 2)
    stage(slots, 3, layout)
    commit(choice, 3)
    assert metadata(store, 1) == LAYOUT.metadata
    assert metadata(store, 2) == metadata(store, 3) == layout.metadata
    choice.over = True
    slots.close()
    assert choice.finished == [1, 2, 3]


@pytest.mark.parametrize("size", NEXT)
def test_what_waits_in_old_memory_is_used_for_nothing_else(store: str, size: str) -> None:
    choice, layout = Follows(), NEXT[size]
    slots = own(store, choice=choice, slots=2)
    stage(slots, 1, LAYOUT)
    assert slots.reserve(tail(layout).slot_nbytes, layout, 1) == ""
    for step in (2, 3, 4, 5, 6):
        stage(slots, step, layout)
    assert slots.reserve(tail(LAYOUT).slot_nbytes, LAYOUT, 1) == ""
    for step in (7, 8, 9):
        stage(slots, step, LAYOUT)
    commit(choice, 9)
    assert metadata(store, 9) == LAYOUT.metadata
    choice.over = True
    slots.close()
    assert whole(store) == ["step-9.1"]


def renamed(run: Run) -> None:
    del run.model.one
    run.model.register_buffer("two", torch.arange(4.0))


def widened(run: Run) -> None:
    run.model.register_buffer("one", torch.arange(65536.0))


def scalar(run: Run) -> None:
    run.model.register_buffer("amax", torch.tensor(0.5))


@pytest.mark.parametrize("verb", ["step", "stage"])
@pytest.mark.parametrize("change", [renamed, widened, scalar])
def test_a_model_that_changes_while_it_trains_is_restored_as_it_became(
    store: str, change: Any, verb: str
) -> None:
    run = Run()
    run.model.register_buffer("one", torch.arange(4.0))
    saver = run.saver(store=store)
    for step in (1, 2):
        run.train()
        assert getattr(saver, verb)(step)
        wait_committed(store, step)
    change(run)
    step = 2
    while saver.stats.staged < 4:
        step += 1
        run.train()
        getattr(saver, verb)(step)
    saver.close()
    if change is renamed:
        assert nbytes(store, step) == nbytes(store, 2)

    again = Run(seed=9)
    again.model.register_buffer("one", torch.zeros(4))
    change(again)
    with again.saver(store=store) as saver:
        assert saver.restore() == step
    assert again.digest() == run.digest()


def nbytes(store: str, step: int) -> int:
    """Of the body in the store."""
    files: list[Path] = [
        *folder_of(store).glob(f"*/run/step-{step}.1/*.distcp"),
        *folder_of(store).glob(f"*/run/step-{step}.1/weights/*.distcp"),
    ]
    return sum(path.stat().st_size for path in files)
