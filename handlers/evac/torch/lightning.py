"""For Lightning's `Trainer`: stage at its steps, and resume in place.

::

    trainer = Trainer(..., callbacks=[EvacCallback(job="llama-ft")])
    trainer.fit(module, loader)

No checkpoint path is passed: when `fit` begins, model and optimizer are there, and the loops have
not begun. Then the newest whole generation goes into them, and into the loops' own counters, which
Lightning takes up as it does from a file of its own (lightning 2.6, `_Loop.load_state_dict`).
"""

import logging
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy
from lightning.pytorch.utilities import CombinedLoader

from evac.errors import ConfigError
from evac.torch.checkpointer import Checkpointer
from evac.torch.lacking import undealt
from evac.torch.rank_state import Stateful, load_rng, read_rng
from evac.torch.worker_state import keep, misplaced, unkept

log = logging.getLogger("evac")


class EvacCallback(Callback):
    """Stages what a `Trainer` fits: module, optimizer, schedules, loops, callbacks, every rank's RNG.

    A data loader with ``state_dict`` (torchdata's ``StatefulDataLoader``, or `evac.torch.Resumable`) goes on at
    the next batch; of another one Lightning says that it does not. Into a ``Resumable`` Lightning puts no
    `DistributedSampler` on several devices: give its loader one, or ``use_distributed_sampler=False`` where each rank has
    its own data. What draws random numbers in the main process while
    a batch is loaded draws others for the first batch after a resume.

    Args:
        settings: Of `Checkpointer`: ``job``, ``store``, ``every``, ``priority``...
    """

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self._checkpointer: Checkpointer | None = None
        self._step = 0
        self._rng: dict[str, Any] | None = None

    @property
    def checkpointer(self) -> Checkpointer | None:
        """What stages; None outside of `fit`."""
        return self._checkpointer

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore.

        Raises:
            GenerationError: See `Checkpointer.restore`.
            ConfigError: There is no optimizer, the strategy keeps the state in a form of its own, or all
                ranks would train on the same batches.
        """
        if isinstance(trainer.strategy, DeepSpeedStrategy | FSDPStrategy):
            name = type(trainer.strategy).__name__
            expected = "DDPStrategy, or ModelParallelStrategy with fully_shard"
            raise ConfigError("EvacCallback", f"strategy {name}", expected)
        _refuse_undealt(trainer, _given(trainer))
        if not trainer.optimizers:
            raise ConfigError("EvacCallback", "no optimizer", "one or more")
        keep(*_given(trainer))
        loops = _Loops(trainer)
        extra: dict[str, Stateful] = {"loops": loops, "callbacks": _Callbacks(trainer, self)}
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        for number, one in enumerate(schedulers[1:], start=1):
            extra[f"scheduler{number}"] = one
        if (scaler := getattr(trainer.precision_plugin, "scaler", None)) is not None:
            extra["scaler"] = scaler
        self._checkpointer = Checkpointer(
            # With what the strategy has put around it: that has a state, too.
            model=trainer.strategy.model or pl_module,
            optimizer=trainer.optimizers,
            scheduler=schedulers[0] if schedulers else _Nothing(),
            loader=_Loader(loops),
            **{**self._settings, "extra": {**extra, **self._settings.get("extra", {})}},
        )
        restored = self._checkpointer.restore() is not None
        self._rng = read_rng() if restored else None
        self._step = trainer.global_step

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Where an epoch had ended, its loader is at its end: the next epoch begins here.

        Raises:
            ConfigError: All ranks would train on the same batches.
        """
        loop = trainer.fit_loop
        fetcher = loop._data_fetcher
        loaders = fetcher.combined_loader.flattened if fetcher else []
        _refuse_undealt(trainer, loaders)
        if trainer.is_global_zero and (reasons := {unkept(one) for one in loaders} - {""}):
            said = "; ".join(sorted(reasons))
            log.warning("checkpoints hold no random numbers inside the loader's workers: %s", said)
        if trainer.is_global_zero and (reasons := {misplaced(one) for one in loaders} - {""}):
            said = "; ".join(sorted(reasons))
            log.warning("from the second resume of an epoch on samples are missed: %s", said)
        if self._rng is None or not loop.epoch_loop.batch_progress.is_last_batch or not fetcher:
            return
        if any(isinstance(one, Stateful) for one in fetcher.combined_loader.flattened):
            next(fetcher, None)
        load_rng(self._rng)
        self._rng = None
        iter(fetcher)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Random numbers go on where they were, whatever the start has drawn."""
        if self._rng is not None:
            load_rng(self._rng)
            self._rng = None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Stage, if it is due; in between two halves of a step there is nothing to stage."""
        if self._checkpointer is not None and trainer.global_step != self._step:
            self._step = trainer.global_step
            self._checkpointer.step(self._step)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Commit what is under way; with a daemon, see `Checkpointer.close`."""
        if self._checkpointer is not None:
            self._checkpointer.close()
            self._checkpointer = None

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Commit what is under way, and wait for hung ranks no longer than a launcher does."""
        if self._checkpointer is not None:
            self._checkpointer.__exit__(type(exception), exception, exception.__traceback__)
            self._checkpointer = None


def _given(trainer: Trainer) -> Sequence[Any]:
    """The loaders that `fit` was given, which have no workers yet; none where a hook makes them."""
    source = trainer.fit_loop._data_source.instance
    if source is None or isinstance(source, LightningModule | LightningDataModule):
        return ()
    whole = source if isinstance(source, CombinedLoader) else CombinedLoader(source)
    flattened: Sequence[Any] = whole.flattened
    return flattened


def _refuse_undealt(trainer: Trainer, loaders: Sequence[Any]) -> None:
    """Lightning deals out what is a `DataLoader` only, and says nothing of what is none."""
    settings = getattr(trainer, "_accelerator_connector", None)
    if not getattr(settings, "use_distributed_sampler", False):
        return
    # Of the strategy: not all ranks read data of their own.
    ranks = (trainer.distributed_sampler_kwargs or {}).get("num_replicas", 1)
    if ranks > 1 and any(map(undealt, loaders)):
        expected = (
            "a DistributedSampler, which Lightning puts into no Resumable: Resumable(DataLoader(dataset, "
            "sampler=DistributedSampler(...))), or Trainer(use_distributed_sampler=False) where each rank has its own data"
        )
        raise ConfigError("EvacCallback", f"a loader that {ranks} ranks read alike", expected)


class _Loops:
    """How far each loop is; the data loader's own place is each rank's."""

    def __init__(self, trainer: Trainer) -> None:
        self.loop = trainer.fit_loop

    def state_dict(self) -> dict[str, Any]:
        state = self.loop.state_dict()
        own = {key: one for key, one in state["state_dict"].items() if key != "combined_loader"}
        return deepcopy({**state, "state_dict": own})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.loop.load_state_dict(dict(state))


class _Loader:
    def __init__(self, loops: _Loops) -> None:
        self._loop = loops.loop

    def state_dict(self) -> dict[str, Any]:
        return {"combined_loader": self._loop.on_save_checkpoint().get("combined_loader", [])}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._loop.on_load_checkpoint(dict(state))


class _Callbacks:
    """The other callbacks, as Lightning keeps them: by the key that each gives itself."""

    def __init__(self, trainer: Trainer, without: Callback) -> None:
        # Without a name for it in the open, Trainer.callbacks is where they are.
        self._trainer = trainer
        self._without = without

    def state_dict(self) -> dict[str, Any]:
        return {one.state_key: deepcopy(one.state_dict()) for one in self._others()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for one in self._others():
            if state.get(one.state_key):
                one.load_state_dict(deepcopy(state[one.state_key]))

    def _others(self) -> list[Callback]:
        callbacks: list[Callback] = self._trainer.callbacks  # type: ignore[attr-defined] # set by its connector
        return [one for one in callbacks if one is not self._without]


class _Nothing:
    """No schedule: none was asked for."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...
