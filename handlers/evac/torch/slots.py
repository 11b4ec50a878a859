"""Where generations are staged: the seam between the checkpointer and who keeps the bytes."""

from typing import Protocol

from evac._memory import SlotMemory
from evac.segment import Header
from evac.torch.layout import Layout


class Slots(Protocol):
    """Memory for whole generations of one rank. One thread, the training loop's, calls it.

    Expected failures are answers with a reason, not exceptions.
    """

    @property
    def prefix(self) -> str:
        """Where the job's generations go in a store."""
        ...

    @property
    def stores(self) -> tuple[str, ...]:
        """URLs of the stores that generations go to, in order of preference."""
        ...

    @property
    def epoch(self) -> int:
        """Changes when slots must be reserved again: what was handed out is no longer ours."""
        ...

    def ready(self) -> str:
        """Why nothing can be staged here now; "" where it can."""
        ...

    def reserve(self, nbytes: int, layout: Layout, incarnation: int) -> str:
        """Ask for slots of *nbytes*; why not, or ""."""
        ...

    def acquire(self) -> SlotMemory | None:
        """A slot to write in, at once; None where none is free."""
        ...

    def staged(self, slot: SlotMemory, header: Header) -> None:
        """The slot, acquired before, holds the whole generation that *header* tells of."""
        ...

    def release(self, slot: SlotMemory) -> None:
        """Give an acquired slot back: its bytes are worth nothing."""
        ...

    def close(self) -> None:
        """The job is finished: wait for what is under way, give everything back."""
        ...
