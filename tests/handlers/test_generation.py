"""Names that are checked before they become part of a path."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evac.generation import BODY, NAME, Generation, manifest_name

numbers = st.integers(0, 10**18 - 1)
generations = st.builds(Generation, incarnation=numbers, step=numbers)


@given(generations)
def test_a_folders_name_leads_back_to_its_generation(generation: Generation) -> None:
    assert Generation.parse(generation.directory) == generation


@given(st.one_of(st.text(max_size=30), st.from_regex(r"step-[0-9]+\.[0-9]+")))
def test_a_name_that_parses_is_the_only_name_of_its_generation(name: str) -> None:
    generation = Generation.parse(name)
    assert generation is None or generation.directory == name


@pytest.mark.parametrize(
    "name",
    [
        "", "step-1", "step-1.", "step-.1", "step-01.1", "step-1.01", "step--1.1", "step-1.1/",
        "step-1.1\n", " step-1.1", "Step-1.1", "step-1.1.1", "step-\u0661.1", f"step-{'9' * 19}.1", "..",
    ],
)  # fmt: skip
def test_anything_else_is_no_generation(name: str) -> None:
    assert Generation.parse(name) is None


@given(generations, generations)
def test_a_newer_incarnation_wins_over_any_step(one: Generation, two: Generation) -> None:
    expected = (one.incarnation, one.step) < (two.incarnation, two.step)
    assert (one < two) is expected


@given(st.text(max_size=70))
def test_no_name_leaves_its_folder_or_hides(name: str) -> None:
    for pattern in (NAME, BODY):
        if pattern.fullmatch(name):
            assert "/" not in name
            assert "\0" not in name
            assert "\n" not in name
            assert not name.startswith(".")
            assert len(name) <= 80


@given(st.integers(0, 10**7 - 1))
def test_a_manifest_is_never_taken_for_a_body(rank: int) -> None:
    assert not BODY.fullmatch(manifest_name(rank))
    assert BODY.fullmatch(f"__{rank}_0.distcp")
