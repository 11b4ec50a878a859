"""What peers have put here: whole or not at all, within the budget, and as warm as can be."""

from collections.abc import Callable

import pytest

from evac.errors import ProtocolError
from evac.store.peer_wire import PART
from evacd.peer.blocks import Blocks
from evacd.peer.holdings import Holdings


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def blocks() -> Blocks:
    return Blocks(lambda: 1 << 40)


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
def holdings(blocks: Blocks, clock: Time) -> Holdings:
    return Holdings(blocks, budget=4 * PART, keep_seconds=60.0, clock=clock)


@pytest.fixture
def put(holdings: Holdings, blocks: Blocks) -> Callable[[str, int], None]:
    def put(key: str, nbytes: int) -> None:
        number = holdings.begin(key, nbytes)
        assert isinstance(number, int), number
        for at in range(0, nbytes, PART):
            length = min(PART, nbytes - at)
            with holdings.part(number, at, length) as making:
                assert making is not None
                holdings.arrived(making, at, blocks.take(length, lambda: False))
        assert holdings.finish(number, only_new=False)

    return put


def test_a_body_that_lacks_a_part_gets_no_name(holdings: Holdings, blocks: Blocks) -> None:
    number = holdings.begin("a/b", 2 * PART)
    assert isinstance(number, int)
    with holdings.part(number, PART, PART) as making:
        assert making is not None
        assert holdings.finish(number, only_new=False) is None
        holdings.arrived(making, PART, blocks.take(PART, lambda: False))

    assert holdings.finish(number, only_new=False) is None
    assert holdings.below("") == []


@pytest.mark.parametrize(("offset", "nbytes"), [(1, PART), (0, PART - 1), (2 * PART, 1), (PART, 0)])
def test_a_part_is_where_and_as_long_as_it_has_to_be(
    holdings: Holdings, offset: int, nbytes: int
) -> None:
    number = holdings.begin("a/b", 2 * PART)
    assert isinstance(number, int)

    with pytest.raises(ProtocolError), holdings.part(number, offset, nbytes):
        pass


def test_what_one_generation_leaves_is_warm_for_the_next(
    holdings: Holdings, blocks: Blocks, put: Callable[[str, int], None]
) -> None:
    put("j/step-1.1/a.bin", 2 * PART)
    put("j/step-2.1/a.bin", 2 * PART)
    assert blocks.spare_nbytes == 0

    holdings.delete("j/step-1.1/a.bin")
    assert blocks.spare_nbytes == 2 * PART

    put("j/step-3.1/a.bin", 2 * PART)
    assert blocks.spare_nbytes == 0


def test_what_is_given_up_in_mid_part_comes_back_when_that_ends(
    holdings: Holdings, blocks: Blocks
) -> None:
    number = holdings.begin("a/b", PART)
    assert isinstance(number, int)
    with holdings.part(number, 0, PART) as making:
        assert making is not None
        holdings.abort([number])
        assert holdings.shown()["used"] == PART
        holdings.arrived(making, 0, blocks.take(PART, lambda: False))

    assert holdings.shown()["used"] == 0
    with holdings.part(number, 0, PART) as making:
        assert making is None


def test_a_reader_keeps_what_is_forgotten_meanwhile(
    holdings: Holdings, put: Callable[[str, int], None]
) -> None:
    put("a/b", PART)
    with holdings.opened("a/b") as held:
        assert held is not None
        holdings.delete("a/b")
        with held.bytes_at(5, 10) as found:
            assert bytes(found) == bytes(10)
        assert holdings.shown()["used"] == PART

    assert holdings.shown()["used"] == 0


def test_what_nobody_adds_to_goes_after_its_time(
    holdings: Holdings, blocks: Blocks, clock: Time, put: Callable[[str, int], None]
) -> None:
    put("j/step-1.1/a.bin", PART)
    clock.now = 59.0
    assert holdings.sweep(0) == 0
    clock.now = 60.0

    assert holdings.sweep(0) == PART
    assert holdings.below("") == []
    assert blocks.spare_nbytes == 0


def test_the_nodes_own_workloads_come_first(
    holdings: Holdings, blocks: Blocks, put: Callable[[str, int], None]
) -> None:
    put("j/step-1.1/a.bin", PART)
    put("j/step-2.1/a.bin", PART)
    put("k/step-1.1/a.bin", PART)
    holdings.delete("k/step-1.1/a.bin")

    assert holdings.sweep(PART) == 0  # what is spare is enough
    assert blocks.spare_nbytes == 0
    assert holdings.sweep(1) == PART
    assert [key for key, *_ in holdings.below("")] == ["j/step-2.1/a.bin"]
    assert holdings.sweep(1 << 40) == PART
    assert holdings.shown()["used"] == 0


def test_a_system_without_memory_says_so() -> None:
    with pytest.raises(OSError, match="Cannot allocate memory"):
        Blocks(lambda: PART - 1).take(PART, lambda: False)


def test_what_the_nodes_own_workloads_may_need_is_not_lent(clock: Time) -> None:
    blocks = Blocks(lambda: PART - 1)
    holdings = Holdings(blocks, budget=4 * PART, keep_seconds=60.0, clock=clock)

    assert "beside what this node's own workloads" in str(holdings.begin("a/b", PART))
    assert isinstance(holdings.begin("a/b", PART - 4096), int)


def test_it_is_shown_for_whom_how_much_is_held(
    holdings: Holdings, clock: Time, put: Callable[[str, int], None]
) -> None:
    put("me/j/step-1.1/a.bin", 100)
    put("me/j/step-2.1/a.bin", 5000)
    clock.now = 10.0
    put("me/k/evac-job.json", 2)

    assert holdings.shown() == {
        "budget": 4 * PART,
        "used": 4 * 4096,
        "jobs": [
            {"prefix": "me/j", "nbytes": 3 * 4096, "generations": 2, "seconds": 10.0},
            {"prefix": "me/k", "nbytes": 4096, "generations": 0, "seconds": 0.0},
        ],
    }
