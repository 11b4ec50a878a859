"""The verdict as a law: whole is whole, and nothing less or other ever is."""

import string
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evac.commit import GenerationStatus, State, expendable, judge
from evac.commit.judge import by_generation, is_ours, pending_name
from evac.generation import METADATA, Generation, manifest_name
from evac.store import Entry
from tests.handlers.commit.made import (
    METADATA_BYTES,
    WEIGHTS_METADATA_BYTES,
    looked_at,
    manifest,
    parted,
    whole,
    whole_parted,
)

GENERATION = Generation(incarnation=2, step=30)
OTHER = Generation(incarnation=2, step=20)
worlds = st.integers(1, 5)
names = st.one_of(
    st.text(string.ascii_letters + "._-", min_size=1, max_size=12),
    st.sampled_from(["__9_0.distcp", "__9.manifest.json", "weights.bin", ".metadata.tmp", "x"]),
)


def verdict(files: dict[str, bytes], generation: Generation = GENERATION) -> GenerationStatus:
    return judge(generation, *looked_at(files))


@given(world=worlds)
def test_a_whole_generation_is_complete(world: int) -> None:
    status = verdict(whole(GENERATION, world))

    assert (status.state, status.reason) == (State.COMPLETE, "")
    assert status.ranks == tuple(range(world))
    assert (status.world, status.kind) == (world, "full")


@given(data=st.data(), world=worlds)
def test_whatever_is_lacking_it_is_not_complete(data: st.DataObject, world: int) -> None:
    files = whole(GENERATION, world)
    lost = data.draw(st.sets(st.sampled_from(sorted(files)), min_size=1))

    status = verdict({name: b for name, b in files.items() if name not in lost})

    assert status.state is not State.COMPLETE
    assert status.reason


@given(data=st.data(), world=worlds)
def test_a_file_cut_short_anywhere_is_not_complete(data: st.DataObject, world: int) -> None:
    files = whole(GENERATION, world)
    name = data.draw(st.sampled_from(sorted(files)))
    cut = data.draw(st.integers(0, len(files[name]) - 1))

    status = verdict({**files, name: files[name][:cut]})

    assert status.state is not State.COMPLETE
    assert status.reason


@given(
    data=st.data(), world=worlds, foreign=st.dictionaries(names, st.binary(max_size=9), max_size=4)
)
def test_foreign_files_neither_complete_nor_spoil_it(
    data: st.DataObject, world: int, foreign: dict[str, bytes]
) -> None:
    files = whole(GENERATION, world)
    lost = data.draw(st.sets(st.sampled_from(sorted(files)), max_size=2))
    rest = {name: b for name, b in files.items() if name not in lost}
    foreign = {name: b for name, b in foreign.items() if name not in files}

    assert verdict(foreign | rest).state is verdict(rest).state


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("job", "other"),
        ("run", "run-2"),
        ("layout", "layout-2"),
        ("metadata_sha256", "0" * 64),
        ("metadata_nbytes", 5),
        ("kind", "weights"),
        ("files", manifest(GENERATION, 0, 2).files),
        ("generation", OTHER),
        ("rank", 0),
    ],
)
def test_parts_of_two_generations_are_mixed(field: str, value: Any) -> None:
    files = whole(GENERATION, 2)
    made = manifest(GENERATION, 1, 2, kind=value) if field == "kind" else manifest(GENERATION, 1, 2)
    files[manifest_name(1)] = replace(made, **{field: value}).encode()

    status = verdict(files)

    assert status.state is State.MIXED
    assert status.reason


@given(
    data=st.data(),
    worlds=st.tuples(worlds, worlds),
    layouts=st.tuples(*[st.text("ab", max_size=1)] * 2),
)
def test_a_mixture_is_complete_only_where_one_side_is(
    data: st.DataObject, worlds: tuple[int, int], layouts: tuple[str, str]
) -> None:
    one, two = (
        whole(GENERATION, world, layout=layout, run=f"run of {layout}")
        for world, layout in zip(worlds, layouts, strict=True)
    )
    taken = {
        name: data.draw(st.sampled_from([side[name] for side in (one, two) if name in side]))
        for name in sorted(one | two)
    }

    if verdict(taken).state is State.COMPLETE:
        assert any(side.items() <= taken.items() for side in (one, two))


def test_bytes_left_for_metadata_make_it_finishable() -> None:
    files = whole(GENERATION, 2)
    sha256 = manifest(GENERATION, 0, 2).metadata_sha256
    del files[METADATA]

    assert verdict(files).state is State.TORN
    assert verdict({**files, pending_name("0" * 64): METADATA_BYTES}).state is State.TORN
    assert verdict({**files, pending_name(sha256): b"short"}).state is State.TORN
    assert verdict({**files, pending_name(sha256): METADATA_BYTES}).state is State.FINISHABLE


def test_the_reason_names_who_is_missing() -> None:
    files = whole(GENERATION, 5)
    for rank in (1, 3):
        del files[manifest_name(rank)]

    assert verdict(files).reason == "no manifest of ranks 1, 3"


def weights_verdict(files: dict[str, bytes]) -> GenerationStatus:
    """Of the weights alone, as they lie in their folder."""
    inside = {n.removeprefix("weights/"): b for n, b in files.items() if n.startswith("weights/")}
    return judge(GENERATION, *looked_at(inside), "weights")


@given(data=st.data(), world=worlds)
def test_whole_and_weights_are_each_complete_by_their_own_files_alone(
    data: st.DataObject, world: int
) -> None:
    files = whole_parted(GENERATION, world)
    lost = data.draw(st.sets(st.sampled_from(sorted(files)), max_size=3))
    left = {name: b for name, b in files.items() if name not in lost}
    # A full manifest names the weights' files, and needs no more of their folder.
    of_whole = {n for n in files if n.endswith(".distcp") or not n.startswith("weights/")}
    of_weights = {n for n in files if n.startswith("weights/")}

    assert (verdict(left).state is State.COMPLETE) is not (lost & of_whole != set())
    assert (weights_verdict(left).state is State.COMPLETE) is not (lost & of_weights != set())
    assert weights_verdict(files).kind == "weights"


@given(world=worlds)
def test_weights_in_the_place_of_the_whole_or_of_another_job_are_mixed(world: int) -> None:
    files = whole_parted(GENERATION, world)
    inside = {n.removeprefix("weights/"): b for n, b in files.items() if n.startswith("weights/")}

    assert verdict(inside).state is State.MIXED
    assert weights_verdict({f"weights/{n}": b for n, b in files.items()}).state is State.MIXED
    for rank in range(world):
        other = parted(GENERATION, rank, world, run="zombie").of_weights(WEIGHTS_METADATA_BYTES)
        spoiled = {**files, f"weights/{manifest_name(rank)}": other.encode()}
        assert weights_verdict(spoiled).state is (State.COMPLETE if world == 1 else State.MIXED)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), names), max_size=20))
def test_a_listing_is_sorted_into_generations_newest_first(
    found: list[tuple[int, int, str]],
) -> None:
    entries = [Entry(f"p/step-{step}.{k}/{name}", 1) for k, step, name in found]
    other = [Entry(f"p/{name}", 1) for name in ("evac-job.json", "step-x.1/a", "step-1.1/deep/a")]

    grouped = by_generation("p", [*entries, *other])

    assert list(grouped) == sorted({Generation(k, step) for k, step, _ in found}, reverse=True)
    assert {(g.incarnation, g.step, name) for g, files in grouped.items() for name in files} == set(
        found
    )


@given(world=worlds)
def test_every_file_of_a_generation_has_a_name_of_ours(world: int) -> None:
    assert all(map(is_ours, whole(GENERATION, world)))
    assert all(map(is_ours, whole_parted(GENERATION, world)))
    assert not any(map(is_ours, ("weights/weights/x.bin", "weights/notes.txt", "deep/x.bin")))
    assert not any(map(is_ours, ("model.safetensors", ".metadata.tmp", "__0.manifest.json.bak")))


statuses = st.lists(
    st.builds(
        GenerationStatus,
        generation=st.builds(Generation, incarnation=st.integers(1, 3), step=st.integers(0, 30)),
        state=st.sampled_from(State),
        kind=st.sampled_from(["full", "full", "weights"]),
        world=st.just(1),
        ranks=st.just((0,)),
        nbytes=st.just(1),
        reason=st.just(""),
    ),
    unique_by=lambda status: status.generation,
    max_size=12,
)


@given(found=statuses, keep=st.integers(1, 4))
def test_retention_keeps_the_newest_complete_ones_and_all_in_flight(
    found: list[GenerationStatus], keep: int
) -> None:
    doomed = set(expendable(found, keep=keep))
    whole = sorted(s.generation for s in found if s.state is State.COMPLETE and s.kind == "full")

    assert doomed <= {s.generation for s in found}
    assert not doomed & set(whole[-keep:])
    newer = {s.generation for s in found if not whole or s.generation > whole[-1]}
    assert not doomed & {s.generation for s in found if s.state is State.FINISHABLE} & newer
    # Of the last start, and newer than the newest complete one: perhaps still on its way.
    last = max((generation.incarnation for generation in newer), default=0)
    assert all(generation.incarnation < last for generation in doomed & newer)
    # So many at least stay of what has never become whole.
    assert len(newer - doomed) >= min(keep, len(newer))
    if whole:
        assert doomed >= {s.generation for s in found if s.generation < whole[-1]} - set(
            whole[-keep:]
        )


def test_where_nothing_ever_becomes_whole_an_earlier_starts_torn_ones_do_not_pile_up() -> None:
    def torn(incarnation: int, step: int) -> GenerationStatus:
        return judge(Generation(incarnation, step), {"__0_0.distcp": 4}, {})

    found = [torn(1, step) for step in range(6)] + [torn(2, 7), torn(2, 8)]

    assert expendable(found, keep=3) == tuple(Generation(1, step) for step in range(5))


@given(found=statuses, keep=st.integers(1, 4))
def test_retention_finds_nothing_more_to_do_after_itself(
    found: list[GenerationStatus], keep: int
) -> None:
    doomed = set(expendable(found, keep=keep))
    left = [s for s in found if s.generation not in doomed]

    assert expendable(left, keep=keep) == ()


@pytest.mark.parametrize("keep", [0, -1])
def test_retention_that_would_keep_nothing_is_refused(keep: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        expendable([], keep=keep)
