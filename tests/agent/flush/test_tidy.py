"""Tidying a store costs what there is to tidy, not what lies there; and gives way to an order."""

from hashlib import sha256
from pathlib import Path

from evac.commit import survey
from evac.commit.judge import State, pending_name
from evac.generation import METADATA, Generation
from evac.store import Store, open_store
from evac.store.metered import Metered, Observation
from evacd.flush.tidy import tidy
from tests.handlers.commit.made import METADATA_BYTES, whole


async def filled(store: Store, *prefixes: str) -> None:
    for prefix in prefixes:
        for step in (1, 2, 3):
            generation = Generation(1, step)
            for name, content in whole(generation, 4).items():
                await store.put(f"{prefix}/{generation.directory}/{name}", memoryview(content))


def watched(tmp_path: Path) -> tuple[Store, list[Observation]]:
    seen: list[Observation] = []
    store = open_store(f"file://{tmp_path}")
    return Metered(store, seen.append, clock=lambda: 0.0), seen


async def test_of_generations_that_are_whole_no_manifest_is_read(tmp_path: Path) -> None:
    store, seen = watched(tmp_path)
    await filled(store, "a/job", "b/job")
    seen.clear()

    tidied = await tidy(store, node="n")

    assert (tidied.finished, tidied.reason) == ((), "")
    assert not [one for one in seen if one.verb in ("get", "read")]


async def test_what_lacks_only_its_last_file_is_finished_beside_whole_ones(tmp_path: Path) -> None:
    store, _ = watched(tmp_path)
    await filled(store, "a/job")
    cut = "a/job/step-2.1"
    await store.delete(f"{cut}/{METADATA}")
    pending = pending_name(sha256(METADATA_BYTES).hexdigest())
    await store.put(f"{cut}/{pending}", memoryview(METADATA_BYTES))

    tidied = await tidy(store, node="n")

    assert tidied.finished == (("a/job", Generation(1, 2)),)
    assert {one.state for one in await survey(store, "a/job")} == {State.COMPLETE}


async def test_it_goes_no_further_once_the_link_is_wanted_for_an_order(tmp_path: Path) -> None:
    store, seen = watched(tmp_path)
    await filled(store, "a/job", "b/job")
    seen.clear()

    await tidy(store, node="n", stop=lambda: True)

    assert not [one for one in seen if one.verb == "list" and one.key in ("a/job", "b/job")]
