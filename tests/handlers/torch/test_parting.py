"""Who reads what on a resume, as laws."""

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from evac.torch.parting import PIECE_CHUNKS, Chunks, Parts, numbers, parts, runs, shared

FILES = ["a", "b", "c"]


@dataclass(frozen=True)
class Job:
    needs: Sequence[Chunks]
    groups: Sequence[int]
    near: Sequence[frozenset[str]]
    stored: frozenset[str]


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    world = draw(st.integers(1, 5))
    groups = [draw(st.integers(0, rank)) for rank in range(world)]
    some = st.frozensets(st.sampled_from(FILES))
    here = [draw(some) for _ in range(world)]
    need = st.dictionaries(st.sampled_from(FILES), st.sets(st.integers(0, 12), min_size=1))
    needs = [{body: runs(n) for body, n in draw(need).items()} for _ in range(world)]
    return Job(needs, groups, [here[group] for group in groups], draw(some))


def divided(job: Job) -> list[Parts]:
    ranks = range(len(job.needs))
    return [parts(rank, job.needs, job.groups, job.near, job.stored) for rank in ranks]


@given(jobs())
def test_every_rank_has_what_it_needs_and_every_group_reads_it_once(job: Job) -> None:
    found = divided(job)
    arrived: list[tuple[int, str, int]] = []
    for rank, one in enumerate(found):
        # They are made by two ranks together, in one order.
        assert (one.moves, one.lost) == (found[0].moves, found[0].lost)
        for body, some in one.reads.items():
            assert body in job.stored
            arrived += [(job.groups[rank], body, chunk) for chunk in numbers(some)]
    for move in found[0].moves:
        assert move.body in job.near[move.sender]
        assert move.body not in job.stored
        # Nothing is sent that was not checked.
        assert {*range(move.first, move.end)} <= numbers(found[move.sender].checks[move.body])
        chunks = range(move.first, move.end)
        arrived += [(job.groups[move.receiver], move.body, one) for one in chunks]
    assert len(arrived) == len(set(arrived))

    expected = set()
    for rank, need in enumerate(job.needs):
        for body, some in need.items():
            if body in job.near[rank]:
                assert numbers(some) <= numbers(found[rank].checks[body])
            elif body in found[0].lost:
                assert body not in job.stored
                assert not any(body in here for here in job.near)
            else:
                expected |= {(job.groups[rank], body, one) for one in numbers(some)}
    assert set(arrived) == expected


def test_what_all_ranks_of_a_node_need_is_spread_over_them() -> None:
    need: Chunks = {"a": ((0, 8 * PIECE_CHUNKS),)}
    found = divided(Job([need] * 4, [0, 0, 2, 2], [frozenset()] * 4, frozenset("a")))

    assert [len(numbers(one.reads["a"])) for one in found] == [4 * PIECE_CHUNKS] * 4
    assert shared([need] * 2, [0, 0], [frozenset()] * 2)
    assert not shared([need] * 2, [0, 1], [frozenset()] * 2)
    assert not shared([need] * 2, [0, 0], [frozenset("a")] * 2)


def test_what_one_rank_alone_needs_it_reads_by_itself() -> None:
    needs: list[Chunks] = [{"a": ((0, 9),)}, {"b": ((0, 9),)}]
    found = divided(Job(needs, [0, 0], [frozenset()] * 2, frozenset("ab")))

    assert [one.reads for one in found] == needs
