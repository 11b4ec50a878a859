"""What goes when there is no room."""

from hypothesis import given
from hypothesis import strategies as st

from evac.generation import Generation
from evacd.peer.room import Piece, expired, give_way, groups, make_room, older, place

KEYS = st.builds(
    lambda job, step, incarnation, name: f"me/{job}/step-{step}.{incarnation}/{name}",
    st.sampled_from("ab"),
    st.integers(0, 3),
    st.integers(1, 2),
    st.sampled_from(["x.bin", "y.bin"]),
) | st.sampled_from(["me/a/evac-job.json", "me/a/incarnation-1.json", "probe/x"])
PIECES = st.dictionaries(KEYS, st.tuples(st.integers(1, 100), st.floats(0, 100)), max_size=20).map(
    lambda held: [Piece(key, nbytes, at) for key, (nbytes, at) in held.items()]
)


def newest(pieces: list[Piece]) -> set[tuple[str, Generation]]:
    found: dict[str, Generation] = {}
    for piece in pieces:
        prefix, generation = place(piece.key)
        if generation is not None:
            found[prefix] = max(generation, found.get(prefix, generation))
    return set(found.items())


@given(PIECES, st.integers(-10, 2000))
def test_room_is_made_whole_or_not_at_all_and_never_of_a_jobs_newest(
    pieces: list[Piece], need: int
) -> None:
    gone = make_room(pieces, need)

    nbytes = {piece.key: piece.nbytes for piece in pieces}
    spare = [p for p in pieces if (at := place(p.key))[1] is not None and at not in newest(pieces)]
    if gone is None:
        assert sum(piece.nbytes for piece in spare) < need
        return
    assert set(gone) <= {piece.key for piece in spare}
    assert sum(nbytes[key] for key in gone) >= need


@given(PIECES, st.integers(1, 2000))
def test_who_needs_the_node_itself_gets_it_all_if_it_must(pieces: list[Piece], need: int) -> None:
    gone = give_way(pieces, need)

    nbytes = {piece.key: piece.nbytes for piece in pieces}
    assert sum(nbytes[key] for key in gone) >= min(need, sum(nbytes.values()))
    if any(place(key) in newest(pieces) for key in gone):
        older_ones = {
            p.key
            for p in pieces
            if (at := place(p.key))[1] is not None and at not in newest(pieces)
        }
        assert older_ones <= set(gone)


@given(PIECES)
def test_a_generation_goes_as_a_whole(pieces: list[Piece]) -> None:
    gone = set(make_room(pieces, 1) or ())

    for group in groups(pieces):
        keys = {piece.key for piece in group.pieces}
        assert not keys & gone or keys <= gone


def test_a_generation_is_as_young_as_what_came_last() -> None:
    old, new = Piece("j/step-1.1/a.bin", 1, 0.0), Piece("j/step-1.1/b.bin", 1, 50.0)

    assert expired([old, new], now=60.0, keep_seconds=20.0) == ()
    assert expired([old, new], now=70.0, keep_seconds=20.0) == (old.key, new.key)


def test_an_older_incarnations_late_step_is_older() -> None:
    pieces = [Piece("j/step-9.1/a.bin", 1, 9.0), Piece("j/step-2.2/a.bin", 1, 0.0)]

    assert older(pieces, "j", Generation(2, 2)) == ("j/step-9.1/a.bin",)
    assert make_room(pieces, 1) == ("j/step-9.1/a.bin",)
    assert older(pieces, "other", Generation(2, 2)) == ()
