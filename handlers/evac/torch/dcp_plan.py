"""What DCP has planned, as a layout: made once, and again only when the plan has become another."""

import io
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType

from evac.errors import ConfigError
from evac.generation import WEIGHTS
from evac.manifest import REST
from evac.torch.image import Tail, tail
from evac.torch.layout import MOST_ZEROS, BytesItem, Layout, of_model, place
from evac.torch.sharing import Batch
from evac.torch.world import World


class Plan:
    """One rank's part of what is saved, save after save.

    Attributes:
        layout: Where everything lies.
        tail: What goes behind it.
        tensors: Of this save, in the layout's order.
        objects: Likewise.
    """

    layout: Layout
    tail: Tail

    def __init__(self, world: World) -> None:
        self._world = world
        self._metadata: Metadata | None = None
        self._weights: frozenset[str] = frozenset()
        self._planned: list[WriteItem] | None = None
        self.tensors: list[torch.Tensor] = []
        self.objects: list[tuple[BytesItem, bytes]] = []

    def follow(self, plan: SavePlan, planner: SavePlanner) -> None:
        """Take this save's tensors and objects; lay them out where they are others. Collective.

        Raises:
            GenerationError: On all ranks alike.
        """
        metadata: list[Metadata | None] = []

        def look() -> bool:
            metadata.append(self._described(planner))
            return self._fits(plan, planner, metadata[0])

        if not all(self._world.agree("plan", look)):
            described = metadata[0]
            of = self._world.led("plan", lambda: of_model(described) if described else frozenset())
            mine = self._world.each("plan", lambda: _batches(self._world.rank, plan, of))
            layout = place(self._world, mine, planner, described)
            self.tail = self._world.each("plan", lambda: tail(layout))
            self.layout = layout
            self._metadata, self._weights, self._planned = metadata[0], of, plan.items
            self._world.agree("plan", lambda: self._read(plan, planner))

    def let_go(self) -> None:
        """It is written: hold nothing of this save."""
        self.tensors, self.objects = [], []

    def _described(self, planner: SavePlanner) -> Metadata | None:
        if self._world.rank != 0:
            return None
        metadata = getattr(planner, "metadata", None)
        if not isinstance(metadata, Metadata):
            raise ConfigError(
                "planner", type(planner).__name__, "one with `metadata`, as DCP's own"
            )
        return metadata

    def _fits(self, plan: SavePlan, planner: SavePlanner, metadata: Metadata | None) -> bool:
        if self._planned != plan.items or not _same(self._metadata, metadata):
            return False
        self._read(plan, planner)
        return all(0 <= one.nbytes - len(data) <= MOST_ZEROS for one, data in self.objects)

    def _read(self, plan: SavePlan, planner: SavePlanner) -> None:
        self.tensors, self.objects = [], []
        places = iter(self.layout.objects)
        for batch in _batches(self._world.rank, plan, self._weights):
            for item in batch.items:
                value: Any = planner.resolve_data(item)
                if item.type == WriteItemType.BYTE_IO:
                    assert isinstance(value, io.BytesIO)
                    self.objects.append((next(places), value.getvalue()))
                else:
                    self.tensors.append(value.detach())


def of_group(group: dist.ProcessGroup | None) -> World:
    """The world, spoken to over *group*."""
    return World() if group is None else _Group(group)


class _Group(World):
    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self._group = group

    def gather(self, mine: Any) -> list[Any]:
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, mine, group=self._group)
        return found

    def broadcast(self, value: Any) -> Any:
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._group)
        return box[0]


def _batches(rank: int, plan: SavePlan, weights: frozenset[str]) -> list[Batch]:
    """Weights first; of what DCP gives to one rank alone no other one has a copy."""
    name = f"__{rank}_0.distcp"
    parts = (
        (f"{WEIGHTS}/{name}", WEIGHTS, tuple(i for i in plan.items if i.index.fqn in weights)),
        (name, REST, tuple(i for i in plan.items if i.index.fqn not in weights)),
    )
    return [Batch(name, kind, False, items) for name, kind, items in parts if items]


def _same(before: Metadata | None, now: Metadata | None) -> bool:
    if before is None or now is None:
        return before is now
    return (
        before.state_dict_metadata == now.state_dict_metadata
        and before.planner_data == now.planner_data
    )
