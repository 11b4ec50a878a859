"""For Hugging Face's `Trainer`: stage at its steps, and resume by its own means.

::

    callback = EvacCallback(job="llama-ft")
    trainer = Trainer(..., callbacks=[callback])
    trainer.train(resume_from_checkpoint=callback.checkpoint(trainer))

`Trainer.train` takes where it goes on from a directory: it counts epochs and skips data by the
`trainer_state.json` there, before any callback is called, and puts the random numbers of
`rng_state.pth` back right before the first step (transformers 5.24, `_init_training_state`,
`_run_epoch`). So model and optimizer are restored in place, checked and from the nearest memory,
and a small directory in that format tells the trainer the rest. It wants weights there as well;
they are those that were just restored. Turned down: a whole checkpoint in its format, which
writes and reads all of the optimizer a second time.
"""

import json
import logging
import random
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_callback import ExportableState

from evac.errors import ConfigError, GenerationError
from evac.torch.checkpointer import Checkpointer
from evac.torch.rank_state import Stateful
from evac.torch.world import World

log = logging.getLogger("evac")


class EvacCallback(TrainerCallback):
    """Stages what a `Trainer` trains: model, optimizer, schedule, its own counters, every rank's RNG.

    Plain modules and DDP. Nothing is staged before `checkpoint` was called.

    Args:
        settings: Of `Checkpointer`: ``job``, ``store``, ``every``, ``priority``...
    """

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self._checkpointer: Checkpointer | None = None
        self._counters = _Counters()
        self._schedule = _Schedule()
        self._directory: Path | None = None

    @property
    def checkpointer(self) -> Checkpointer | None:
        """What stages; None before `checkpoint`."""
        return self._checkpointer

    def checkpoint(self, trainer: Trainer) -> str | None:
        """Restore the newest whole generation; call right before `trainer.train`, on every rank.

        Returns:
            What to give to `trainer.train(resume_from_checkpoint=...)`: None for a fresh start.

        Raises:
            GenerationError: See `Checkpointer.restore`.
            ConfigError: The trainer is one of FSDP or DeepSpeed, or sharded otherwise.
        """
        if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
            raise ConfigError("EvacCallback", "trainer", "one without FSDP and DeepSpeed")
        if self._checkpointer is not None:
            self._checkpointer.close()
        model = trainer.model
        if model is None:
            raise ConfigError("EvacCallback", "trainer", "one with a model")
        optimizer = _bare(trainer.create_optimizer())
        self._schedule = _Schedule(optimizer)
        self._counters = _Counters(trainer)
        extra: dict[str, Stateful] = {"trainer": self._counters}
        if (scaler := getattr(trainer.accelerator, "scaler", None)) is not None:
            extra["scaler"] = scaler
        self._checkpointer = Checkpointer(
            model=model,
            optimizer=optimizer,
            scheduler=self._schedule,
            loader=_Skipped(trainer, self._counters),
            elastic_loader=True,
            **{**self._settings, "extra": {**extra, **self._settings.get("extra", {})}},
        )
        if (step := self._checkpointer.restore()) is None:
            return None
        return str(self._write(trainer, model, step))

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """The schedule is made by now: put it where it was."""
        if self._checkpointer is None:
            log.warning(
                "nothing is staged: "
                "call trainer.train(resume_from_checkpoint=callback.checkpoint(trainer))"
            )
            return
        if state.global_step != self._counters.step:
            text = f"the trainer begins at step {state.global_step}"
            raise GenerationError(f"step {self._counters.step}", f"was restored, and {text}")
        self._schedule.bind(kwargs["lr_scheduler"])

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Stage, if it is due."""
        if self._checkpointer is None:
            return
        self._forget_directory()
        self._counters.now = state
        self._checkpointer.step(state.global_step)

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Commit what is under way; with a daemon, see `Checkpointer.close`."""
        self._forget_directory()
        if self._checkpointer is not None:
            self._checkpointer.close()
            self._checkpointer = None

    def _write(self, trainer: Trainer, model: torch.nn.Module, step: int) -> Path:
        """The directory, one for each node: its ranks see the same disk, or make their own."""
        world, args = World(), trainer.args

        def lead() -> tuple[str, Path | None]:
            first = args.local_process_index == 0
            return world.node, self._made(trainer, model, step) if first else None

        def fill() -> Path:
            near = [path for node, path in shared if node == world.node]
            where = next((path for path in near if path is not None and path.is_dir()), None)
            where = where or self._made(trainer, model, step)
            name = f"rng_state_{args.process_index}.pth" if args.world_size > 1 else "rng_state.pth"
            torch.save(_rng(), where / name)
            return where

        # A full disk under one rank is told by all: who were left to wait would wait for ever.
        shared = world.agree("resume", lead)
        return world.each("resume", fill)

    def _made(self, trainer: Trainer, model: torch.nn.Module, step: int) -> Path:
        out = Path(trainer.args.output_dir or ".")
        out.mkdir(parents=True, exist_ok=True)
        where = Path(tempfile.mkdtemp(prefix=f"evac-resume-{step}-", dir=out))
        self._directory = where
        trainer_state = json.dumps(self._counters.restored, indent=2, sort_keys=True)
        (where / "trainer_state.json").write_text(trainer_state)
        # Not `save_pretrained`, which writes on rank 0 alone.
        torch.save(model.state_dict(), where / "pytorch_model.bin")
        return where

    def _forget_directory(self) -> None:
        # After a step that all ranks have taken, none of them reads there any more.
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None


class _Counters:
    """The trainer's own state: step, epoch, history of the log, state of its callbacks."""

    def __init__(self, trainer: Trainer | None = None) -> None:
        self._trainer = trainer
        self.now: TrainerState | None = None
        self.restored: dict[str, Any] = {}

    @property
    def step(self) -> int:
        return int(self.restored.get("global_step", 0))

    def state_dict(self) -> dict[str, Any]:
        assert self.now is not None
        assert self._trainer is not None
        document = {**asdict(self.now), "stateful_callbacks": _of_callbacks(self._trainer)}
        # As the trainer's own file has it: nothing but what JSON can say.
        plain: dict[str, Any] = json.loads(json.dumps(document))
        return plain

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.restored = dict(state)


class _Schedule:
    """The LR schedule, which the trainer makes after the restore."""

    def __init__(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        self._optimizer = optimizer
        self._scheduler: Any = None
        self._waiting: Mapping[str, Any] | None = None
        self._rates: list[Any] = []

    def bind(self, scheduler: Any) -> None:
        """It is there; it has put the learning rates to those of step 0."""
        self._scheduler = scheduler
        if self._waiting is None or self._optimizer is None:
            return
        scheduler.load_state_dict(self._waiting)
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate
        self._waiting = None

    def state_dict(self) -> Any:
        return self._scheduler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        assert self._optimizer is not None
        self._waiting = state
        self._rates = [group["lr"] for group in self._optimizer.param_groups]


class _Skipped:
    """The data: the trainer finds its place by the step, whatever a step took before."""

    def __init__(self, trainer: Trainer, counters: _Counters) -> None:
        self._args = trainer.args
        self._counters = counters

    @property
    def unkept(self) -> str:
        """See `evac.torch.worker_state.unkept`."""
        return "the trainer starts new ones" if self._args.dataloader_num_workers else ""

    def state_dict(self) -> dict[str, int]:
        args = self._args
        ranks = args.world_size * args.gradient_accumulation_steps
        return {"samples": args.train_batch_size * ranks}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        now = self.state_dict()["samples"]
        if now == state["samples"] or self._args.process_index:
            return
        step = self._counters.step
        differ = step * abs(now - state["samples"])
        log.warning(
            "the trainer skips %d steps of %d samples for those of %d that were taken: %s samples %s",
            step,
            now,
            state["samples"],
            f"{differ:,}",
            "come again" if now < state["samples"] else "are passed over",
        )


def _bare(optimizer: Any) -> torch.optim.Optimizer:
    """Without accelerate's wrapper."""
    inner = getattr(optimizer, "optimizer", optimizer)
    assert isinstance(inner, torch.optim.Optimizer)
    return inner


def _of_callbacks(trainer: Trainer) -> dict[str, Any]:
    """As `Trainer._save_checkpoint` notes them."""
    found: dict[str, Any] = {}
    for one in [*trainer.callback_handler.callbacks, trainer.control]:
        if isinstance(one, ExportableState):
            name = type(one).__name__
            if isinstance(found.get(name), list):
                found[name].append(one.state())
            elif name in found:
                found[name] = [found[name], one.state()]
            else:
                found[name] = one.state()
    return found


def _rng() -> dict[str, Any]:
    """As `Trainer._save_rng_state` writes it; on a rank of several its own device alone."""
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "cpu": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        several = torch.distributed.is_available() and torch.distributed.is_initialized()
        state["cuda"] = torch.cuda.get_rng_state() if several else torch.cuda.get_rng_state_all()
    return state
