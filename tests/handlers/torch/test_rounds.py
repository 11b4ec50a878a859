"""Where workers stand after any batch is enough to make all that come after it as they would have been."""

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as some

from evac.torch.rounds import Rounds
from evac.torch.worker_numbers import Numbers, changed


class Workers:
    """Make batches in turn, the first of them the first one's, each from its own numbers alone."""

    def __init__(self, began: Sequence[Numbers | None]) -> None:
        self._numbers = [one or {"a": b"%d" % worker} for worker, one in enumerate(began)]
        self._told: list[Numbers] = [{} for _ in began]

    def batches(self) -> Iterator[tuple[str, Numbers | None]]:
        """Each with what has changed of its worker's numbers; some fail, and nothing comes with them."""
        turn = 0
        while True:
            worker, turn = turn % len(self._numbers), turn + 1
            made = f"{worker}: {sorted(self._numbers[worker].items())}"
            self._numbers[worker] = drawn(self._numbers[worker])
            if int(self._numbers[worker]["a"]) % 4 == 0:
                yield "failed", None
                continue
            yield made, changed(self._numbers[worker], self._told[worker])
            self._told[worker] = self._numbers[worker]


def drawn(numbers: Numbers) -> Numbers:
    """Not of each kind each time, and of a kind that was not there before."""
    nth = int(numbers["a"]) * 7 % 1009 + 1
    kinds = {"a": b"%d" % nth}
    if nth % 3 == 0:
        kinds["b"] = b"%d" % nth
    return {**numbers, **kinds}


@given(
    workers=some.integers(1, 5),
    parts=some.lists(some.integers(0, 13), min_size=1, max_size=4),
)
def test_resumed_after_any_batch_and_again_the_same_batches_come(
    workers: int, parts: list[int]
) -> None:
    whole = Workers([None] * workers).batches()
    rounds = Rounds.at(0, [None] * workers)
    for part in parts:
        taken = rounds.taken
        batches = Workers(rounds.began).batches()
        rounds = Rounds.at(rounds.begun, rounds.began)
        while rounds.taken < taken:
            rounds = rounds.after(next(batches)[1])
        for _ in range(part):
            made, numbers = next(batches)
            assert made == next(whole)[0]
            rounds = rounds.after(numbers)
    assert rounds.taken == sum(parts)


@given(workers=some.integers(1, 5), taken=some.integers(0, 40))
def test_where_none_fails_fewer_are_made_again_than_there_are_workers(
    workers: int, taken: int
) -> None:
    rounds = Rounds.at(0, [None] * workers)
    for batch in range(taken):
        rounds = rounds.after({"a": b"%d" % batch})
    assert rounds.taken == taken
    assert 0 <= taken - rounds.begun < workers


def test_amid_a_round_none_begins() -> None:
    with pytest.raises(ValueError, match="5 batches of 2 workers are no whole rounds"):
        Rounds.at(5, [None, None])
