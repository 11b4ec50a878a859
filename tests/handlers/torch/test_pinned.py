"""Slots are registered with CUDA before a device writes to them, and no more before they are unmapped."""

import gc
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from evac._memory import Mapping, SlotMemory
from evac.torch import Checkpointer
from evac.torch.image import tail
from evac.torch.images import Images
from evac.torch.layout import Layout, plan
from evac.torch.pinned import Cuda, Pin, pinned
from evac.torch.world import World
from tests.handlers.torch.training import digest

NBYTES = 1 << 20
CPU = torch.device("cpu")
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA device")


class Ledger:
    """Keeps account, as CUDA does: what is registered stays so until it is told otherwise."""

    def __init__(self) -> None:
        self.held: dict[int, int] = {}
        self.threads: set[int] = set()
        self.refuses = False
        self.may_go = threading.Event()
        self.may_go.set()

    def register(self, device: torch.device, address: int, nbytes: int) -> None:
        self.may_go.wait(30)
        if self.refuses:
            raise RuntimeError("CUDA error: out of memory")
        assert address not in self.held
        self.threads.add(threading.get_ident())
        self.held[address] = nbytes

    def unregister(self, device: torch.device, address: int) -> None:
        self.threads.add(threading.get_ident())
        del self.held[address]


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def slot() -> SlotMemory:
    return SlotMemory(0, 0, Mapping(-1, NBYTES))


def test_all_of_a_slot_is_registered_and_given_back_once(ledger: Ledger, slot: SlotMemory) -> None:
    pin = Pin(slot.memory, CPU, ledger)
    assert pin.settle(30)
    assert list(ledger.held.values()) == [NBYTES]
    pin.close()
    pin.close()
    assert ledger.held == {}
    assert not pin.ready


def test_who_is_forgotten_is_given_back_before_its_memory_goes(ledger: Ledger) -> None:
    slot = SlotMemory(0, 0, Mapping(-1, NBYTES))
    pin = Pin(slot.memory, CPU, ledger)
    assert pin.settle(30)
    del slot, pin
    gc.collect()
    assert ledger.held == {}


def test_closed_while_it_is_being_registered_it_ends_unregistered(
    ledger: Ledger, slot: SlotMemory
) -> None:
    ledger.may_go.clear()
    pin = Pin(slot.memory, CPU, ledger)
    assert not pin.ready
    closing = threading.Thread(target=pin.close)
    closing.start()
    ledger.may_go.set()
    closing.join(30)
    assert ledger.held == {}


def test_cuda_is_asked_by_threads_of_its_own(ledger: Ledger, slot: SlotMemory) -> None:
    """A thread's last CUDA error is found by whichever torch kernel it launches next."""
    pin = Pin(slot.memory, CPU, ledger)
    assert pin.settle(30)
    pin.close()
    assert threading.get_ident() not in ledger.threads


def test_where_it_is_refused_staging_goes_on_and_says_so_once(
    ledger: Ledger, slot: SlotMemory, caplog: pytest.LogCaptureFixture
) -> None:
    ledger.refuses = True
    pin = Pin(slot.memory, CPU, ledger)
    assert not pin.settle(30)
    pin.close()
    assert [one.levelname for one in caplog.records] == ["WARNING"]
    assert "is not pinned" in caplog.text


def test_a_machine_without_a_device_pins_nothing(slot: SlotMemory) -> None:
    assert pinned(slot.memory, [torch.zeros(3), torch.zeros(2)]) is None


def test_each_slot_is_pinned_until_it_is_laid_out_anew_or_given_up(ledger: Ledger) -> None:
    pins: list[Pin] = []

    def pin(memory: memoryview, _: Sequence[torch.Tensor]) -> Pin:
        pins.append(Pin(memory, CPU, ledger))
        return pins[-1]

    def layout() -> Layout:
        return plan(World(), {"w": torch.arange(64.0)}, frozenset())

    one, other, images = layout(), layout(), Images(pin)
    slots = [SlotMemory(number, 0, Mapping(-1, NBYTES)) for number in range(2)]
    for made, new in ((one, True), (one, False), (other, True)):
        for slot in slots:
            assert images.write(slot, made, tail(made), [torch.arange(64.0)], []) == new
    assert all(found.settle(30) for found in pins[2:])
    assert len(pins) == 4
    assert not any(found.ready for found in pins[:2])
    assert len(ledger.held) == 2
    images.clear()
    assert ledger.held == {}


@pytest.mark.gpu
@gpu
def test_on_a_device_the_memory_is_pinned_and_then_pageable_again(slot: SlotMemory) -> None:
    flat = torch.frombuffer(slot.memory, dtype=torch.uint8)
    assert not flat.is_pinned()
    pin = Pin(slot.memory, torch.device("cuda", torch.cuda.current_device()), Cuda())
    assert pin.settle(60)
    assert flat.is_pinned()
    source = torch.randint(0, 255, (NBYTES,), dtype=torch.uint8, device="cuda")
    flat.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(flat, source.cpu())
    pin.close()
    assert not flat.is_pinned()
    # No error is left behind for the next kernel.
    assert int(torch.ones(3, device="cuda").sum()) == 3


@pytest.mark.gpu
@gpu
def test_a_run_on_a_device_resumes_to_the_bit(tmp_path: Path) -> None:
    """Optimizer and the device's random numbers, too, with slots that are pinned in between."""

    def model() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(5)
        net = torch.nn.Sequential(
            torch.nn.Linear(64, 64), torch.nn.Dropout(0.5), torch.nn.Linear(64, 8)
        ).cuda()
        return net, torch.optim.AdamW(net.parameters())

    def train(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> str:
        optimizer.zero_grad()
        loss = net(torch.randn(16, 64, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        return digest(loss.detach().cpu())

    store = f"file://{tmp_path}/store"
    net, optimizer = model()
    with Checkpointer(model=net, optimizer=optimizer, job="gpu", store=store, every=3) as saver:
        losses = []
        for step in range(1, 10):
            losses.append(train(net, optimizer))
            saver.step(step)
    net, optimizer = model()
    with Checkpointer(model=net, optimizer=optimizer, job="gpu", store=store) as saver:
        step = saver.restore() or 0
        assert step in {3, 6, 9}
        assert [train(net, optimizer) for _ in range(step, 9)] == losses[step:]
