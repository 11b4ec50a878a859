import json
import os
import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load as load_checkpoint

from evac.errors import ConfigError, GenerationError
from evac.generation import MARKER
from evac.manifest import Manifest
from evac.torch import Checkpointer
from evac.torch.own_slots import KEEP
from tests.handlers.torch import ranks, scenes
from tests.handlers.torch.training import Run, digest, wait_committed


def save(store: str, steps: int) -> Run:
    """Train and commit *steps* generations on one rank."""
    run = Run()
    with run.saver(store=store) as saver:
        for step in range(1, steps + 1):
            run.train()
            assert saver.step(step), saver.stats
            wait_committed(store, step)
    return run


def folder(store: str, step: int) -> Path:
    (found,) = Path(store.removeprefix("file://")).glob(f"*/run/step-{step}.*")
    return found


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_all_of_the_state_comes_back(store: str) -> None:
    saved = save(store, 2)
    then, losses = saved.digest(), [saved.train() for _ in range(3)]
    run = Run()
    run.train()
    assert run.saver(store=store).restore() == 2
    assert run.digest() == then
    assert [run.train() for _ in range(3)] == losses


def test_restoring_into_a_run_that_has_trained_already_gives_the_same(store: str) -> None:
    then = save(store, 2).digest()
    run = Run(seed=99)
    for _ in range(4):
        run.train()
    assert run.saver(store=store).restore() == 2
    assert run.digest() == then


def test_a_resumed_run_is_a_later_incarnation_and_its_steps_win(store: str) -> None:
    save(store, 3)
    run = Run()
    with run.saver(store=store) as saver:
        saver.restore()
        run.train()
        assert saver.step(2)
    again = Run().saver(store=store)
    assert again.restore() == 2
    assert folder(store, 3).name == "step-3.1"


def test_nothing_there_is_none_with_a_warning(store: str, caplog: pytest.LogCaptureFixture) -> None:
    assert Run().saver(store=store).restore() is None
    assert "starting at step 0" in caplog.text


def corrupt_body(generation: Path) -> None:
    flip(generation / "__0_0.distcp")


def torn_manifest(generation: Path) -> None:
    manifest = generation / "__0.manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-20])


def without_manifest(generation: Path) -> None:
    os.unlink(generation / "__0.manifest.json")
    os.unlink(generation / "weights/__0.manifest.json")


def short_body(generation: Path) -> None:
    os.truncate(generation / "__0_0.distcp", 4096)


def other_metadata(generation: Path) -> None:
    flip(generation / ".metadata")


@pytest.mark.parametrize(
    "damage", [corrupt_body, torn_manifest, without_manifest, short_body, other_metadata]
)
def test_a_damaged_newest_generation_is_walked_back_from(
    store: str, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    save(store, 2)
    then = Run()
    then.train()
    damage(folder(store, 2))
    run = Run(seed=99)
    assert run.saver(store=store).restore() == 1
    assert digest(run.model.state_dict()) == digest(then.model.state_dict())
    if damage is corrupt_body:
        assert "step-2.1/__0_0.distcp: CRC-32C differs" in caplog.text


def test_a_generation_that_lacks_only_its_last_file_is_finished(store: str) -> None:
    save(store, 2)
    newest = folder(store, 2)
    metadata = (newest / ".metadata").read_bytes()
    manifest = Manifest.decode((newest / "__0.manifest.json").read_bytes(), where="test")
    (newest / f".metadata-{manifest.metadata_sha256}.pending").write_bytes(metadata)
    (newest / ".metadata").unlink()
    assert Run().saver(store=store).restore() == 2
    assert (newest / ".metadata").read_bytes() == metadata


def test_every_generation_damaged_is_an_error_not_step_0(store: str) -> None:
    save(store, 2)
    for step in (1, 2):
        corrupt_body(folder(store, step))
    with pytest.raises(GenerationError, match="nothing usable"):
        Run().saver(store=store).restore()


def test_a_marker_without_generations_is_an_error_not_step_0(store: str) -> None:
    save(store, 1)
    torn_manifest(folder(store, 1))
    assert (folder(store, 1).parent / MARKER).exists()
    with pytest.raises(GenerationError, match="was complete once"):
        Run().saver(store=store).restore()


def test_foreign_files_in_the_jobs_place_are_an_error_not_step_0(store: str) -> None:
    save(store, 1)
    place = folder(store, 1).parent
    for path in sorted(place.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (place / "model.pt").write_bytes(b"x")
    with pytest.raises(GenerationError, match=r"not evac's: .*model\.pt"):
        Run().saver(store=store).restore()


def test_a_store_that_cannot_be_read_is_an_error_not_step_0(store: str) -> None:
    save(store, 1)
    root = Path(store.removeprefix("file://"))
    root.rename(f"{root}.away")
    root.write_text("")
    with pytest.raises(GenerationError, match="nothing usable"):
        Run().saver(store=store).restore()


def test_a_torn_first_generation_is_step_0_with_a_warning(
    store: str, caplog: pytest.LogCaptureFixture
) -> None:
    save(store, 1)
    without_manifest(folder(store, 1))
    (folder(store, 1).parent / MARKER).unlink()
    assert Run().saver(store=store).restore() is None
    assert "torn: step 1" in caplog.text


def test_weights_alone_are_never_taken_for_a_whole_generation(store: str) -> None:
    save(store, 2)
    leave_only_weights(store, 2)
    assert Run().saver(store=store).restore() == 1


def leave_only_weights(store: str, step: int) -> None:
    """As a flush that had time for no more."""
    for path in folder(store, step).iterdir():
        if path.is_file():
            path.unlink()


@pytest.mark.parametrize("older", [True, False])
def test_weights_alone_are_restored_by_whoever_asks_for_them(
    store: str, caplog: pytest.LogCaptureFixture, older: bool
) -> None:
    run = save(store, 2)
    leave_only_weights(store, 2)
    if not older:
        shutil.rmtree(folder(store, 1))
        (folder(store, 2).parent / MARKER).unlink()
        with pytest.raises(GenerationError, match="allow_weights_only=True"):
            Run().saver(store=store).restore()
    again = Run(seed=99)
    optimizer = digest(again.optimizer.state_dict())

    assert again.saver(store=store).restore(allow_weights_only=True) == 2

    assert digest(again.model.state_dict()) == digest(run.model.state_dict())
    assert digest(again.optimizer.state_dict()) == optimizer
    assert (
        "weights only: optimizer, schedule, loader and random numbers start afresh" in caplog.text
    )


def test_a_whole_generation_goes_before_its_own_weights_and_newer_weights_before_it(
    store: str,
) -> None:
    then = save(store, 3).digest()
    run = Run(seed=99)
    assert run.saver(store=store).restore(allow_weights_only=True) == 3
    assert run.digest() == then
    leave_only_weights(store, 2)
    assert Run().saver(store=store).restore(allow_weights_only=True) == 3
    leave_only_weights(store, 3)
    assert Run().saver(store=store).restore(allow_weights_only=True) == 3
    assert Run().saver(store=store).restore() == 1


def test_stock_dcp_load_reads_the_weights_out_of_their_folder(store: str) -> None:
    run = save(store, 1)
    leave_only_weights(store, 1)
    with pytest.raises(GenerationError, match="allow_weights_only"):
        Run().saver(store=store).restore()  # completes them on the way
    there = folder(store, 1)
    tree = {"model": Run(seed=99).model.state_dict()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load_checkpoint(tree, checkpoint_id=there / "weights")
        with pytest.raises(CheckpointException):
            load_checkpoint(tree, checkpoint_id=there)

    assert digest(tree["model"]) == digest(run.model.state_dict())


def test_another_model_is_refused_by_name_and_left_as_it_was(store: str) -> None:
    save(store, 1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32))
    optimizer = torch.optim.AdamW(model.parameters())
    before = digest(model.state_dict())
    saver = Checkpointer(model=model, optimizer=optimizer, job="run", store=store, every=1)
    with pytest.raises(GenerationError, match=r"only the checkpoint has 3\.bias"):
        saver.restore()
    assert digest(model.state_dict()) == before


def test_a_size_that_differs_is_refused_by_name(store: str) -> None:
    save(store, 1)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.Dropout(0.3), torch.nn.ReLU(), torch.nn.Linear(16, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters())
    saver = Checkpointer(model=model, optimizer=optimizer, job="run", store=store, every=1)
    with pytest.raises(GenerationError, match=r"Size mismatch.*model\.0\.weight"):
        saver.restore()


def test_a_store_of_another_kind_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="ftp://bucket"):
        Run().saver(store="ftp://bucket")


def test_it_may_be_called_where_a_loop_runs(store: str) -> None:
    import asyncio

    save(store, 1)

    async def notebook() -> int | None:
        return Run().saver(store=store).restore()

    assert asyncio.run(notebook()) == 1


def test_what_the_checkpoint_lacks_starts_afresh_and_is_named(
    store: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run()
    run.train()
    with Checkpointer(
        model=run.model, optimizer=run.optimizer, job="run", store=store, every=1
    ) as saver:
        saver.step(1)
    scaler = torch.amp.GradScaler("cpu")
    assert Run().saver(store=store, extra={"scaler": scaler}).restore() == 1
    assert "rank 0 starts afresh with the LR schedule and extra['scaler'] and the data loader" in (
        caplog.text
    )


def test_two_ranks_restore_their_own_numbers_and_one_rank_resharded(
    store: str, tmp_path: Path
) -> None:
    out, again, single = (str(tmp_path / name) for name in ("saved", "again", "single"))
    ranks.run(2, scenes.save, store, 2, out)
    mine, theirs = (Path(f"{out}.{r}").read_text().split("\n") for r in (0, 1))
    assert mine[0] == theirs[0]
    assert all(a != b for a, b in zip(mine[1:], theirs[1:], strict=True))

    ranks.run(2, scenes.restore, store, 2, again, out)
    for rank in (0, 1):
        assert "afresh" not in Path(f"{again}.{rank}").read_text()

    state = (random.getstate(), torch.get_rng_state())
    scenes.restore(0, store, 2, single, out)
    random.setstate(state[0])
    torch.set_rng_state(state[1])
    assert "random numbers of 1 are not used" in Path(f"{single}.0").read_text()
    scenes.plain_load(0, str(folder(store, 2)), out)


def test_one_rank_is_restored_on_two_and_the_new_one_says_what_is_afresh(
    store: str, tmp_path: Path
) -> None:
    out, again = str(tmp_path / "saved"), str(tmp_path / "again")
    scenes.save(0, store, 2, out, False)
    ranks.run(2, scenes.restore, store, 2, again, out)
    assert "afresh" not in Path(f"{again}.0").read_text()
    assert "its place is one of 1 ranks and 2 are here" in Path(f"{again}.0").read_text()
    assert "rank 1 starts afresh with its random numbers" in Path(f"{again}.1").read_text()
    ranks.run(2, scenes.plain_load, str(folder(store, 2)), out)


def test_all_ranks_fail_alike(store: str) -> None:
    save(store, 1)
    corrupt_body(folder(store, 1))
    ranks.run(2, scenes.fail_alike, store)


def test_a_rank_that_cannot_plan_holds_nobody_up(store: str) -> None:
    ranks.run(2, scenes.one_rank_not_ready, store)


def test_ranks_that_stage_faster_than_the_store_commit_the_same_generations(store: str) -> None:
    ranks.run(2, scenes.fast, store, 60)
    root = Path(store.removeprefix("file://"))
    whole = {path.parent.name for path in root.glob("*/run/step-*/.metadata")}
    assert "step-60.1" in whole
    assert len(whole) == KEEP
    for generation in root.glob("*/run/step-*"):
        names = {path.name for path in generation.iterdir()}
        assert {"__0.manifest.json", "__1.manifest.json"} <= names, generation
    assert json.loads(next(root.glob(f"*/run/{MARKER}")).read_text())["newest"] == "step-60.1"


@pytest.mark.parametrize("world", [2, 3])
def test_a_model_in_shards_is_restored_at_any_world_size(
    store: str, tmp_path: Path, world: int
) -> None:
    out = str(tmp_path / "full")
    ranks.run(2, scenes.sharded, store, out, False)
    ranks.run(world, scenes.sharded, store, out, True)
