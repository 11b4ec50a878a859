"""What is whole over all places together: the decision, as laws."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evac.generation import Generation
from evac.torch.holdings import Candidate, Holding, Kept, Made, candidates, whole

MADE = Made(Generation(2, 10), "full", "run", "layout", 3, "sha")
STORE, PEER, NODE = "s3://b/p", "evac://a:1", "memory of node-b"


def holding(
    place: str, *ranks: int, made: Made = MADE, sums: str = "", copies: tuple[str, ...] = (),
    names: frozenset[str] = frozenset(), described: bool = True,
) -> Holding:  # fmt: skip
    """The shares of *ranks*, each of one file, and copies of others' files."""
    files = {name: Kept(8, sums) for name in (*map(file, ranks), *copies)}
    return Holding(place, made, frozenset(ranks), files, described, names)


def file(rank: int) -> str:
    return f"__{rank}_0.distcp"


ALL = frozenset(map(file, range(3)))


def test_a_peer_a_nodes_memory_and_a_store_are_whole_together() -> None:
    parts = [holding(PEER, 0), holding(NODE, 1), holding(STORE, 2, described=False)]

    assert candidates(parts) == [Candidate(MADE, tuple(parts))]
    for missing in range(3):
        assert not candidates(parts[:missing] + parts[missing + 1 :])


def test_a_copy_on_another_node_is_as_good_as_what_it_copies() -> None:
    near = holding(NODE, 1, copies=(file(0),), names=ALL)

    assert candidates([near, holding(STORE, 2)])
    # Who does not know what there must be cannot tell that a copy is all of a share.
    assert not candidates([replace(near, names=frozenset()), holding(STORE, 2)])
    assert not candidates([near])


OTHER = [
    pytest.param(replace(MADE, generation=Generation(2, 11)), id="another step"),
    pytest.param(replace(MADE, generation=Generation(1, 10)), id="another incarnation"),
    pytest.param(replace(MADE, layout="other"), id="another layout"),
    pytest.param(replace(MADE, run="other"), id="another run"),
    pytest.param(replace(MADE, world=4), id="another world"),
    pytest.param(replace(MADE, metadata="other"), id="another plan"),
    pytest.param(replace(MADE, kind="weights"), id="weights alone"),
]


@pytest.mark.parametrize("other", OTHER)
def test_what_does_not_belong_together_is_not_put_together(other: Made) -> None:
    assert not candidates([holding(PEER, 0, 1), holding(STORE, 2, made=other)])


def test_places_that_contradict_each_other_stand_for_themselves() -> None:
    near = holding(NODE, 2)
    one, other = holding(PEER, 0, 1, sums="a"), holding(STORE, 1, sums="b")

    assert [c.places for c in candidates([near, one, other])] == [(NODE, PEER)]
    longer = replace(other, files={file(1): Kept(9)})
    assert [c.places for c in candidates([longer, near, one])] == [(NODE, PEER)]
    both = [replace(one, ranks=MADE_RANKS), near, replace(other, ranks=MADE_RANKS)]
    assert [c.places for c in candidates(both)] == [(PEER, NODE), (NODE, STORE)]


MADE_RANKS = frozenset(range(3))


def test_the_newest_is_first_and_of_equals_the_whole_one() -> None:
    newer = replace(MADE, generation=Generation(2, 11))
    weights = replace(MADE, kind="weights")
    parts = [holding(STORE, 0, 1, 2, made=made) for made in (weights, MADE, newer)]

    assert [one.made for one in candidates(parts)] == [newer, MADE, weights]


def test_without_its_plan_nothing_can_be_loaded() -> None:
    assert not candidates([holding(STORE, 0, 1, 2, described=False)])


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Mapping[Made, Mapping[str, str]], list[Holding]]:
    """Some generations, for each file where it lies (one place at least), and all places' holdings."""
    places = ["s3://a", "evac://b", "node-c", "node-d"]
    holdings: list[Holding] = []
    lost: dict[Made, Mapping[str, str]] = {}
    for step in draw(st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True)):
        layout = draw(st.sampled_from(["x", "y"]))
        world = draw(st.integers(1, 4))
        made = Made(Generation(1, step), "full", "run", layout, world, layout)
        names = frozenset(map(file, range(world)))
        where = {name: draw(st.sets(st.sampled_from(places))) for name in sorted(names)}
        lost[made] = {name: "" for name, there in where.items() if not there}
        for place in places:
            files = {name: Kept(8) for name, there in where.items() if place in there}
            # A node has some of its files as copies: then the share is not its own.
            own = {name for name in files if not place.startswith("node") or draw(st.booleans())}
            ranks = frozenset(rank for rank in range(world) if file(rank) in own)
            if files:
                holdings.append(Holding(place, made, ranks, files, True, names))
    return lost, draw(st.permutations(holdings))


@given(jobs())
def test_whole_is_what_has_every_file_somewhere(
    job: tuple[Mapping[Made, Mapping[str, str]], list[Holding]],
) -> None:
    lost, holdings = job
    found = candidates(holdings)

    assert {one.made for one in found} == {made for made, files in lost.items() if not files}
    assert [one.generation for one in found] == sorted((o.generation for o in found), reverse=True)
    for one in found:
        # Never of two makes, and nobody who has a part of it is left out.
        assert one.holdings == tuple(h for h in holdings if h.made == one.made)
        assert whole(one.holdings)


@given(jobs())
def test_strangers_change_nothing(
    job: tuple[Mapping[Made, Mapping[str, str]], list[Holding]],
) -> None:
    _, holdings = job
    strangers = [replace(one, made=replace(one.made, run="stranger")) for one in holdings]
    found = [c for c in candidates([*holdings, *strangers]) if c.made.run == "run"]

    assert found == candidates(holdings)
