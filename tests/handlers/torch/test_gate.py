"""All ranks do what is asked at the end of one and the same step: over a real store."""

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import timedelta

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined] # public, but not in __all__

from evac._clock import monotonic
from evac.torch.gate import Gate
from evac.torch.keystore import KeyStore


@pytest.fixture
def store() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=30))


def _gates(store: TCPStore, world: int, stack: ExitStack, *, patience: float = 20.0) -> list[Gate]:
    return [
        stack.enter_context(closing(Gate(_own(store), rank=rank, world=world, patience=patience)))
        for rank in range(world)
    ]


def _own(store: TCPStore) -> KeyStore:
    clone: KeyStore = store.clone()  # type: ignore[attr-defined] # torch's stub is behind
    return clone


def _train(gates: list[Gate], steps: int, act: Callable[[int, int], None]) -> list[list[int]]:
    """Ranks in lockstep, as a collective keeps them; at which steps each did which thing."""
    barrier = threading.Barrier(len(gates))

    def rank_of(rank: int) -> list[int]:
        done: list[int] = []
        for step in range(1, steps + 1):
            barrier.wait(30)
            act(rank, step)
            done += [step] * len(gates[rank].passed(step))
        return done

    with ThreadPoolExecutor(len(gates)) as pool:
        return [one.result(60) for one in [pool.submit(rank_of, r) for r in range(len(gates))]]


@pytest.mark.parametrize("world", [2, 5])
@pytest.mark.parametrize("seed", range(2))
def test_every_rank_does_it_at_the_same_step(store: TCPStore, world: int, seed: int) -> None:
    rng = random.Random(seed)
    asked = {(rng.randrange(world), rng.randrange(2, 60)) for _ in range(3)}

    def act(rank: int, step: int) -> None:
        if (rank, step) in asked:
            gates[rank].ask(f"stage {rank}.{step}")
        time.sleep(0.004)

    with ExitStack() as stack:
        gates = _gates(store, world, stack)
        done = _train(gates, 120, act)
    assert len(done[0]) == len(asked)
    assert all(one == done[0] for one in done)


def test_a_rank_that_hangs_in_a_step_is_spoken_for(store: TCPStore) -> None:
    """Its thread answers; it is behind, and comes to the agreed step later."""
    with ExitStack() as stack:
        ahead, behind = _gates(store, 2, stack)
        assert ahead.passed(1) == ()
        assert behind.passed(1) == ()
        assert ahead.passed(2) == ()
        # *behind* hangs in step 2 from here on; *ahead* is in step 3.
        behind.ask("stage")
        with ThreadPoolExecutor(1) as pool:
            todo: tuple[str, ...] = ()
            step = 3
            while not todo:
                todo = pool.submit(ahead.passed, step).result(30)
                step += 1
        assert todo == ("stage",)
        found = {at: behind.passed(at) for at in range(2, step)}
        assert {at: what for at, what in found.items() if what} == {step - 1: ("stage",)}


def test_asked_before_the_first_step_it_is_done_at_its_end(store: TCPStore) -> None:
    with ExitStack() as stack:
        one, other = _gates(store, 2, stack)
        one.ask("plan")
        _until(lambda: store.check(["gate/at/1"]))
        assert (one.passed(7), other.passed(7)) == (("plan",), ("plan",))


def test_where_a_rank_is_gone_nobody_acts_and_nobody_waits_for_ever(
    store: TCPStore,
) -> None:
    with ExitStack() as stack:
        one, other = (
            stack.enter_context(closing(Gate(_own(store), rank=rank, world=3, patience=0.2)))
            for rank in (0, 1)
        )
        one.ask("stage")
        _until(lambda: store.check(["gate/at/1"]))
        assert store.get("gate/at/1") == b"never"
        assert one.passed(1) == other.passed(1) == ()


def test_steps_that_are_numbered_with_gaps_meet_what_was_arranged(store: TCPStore) -> None:
    """As by who counts samples, or asks at every tenth step alone."""
    with ExitStack() as stack:
        gates = _gates(store, 2, stack)
        done: list[list[int]] = [[], []]
        for step in range(32, 32 * 60, 32):
            if step == 320:
                gates[1].ask("stage")
            for rank, gate in enumerate(gates):
                done[rank] += [step] * len(gate.passed(step))
            time.sleep(0.004)
            if done[0]:
                break
    assert done[0] == done[1] != []


def test_what_was_not_arranged_is_asked_again_once_the_silent_rank_is_back(
    store: TCPStore,
) -> None:
    now = 0.0
    with ExitStack() as stack:
        one = stack.enter_context(
            closing(Gate(_own(store), world=2, patience=5.0, clock=lambda: now))
        )
        one.ask("stage")
        _until(lambda: store.check(["gate/in/1"]))
        now = 6.0
        _until(lambda: store.check(["gate/at/1"]))
        [other] = [stack.enter_context(closing(Gate(_own(store), rank=1, world=2)))]
        now = 60.0
        _until(lambda: store.check(["gate/at/2"]))
        assert (one.passed(1), other.passed(1)) == (("stage",), ("stage",))


class Failing:
    """A store whose server is away for a while: every call fails."""

    def __init__(self, store: KeyStore) -> None:
        self._store = store
        self.fails = 0

    def __getattr__(self, name: str) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            if self.fails:
                self.fails -= 1
                raise RuntimeError("Connection reset by peer")
            done: object = getattr(self._store, name)(*arguments)
            return done

        return call


@pytest.mark.parametrize("fails", [1, 2, 5])
def test_a_store_that_was_away_ends_no_gate(store: TCPStore, fails: int) -> None:
    with ExitStack() as stack:
        failing = Failing(_own(store))
        one = stack.enter_context(closing(Gate(failing, world=2)))  # type: ignore[arg-type] # a store in all but name
        other = stack.enter_context(closing(Gate(_own(store), rank=1, world=2)))
        failing.fails = fails
        _until(lambda: not failing.fails)
        other.ask("stage")
        _until(lambda: store.check(["gate/at/1"]))
        assert (one.passed(1), other.passed(1)) == (("stage",), ("stage",))


def test_the_same_wish_of_many_ranks_is_done_once(store: TCPStore) -> None:
    """All ranks hear a notice within milliseconds of each other."""
    with ExitStack() as stack:
        gates = _gates(store, 3, stack)
        for gate in gates:
            gate.ask("stage")
            gate.ask("stage")

        def act(rank: int, step: int) -> None:
            time.sleep(0.004)

        done = _train(gates, 100, act)
    assert all(one == done[0] for one in done)
    assert 1 <= len(done[0]) <= 3


def test_it_leaves_no_keys_behind(store: TCPStore) -> None:
    with ExitStack() as stack:
        gates = _gates(store, 2, stack)

        def act(rank: int, at: int) -> None:
            time.sleep(0.004)
            if rank == 0 and at % 20 == 0:
                gates[0].ask(f"stage {at}")

        _train(gates, 165, act)
    left = [key for key in store.list_keys() if "gate" in key]
    # Those of the last arrangement, and the count.
    assert len(left) <= 6


def test_alone_it_is_done_at_once() -> None:
    gate = Gate(None)
    gate.ask("stage")
    assert gate.passed(1) == ("stage",)
    assert gate.passed(2) == ()
    gate.close()


def test_a_lost_store_holds_nobody() -> None:
    master = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=5))
    client = TCPStore("127.0.0.1", master.port, is_master=False, timeout=timedelta(seconds=5))
    gate = Gate(client, rank=0, world=2, patience=0.2)
    del master
    gate.ask("stage")
    assert gate.passed(1) == ()
    gate.close()


def _until(true: Callable[[], bool]) -> None:
    limit = monotonic() + 20
    while not true():
        assert monotonic() < limit, "waited for 20 s"
        time.sleep(0.005)
