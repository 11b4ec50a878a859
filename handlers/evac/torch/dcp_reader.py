"""What `dcp.load` is given: it reads the newest whole generation, and no byte unchecked."""

import os
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from evac.errors import GenerationError
from evac.generation import Generation
from evac.torch.dcp_finding import Finding, Picked
from evac.torch.dcp_job import Connected, names_step, step_of
from evac.torch.origins import Origins


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

        Call it on all ranks. A generation that a load has found damaged is passed over from then on.

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
        return self._picked.reader.metadata

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Nothing but to note that what was found is being loaded."""
        self._tried = True

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Read and check all that *plan* needs.

        Raises:
            Unsound: Some of it is not right: another load takes an older generation.
        """
        assert self._picked is not None
        with self._finding.noting(self._picked):
            return self._picked.reader.prepare_local_plan(plan)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """As they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Hand out what was read.

        Raises:
            Unsound: As `prepare_local_plan`, where an object turns out not to be one.
        """
        assert self._picked is not None
        try:
            with self._finding.noting(self._picked):
                return self._picked.reader.read_data(plan, planner)
        finally:
            self.origins = self._picked.reader.origins
            self._forget()
            self._wanted = None

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it names a step."""
        return names_step(checkpoint_id)

    def close(self) -> None:
        """Hang up."""
        self._forget()
        self._all.client.close()

    def _forget(self) -> None:
        if self._picked is not None:
            self._picked.reader.drop()
        self._picked, self._tried = None, False
        self._finding.close()
