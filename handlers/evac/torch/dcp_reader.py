"""What `dcp.load` is given: it reads the newest whole generation, and no byte unchecked.

Each rank reads by itself while DCP plans, where it reaches all that it needs. Where only another node's memory
has some of it, the ranks hand that on (`evac.torch.gathering`), which is a collective. While DCP plans it would
hang where one rank's planner fails; so it comes after that, when DCP has told all ranks that all have planned.
That all ranks are in this load together is told by the coordinator, in the plans that it hands back: in a load with
`no_dist`, or over fewer ranks, nobody says so, and nobody waits for anybody.
"""

import os
from dataclasses import replace
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from evac.errors import GenerationError
from evac.generation import Generation
from evac.torch.damage import soundly
from evac.torch.dcp_finding import Finding, Picked
from evac.torch.dcp_job import Connected, names_step, step_of
from evac.torch.origins import Origins

# In a plan: all ranks have one of this load.
_TOGETHER = "evac: all ranks load together"


class EvacReader(StorageReader):
    """Give it to `dcp.load`: the newest whole generation, from the nearest memory, each byte checked.

    Where ``checkpoint_id`` is given, the number at its end says which step it must be.

    Args:
        job: As the writer's.
        store: As the writer's.
        allow_weights_only: Weights alone will do, where they are newer than all that is whole.
        connected: Of a writer.

    Attributes:
        generation: That was found last.
        origins: Where this rank has read what it loaded last.
    """

    def __init__(
        self,
        job: str | None = None,
        *,
        store: str | None = None,
        allow_weights_only: bool = False,
        connected: Connected | None = None,
    ) -> None:
        self._all = connected or Connected(job=job, store=store)
        self._finding = Finding(self._all, weights=allow_weights_only)
        self._wanted: int | None = None
        self._picked: Picked | None = None
        self._tried = False
        self.generation: Generation | None = None
        self.origins = Origins({})

    def find(self) -> int | None:
        """The step that `dcp.load` will load; None where this job has never saved anything.

        Call it on all ranks, and again where a load by some of them has failed. A generation that a load has found damaged is passed over from then on.

        Raises:
            GenerationError: There was one, and none is usable now; see `Checkpointer.restore`.
        """
        self._forget()
        self._picked = self._finding.pick(self._wanted)
        self.generation = self._picked.generation if self._picked else None
        return self.generation.step if self.generation else None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """DCP begins a load."""
        wanted = None if checkpoint_id is None else step_of(checkpoint_id)
        if wanted != self._wanted:
            self._forget()
        self._wanted = wanted

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """That of the generation; on all ranks alike.

        Raises:
            GenerationError: There is none.
        """
        if self._tried:
            # The load before this one has failed, on whichever rank.
            self._forget()
        if self._picked is None and self.find() is None:
            raise GenerationError(self._all.prefix, "nothing is saved that could be loaded")
        assert self._picked is not None
        # Here, and not later: all ranks have come as far as this, wherever one of them fails.
        self._tried = True
        return self._picked.reader.metadata

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Nothing: it is what `read_metadata` gave."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Read and check all that *plan* needs, where this rank reaches all of it.

        Raises:
            Unsound: Some of it is not right: another load takes an older generation.
        """
        assert self._picked is not None
        if self._picked.together:
            return plan
        with self._finding.noting(self._picked):
            return self._picked.reader.prepare_local_plan(plan)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """As they are, or with a word to all ranks that they load together."""
        if len(plans) != self._all.world.size:
            return plans
        return [replace(one, storage_data=_TOGETHER) for one in plans]

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Hand out what was read; where ranks are to hand it on to each other, read and check it first.

        Raises:
            Unsound: As `prepare_local_plan`, or where an object turns out not to be one.
            GenerationError: It takes all ranks, and not all of them are in this load.
        """
        assert self._picked is not None
        try:
            with self._finding.noting(self._picked):
                if self._picked.together:
                    self._read_together(self._picked, plan)
                return self._picked.reader.read_data(plan, planner)
        finally:
            self.origins = self._picked.reader.origins
            if plan.storage_data == _TOGETHER:
                self._forget()
                self._wanted = None
            else:
                # The other ranks have not loaded it: all of them look anew, or none does.
                self._picked.reader.drop()
                self._tried = False

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it names a step."""
        return names_step(checkpoint_id)

    def _read_together(self, picked: Picked, plan: LoadPlan) -> None:
        where = str(picked.generation)
        if plan.storage_data != _TOGETHER:
            reason = (
                "some of it is in other nodes' memory alone, from where the ranks hand it on: that takes "
                "all of them in one dcp.load, without no_dist"
            )
            raise GenerationError(where, reason)
        soundly(self._all.world, where, lambda: picked.reader.prepare_local_plan(plan))

    def close(self) -> None:
        """Hang up."""
        self._forget()
        self._all.client.close()

    def _forget(self) -> None:
        if self._picked is not None:
            self._picked.reader.drop()
        self._picked, self._tried = None, False
        self._finding.close()
