"""Lightning's Trainer, killed and resumed to the bit."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.handlers.torch.training import committed, digest, wait_committed
from tests.integration.examples.runs import LIMIT, end_here, process, proven, report

EPOCHS, BATCHES = 3, 6


def fit(killed: int, rank: int, world: int, folder: str, kill_after: int) -> None:
    torch.set_num_threads(1)
    from lightning.pytorch import Callback

    from integration.examples import lightning_fit

    store = f"file://{folder}/store"
    losses: dict[int, str] = {}

    class Watch(Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *_: Any) -> None:
            losses[trainer.global_step] = digest(outputs["loss"])
            if trainer.global_step == kill_after:
                wait_committed(store, kill_after, job="example-lightning")
                end_here()

    trainer = lightning_fit.fit(folder, EPOCHS, Watch(), store=store, every=killed)
    state = [trainer.lightning_module.state_dict(), trainer.optimizers[0].state_dict()]
    schedule = trainer.lr_scheduler_configs[0].scheduler.state_dict()
    report(rank, folder, losses, digest([*state, schedule]))


@pytest.mark.parametrize("killed", [BATCHES, BATCHES + 2])
def test_a_killed_and_resumed_fit_equals_an_uninterrupted_one_to_the_bit(
    tmp_path: Path, killed: int
) -> None:
    pytest.importorskip("lightning")

    proven(partial(fit, killed), tmp_path, killed=killed)


def fail(folder: str) -> None:
    torch.set_num_threads(1)
    from lightning.pytorch import Callback

    from integration.examples import lightning_fit

    class Fails(Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == BATCHES - 1:
                raise KeyError("in the middle of an epoch")

    store = f"file://{folder}/store"
    with pytest.raises(KeyError, match="in the middle"):
        lightning_fit.fit(folder, EPOCHS, Fails(), store=store, every=1)
    assert committed(store, BATCHES - 1, job="example-lightning")


def test_a_fit_that_fails_has_committed_what_was_under_way(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    fit = process(fail, str(tmp_path))
    fit.join(LIMIT)
    assert fit.exitcode == 0
