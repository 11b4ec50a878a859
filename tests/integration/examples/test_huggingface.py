"""Hugging Face's Trainer, killed and resumed to the bit."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.handlers.torch.training import digest, wait_committed
from tests.integration.examples.runs import end_here, proven, report

STEPS, KILLED = 16, 7  # 12 steps are an epoch


def train(rank: int, world: int, folder: str, kill_after: int) -> None:
    torch.set_num_threads(1)
    if world > 1:
        where = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
        # The ranks meet in a file; accelerate wants to see an address all the same.
        os.environ.update(where, MASTER_ADDR="127.0.0.1", MASTER_PORT="1", GLOO_SOCKET_IFNAME="lo")
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"file://{folder}/meet{kill_after}",
            rank=rank,
            world_size=world,
        )
    from transformers import TrainerCallback

    from integration.examples import huggingface

    store = f"file://{folder}/store"
    losses: dict[int, str] = {}
    seen: list[torch.Tensor] = []

    class Watch(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            kwargs["model"].register_forward_hook(
                lambda _module, _inputs, output: seen.append(output.loss.detach().clone())
            )

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            losses[state.global_step] = digest(seen)
            seen.clear()
            if state.global_step == kill_after:
                wait_committed(store, kill_after, job="example-hf")
                end_here()

    trainer = huggingface.train(f"{folder}/out", STEPS, Watch(), store=store, every=KILLED)
    assert trainer.model is not None
    assert trainer.optimizer is not None
    assert trainer.lr_scheduler is not None
    state = [trainer.model.state_dict(), trainer.optimizer.state_dict()]
    report(rank, folder, losses, digest([*state, trainer.lr_scheduler.state_dict()]))
    if world > 1:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("world", [1, 2])
def test_a_killed_and_resumed_trainer_equals_an_uninterrupted_one_to_the_bit(
    tmp_path: Path, world: int
) -> None:
    pytest.importorskip("transformers")

    proven(train, tmp_path, killed=KILLED, world=world)


@pytest.mark.parametrize(
    ("batch", "said"), [(2, "14 samples come again"), (8, "28 samples are passed over"), (4, "")]
)
def test_a_step_of_another_size_is_told_in_samples(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, batch: int, said: str
) -> None:
    """The trainer skips as many steps as were taken, of the size that they have now."""
    transformers = pytest.importorskip("transformers")
    from evac.torch.huggingface import _Counters, _Skipped

    def place(size: int) -> _Skipped:
        args = transformers.TrainingArguments(
            str(tmp_path), per_device_train_batch_size=size, use_cpu=True, report_to=[]
        )
        trainer = transformers.Trainer(model=torch.nn.Linear(1, 1), args=args)
        counters = _Counters(trainer)
        counters.load_state_dict({"global_step": 7})
        return _Skipped(trainer, counters)

    place(batch).load_state_dict(place(4).state_dict())
    assert said in caplog.text
    assert ("the trainer skips 7 steps" in caplog.text) is bool(said)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_the_trainers_workers_draw_is_named(workers: int) -> None:
    pytest.importorskip("transformers")
    from evac.torch.huggingface import _Counters, _Skipped
    from evac.torch.worker_state import unkept

    trainer: Any = SimpleNamespace(args=SimpleNamespace(dataloader_num_workers=workers), state=None)
    assert unkept(_Skipped(trainer, _Counters())) == ("the trainer starts new ones" * bool(workers))
