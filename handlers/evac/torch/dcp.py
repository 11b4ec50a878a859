"""For `torch.distributed.checkpoint`: a writer that stages with evacd, and the reader of what it kept.

::

    writer = EvacWriter(job="llama-ft")
    dcp.save(state, checkpoint_id=f"step-{step}", storage_writer=writer)

    reader = writer.reader()
    if reader.find() is not None:
        dcp.load(state, storage_reader=reader)

`dcp.save` returns once the state is in the daemon's memory, from where it is saved when the node
goes, or trickles to the store; without a daemon it returns when the generation is whole in
*store*. Either way a generation has a directory of its own, and counts only when all of it is there.

DCP tells its coordinator alone how the whole is described (`finish`), and a slot carries that
description with it, for whoever is left. So while the ranks write they make it together, by the
plan that DCP has agreed on: `.metadata` then is the same in every slot, as it is under a
`Checkpointer`, and the judge of what is whole needs no second rule. Turned down: rank 0's slot
carrying it alone, with which every other slot would be worth nothing.
"""

import os
import time
from collections.abc import Mapping
from functools import partial
from types import TracebackType
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from evac._clock import monotonic
from evac._memory import Mapping as Anonymous
from evac._memory import SlotMemory
from evac.client import Client
from evac.commit import finish, put_shares, retain
from evac.errors import ConfigError, EvacError, GenerationError
from evac.generation import Generation
from evac.segment import Header
from evac.store import open_store
from evac.torch import blocking
from evac.torch.daemon_slots import DaemonSlots
from evac.torch.dcp_job import Connected, names_step, step_of
from evac.torch.dcp_plan import Plan
from evac.torch.dcp_reader import EvacReader
from evac.torch.identity import claim
from evac.torch.images import Images
from evac.torch.own_slots import KEEP, share

__all__ = ["EvacReader", "EvacWriter"]

# For an answer, where nothing else is waited for.
_ASK_SECONDS = 0.25
_PAUSE_SECONDS = 0.02


class EvacWriter(StorageWriter):
    """Give it to `dcp.save` or to `dcp.async_save` with threads. Made on all ranks, kept for the run.

    The step is the number at the end of ``checkpoint_id``, or `step` where none is given. The
    weights are what lies under the key ``model``: they can be saved alone, and handed over.

    Args:
        job: Its name, which a restart must repeat; see `evac.connect`.
        store: URL to commit to where no daemon is; else ``EVAC_STORE``.
        priority: Higher is saved first.
        client: To use in place of an own connection.
        slots: How many generations the daemon is asked to hold.
        patience: Seconds to wait for a free one.

    Attributes:
        step: Of the next save, where ``checkpoint_id`` does not name it.
        patience: As it was given.

    Raises:
        ValueError: An argument or a variable is wrong.
    """

    def __init__(
        self,
        job: str | None = None,
        *,
        store: str | None = None,
        priority: int | None = None,
        client: Client | None = None,
        slots: int = 3,
        patience: float = 60.0,
    ) -> None:
        self._all = Connected(job=job, store=store, priority=priority, client=client)
        self.patience = patience
        self._slots = DaemonSlots(self._all.client, slots=slots)
        self._plan = Plan(self._all.world)
        self._incarnation = 0
        self._reserved: tuple[str, int] | None = None
        self._images = Images()
        self._own: SlotMemory | None = None
        self._whole = True
        self.step: int | None = None

    def reader(self) -> "EvacReader":
        """Of the same job, over the same connection."""
        return EvacReader(connected=self._all)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """DCP begins a save."""
        if checkpoint_id is not None:
            self.step = step_of(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Refuse what this cannot do, on all ranks alike.

        Raises:
            ConfigError: A save without coordination, or of some ranks only; no step.
        """
        if not kwargs.get("use_collectives", True) or (self._all.world.rank == 0) != is_coordinator:
            raise ConfigError("dcp.save", "these arguments", "all ranks, with collectives")
        if self.step is None:
            raise ConfigError(
                "checkpoint_id", "none", "a name that ends in the step, like step-100"
            )

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """As it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """As they are."""
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Stage what this rank was given.

        Raises:
            GenerationError: On all ranks alike where one of them can stage nothing.
        """
        assert self.step is not None
        try:
            self._stage(plan, planner, self.step)
        finally:
            # What is saved may be a copy of its own, as large as the model.
            self._plan.let_go()
        results = [WriteResult(item.index, 0, None) for item in plan.items]
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def _stage(self, plan: SavePlan, planner: SavePlanner, step: int) -> None:
        self._plan.follow(plan, planner)
        connected = all(self._all.world.gather(self._all.client.connected))
        slot = self._acquire(connected)
        try:
            header = self._write(slot, step)
        except BaseException:
            if connected:
                self._slots.release(slot)
            raise
        if connected:
            self._slots.staged(slot, header)
        else:
            self._commit(slot, header)
        self._whole = connected

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """All ranks have written; what is not with the daemon must be whole by now.

        Raises:
            GenerationError: It is not.
        """
        step, self.step = self.step, None
        if self._whole or step is None:
            return
        generation = Generation(self._incarnation, step)
        store, prefix = open_store(self._all.store or ""), self._all.prefix
        if not blocking.run(lambda: finish(store, prefix, generation)):
            raise GenerationError(str(generation), "is not whole though all ranks have written it")
        blocking.run(lambda: retain(store, prefix, keep=KEEP))

    def storage_meta(self) -> None:
        """None."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it names a step."""
        return names_step(checkpoint_id)

    def close(self) -> None:
        """Training has finished; see `Checkpointer.close`."""
        self._images.clear()
        self._all.client.close()

    def __enter__(self) -> "EvacWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __getstate__(self) -> Mapping[str, Any]:
        raise ConfigError("async_save", "with processes", "with threads: slots are this process's")

    def _acquire(self, connected: bool) -> SlotMemory:
        """Memory for a generation, on all ranks or on none."""
        kept: list[SlotMemory] = []

        def reserve() -> int:
            if not connected and not self._all.store:
                reason = (
                    f"no evacd at {self._all.client.socket} on every rank's node, and no store="
                )
                raise GenerationError("dcp.save", reason)
            if not self._incarnation and self._all.world.rank == 0:
                self._incarnation = self._claim(connected)
            return self._incarnation

        self._incarnation = self._all.world.agree("dcp.save", reserve)[0]

        def acquire() -> None:
            kept.append(self._with_daemon() if connected else self._alone())

        try:
            self._all.world.agree("dcp.save", acquire)
        except GenerationError:
            if connected:
                for slot in kept:
                    self._slots.release(slot)
            raise
        return kept[0]

    def _claim(self, connected: bool) -> int:
        stores = self._all.stores if connected else tuple(filter(None, [self._all.store]))
        return claim(stores, self._all.prefix, self._all.identity, above=0)

    def _with_daemon(self) -> SlotMemory:
        until = monotonic() + self.patience
        while True:
            self._reserve()
            # One that is on its way is waited for in there.
            slot = self._all.client.acquire(max(_ASK_SECONDS, until - monotonic()))
            if slot is not None:
                return slot
            if monotonic() >= until:
                reason = self._all.client.last_refusal
                raise GenerationError("dcp.save", f"no slot within {self.patience:g} s: {reason}")
            # Of one that is being flushed the daemon does not tell when that has ended.
            time.sleep(_PAUSE_SECONDS)

    def _reserve(self) -> None:
        layout, tail = self._plan.layout, self._plan.tail
        reserved = (layout.name, self._slots.epoch)
        if self._reserved == reserved:
            return
        self._images.clear()
        if reason := self._slots.reserve(tail.slot_nbytes, layout, self._incarnation):
            raise GenerationError("dcp.save", reason)
        self._reserved = reserved

    def _alone(self) -> SlotMemory:
        nbytes = self._plan.tail.slot_nbytes
        if self._own is None or self._own.nbytes != nbytes:
            self._own = SlotMemory(0, 0, Anonymous(-1, nbytes))
        return self._own

    def _write(self, slot: SlotMemory, step: int) -> Header:
        layout, tail = self._plan.layout, self._plan.tail
        slot.begin(self._incarnation)
        self._images.write(slot, layout, tail, self._plan.tensors, self._plan.objects)
        header = tail.header(incarnation=self._incarnation, step=step)
        slot.complete(header)
        return header

    def _commit(self, slot: SlotMemory, header: Header) -> None:
        store = open_store(self._all.store or "")
        mine = share(store, self._all.identity, self._plan.layout, header, slot)
        try:
            blocking.run(partial(put_shares, self._all.prefix, [mine]))
        except* EvacError as group:
            raise blocking.first(group) from None
