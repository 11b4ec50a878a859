"""Lightning on two ranks, with statistics of their own and an optimizer for each half: to the bit."""

import multiprocessing
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from evac.errors import ConfigError
from tests.handlers.torch.drawing import noise, seed
from tests.handlers.torch.ranks import join
from tests.handlers.torch.training import digest, wait_committed
from tests.integration.examples.runs import end_here, proven, report

pytest.importorskip("lightning")

# Of Lightning, whose tip is to have workers, and which calls what torch has deprecated.
_QUIET = pytest.mark.filterwarnings(
    "ignore:.isinstance.treespec, LeafSpec:FutureWarning",
    "ignore:The 'train_dataloader' does not have many workers",
)

EPOCHS, BATCHES, KILLED = 2, 6, 8
# Of each batch: Lightning counts the steps of all optimizers.
STEPS = 2


class Augmented(torch.utils.data.TensorDataset):
    """In the loader's workers."""

    def __getitem__(self, place: int) -> tuple[torch.Tensor, ...]:
        found = super().__getitem__(place)  # type: ignore[no-untyped-call] # torch has no types here
        return tuple(one * noise() for one in found)


def fit(rank: int, world: int, folder: str, kill_after: int) -> None:
    torch.set_num_threads(1)
    # As torchrun would.
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), TORCHELASTIC_RUN_ID="lightning"
    )
    join(rank, world, f"{folder}/meet-{kill_after}")
    from lightning.pytorch import Callback, LightningModule, Trainer
    from torchdata.stateful_dataloader import StatefulDataLoader

    from evac.torch.lightning import EvacCallback

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.first = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.BatchNorm1d(32))
            self.last = torch.nn.Sequential(torch.nn.Dropout(0.3), torch.nn.Linear(32, 1))

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            both: Any = self.optimizers()
            loss = self.last(self.first(batch[0])).square().mean()
            for one in both:
                one.zero_grad()
            self.manual_backward(loss)
            for one in both:
                one.step()
            return loss

        def configure_optimizers(self) -> Any:
            fast = torch.optim.SGD(self.last.parameters(), lr=0.05, momentum=0.9)
            return [torch.optim.AdamW(self.first.parameters(), lr=0.05), fast]

    losses: dict[int, str] = {}
    store = f"file://{folder}/store"

    class Watch(Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *_: Any) -> None:
            batch = trainer.global_step // STEPS
            losses[batch] = digest(outputs["loss"])
            if batch == kill_after:
                wait_committed(store, trainer.global_step)
                end_here()

    torch.manual_seed(7)
    module = Module()
    data = torch.randn(4 * BATCHES, 8, generator=torch.Generator().manual_seed(rank))
    loader: Any = StatefulDataLoader(
        Augmented(data), batch_size=4, shuffle=True, num_workers=2, multiprocessing_context="fork"
    )
    seed(rank)
    trainer = Trainer(
        max_epochs=EPOCHS, accelerator="cpu", devices=world, strategy="ddp",
        default_root_dir=folder, logger=False, enable_checkpointing=False, barebones=False,
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
        callbacks=[EvacCallback(job="run", store=store, every=KILLED * STEPS), Watch()],
    )  # fmt: skip
    trainer.fit(module, loader)
    state = [module.state_dict(), *(one.state_dict() for one in trainer.optimizers)]
    report(rank, folder, losses, digest(state))


@pytest.mark.skipif(
    os.environ.get("EVAC_NIGHTLY") != "1", reason="takes a minute: EVAC_NIGHTLY=1 runs it"
)
def test_two_ranks_killed_and_resumed_equal_two_that_were_not(tmp_path: Path) -> None:
    proven(fit, tmp_path, killed=KILLED, world=2)


def test_a_strategy_with_a_form_of_its_own_is_refused_by_name() -> None:
    from lightning.pytorch import Trainer
    from lightning.pytorch.strategies import FSDPStrategy

    from evac.torch.lightning import EvacCallback

    trainer = cast("Trainer", SimpleNamespace(strategy=FSDPStrategy()))
    with pytest.raises(ConfigError, match="strategy FSDPStrategy: expected DDPStrategy"):
        EvacCallback(job="run").on_fit_start(trainer, cast("Any", None))


@_QUIET
def test_a_resumable_that_all_ranks_read_alike_is_refused_by_name() -> None:
    from lightning.pytorch import Trainer
    from torch.utils.data.distributed import DistributedSampler

    from evac.torch import Resumable
    from evac.torch.lightning import EvacCallback

    def reason(devices: int, sampler: Any = None, **settings: Any) -> str:
        """What is in the way; without an optimizer no fit goes further."""
        trainer = Trainer(
            accelerator="cpu", devices=devices, logger=False, enable_checkpointing=False, **settings
        )
        data = torch.utils.data.TensorDataset(torch.randn(8, 8))
        loader = torch.utils.data.DataLoader(data, sampler=sampler)
        trainer.fit_loop._data_source.instance = Resumable(loader)
        with pytest.raises(ConfigError) as refused:
            EvacCallback(job="run").on_fit_start(trainer, cast("Any", None))
        return str(refused.value)

    none = "EvacCallback: no optimizer: expected one or more"
    assert "a loader that 2 ranks read alike: expected a Distr" in reason(2, strategy="ddp")
    assert reason(2, strategy="ddp", use_distributed_sampler=False) == none
    assert reason(2, DistributedSampler(cast("Any", range(8)), 2, 0), strategy="ddp") == none
    assert reason(1) == none


@_QUIET
def test_a_fit_over_a_resumable_goes_on_to_the_bit(tmp_path: Path) -> None:
    from lightning.pytorch import Callback, Trainer

    from evac.torch import Resumable
    from evac.torch.lightning import EvacCallback
    from integration.examples.lightning_fit import Module

    def losses(store: str, steps: int) -> dict[int, str]:
        found: dict[int, str] = {}

        class Watch(Callback):
            def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *_: Any) -> None:
                found[trainer.global_step] = digest(outputs["loss"])

        data = torch.randn(24, 8, generator=torch.Generator().manual_seed(1))
        loader: Any = torch.utils.data.DataLoader(
            Augmented(data),
            batch_size=4,
            shuffle=True,
            num_workers=1,
            multiprocessing_context="fork",
        )
        seed(3)
        module = Module()
        trainer = Trainer(
            max_steps=steps, accelerator="cpu", devices=1, default_root_dir=tmp_path, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            callbacks=[EvacCallback(job="run", store=f"file://{tmp_path}/{store}", every=4), Watch()],
        )  # fmt: skip
        before = {*multiprocessing.active_children()}
        trainer.fit(module, Resumable(loader))
        # A trainer is in cycles, and with it the workers: they would outlive this test, and the garbage
        # collector waits 5 seconds for each.
        for worker in {*multiprocessing.active_children()} - before:
            worker.terminate()
            worker.join()
        return found

    whole = losses("whole", 8)
    first = losses("ended", 4)
    assert list(first) == [1, 2, 3, 4]
    rest = losses("ended", 8)
    assert {**first, **rest} == whole
    assert list(rest) == [5, 6, 7, 8]
