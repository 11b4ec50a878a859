"""The ranks of this job as plain values: who am I, what do the others say.

Works without `torch.distributed` too: a world of one. Every method is a collective: all
ranks call it, in the same order.
"""

import logging
import pickle
import socket
from collections.abc import Callable
from typing import TypeVar, cast

import torch.distributed as dist

from evac.errors import GenerationError

T = TypeVar("T")
log = logging.getLogger("evac")


class World:
    """Rank and size, read once from the default process group.

    Args:
        node: The machine that this rank is on; by default the one that the kernel names.
    """

    def __init__(self, node: str = "") -> None:
        self.node = node or _node()
        self.distributed = dist.is_available() and dist.is_initialized()
        self.rank: int = dist.get_rank() if self.distributed else 0
        self.size: int = dist.get_world_size() if self.distributed else 1

    @classmethod
    def alone(cls) -> "World":
        """A world of one, whatever process groups there are: for what a rank does by itself."""
        made = cls.__new__(cls)
        made.node, made.distributed, made.rank, made.size = _node(), False, 0, 1
        return made

    def gather(self, mine: T) -> list[T]:
        """What every rank brought, by rank."""
        if not self.distributed:
            return [mine]
        found: list[T | None] = [None] * self.size
        dist.all_gather_object(found, mine)
        return cast("list[T]", found)

    def broadcast(self, value: T | None) -> T:
        """What rank 0 brought."""
        if not self.distributed:
            return cast("T", value)
        box: list[T | None] = [value]
        dist.broadcast_object_list(box, src=0)
        return cast("T", box[0])

    def agree(self, what: str, act: Callable[[], T]) -> list[T]:
        """Do *act* on every rank and share what came of it.

        Raises:
            GenerationError: On all ranks alike, where it failed on one of them, or where what came
                of it there cannot travel.
        """
        kept: list[T] = []
        outcome: tuple[bytes, str]
        try:
            kept.append(act())
            # Not in the collective: whoever fails in there leaves it, and the others wait.
            outcome = (pickle.dumps(kept[0]) if self.distributed else b"", "")
        except Exception as error:  # noqa: BLE001 - the others wait: the failure travels to them, and is raised below
            outcome = (b"", f"{type(error).__name__}: {error}")
        shared = self.gather(outcome)
        for rank, (_, failure) in enumerate(shared):
            if failure:
                raise GenerationError(what, f"rank {rank}: {failure}")
        return [pickle.loads(data) for data, _ in shared] if self.distributed else kept

    def each(self, what: str, act: Callable[[], T]) -> T:
        """Do *act* on every rank; what came of it on this one.

        Raises:
            GenerationError: On all ranks alike, where it failed on one of them.
        """
        kept: list[T] = []
        self.agree(what, lambda: kept.append(act()))
        return kept[0]

    def led(self, what: str, act: Callable[[], T]) -> T:
        """Do *act* on rank 0; what came of it there. Costs others no memory but its own.

        Raises:
            GenerationError: On all ranks alike, where it failed, or cannot travel.
        """
        if not self.distributed:
            return self.each(what, act)
        data = self.each(what, lambda: pickle.dumps(act()) if self.rank == 0 else b"")
        led: T = pickle.loads(self.broadcast(data))
        return led


def _node() -> str:
    """One name per machine, also where containers have host names of their own."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return socket.gethostname()
