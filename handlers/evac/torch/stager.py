"""One layout's stages: plan once, then reserve, copy, hand over."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from evac.errors import GenerationError
from evac.torch import extra, rank_state
from evac.torch import layout as layouts
from evac.torch.accumulation import WAITS
from evac.torch.freshness import Freshness
from evac.torch.identity import Identity
from evac.torch.image import Tail, read_objects, read_tensors, tail
from evac.torch.images import Images
from evac.torch.layout import Layout
from evac.torch.rank_state import Packed, RankObjects
from evac.torch.sides import Outgrown
from evac.torch.slots import Slots
from evac.torch.state import TrainingState
from evac.torch.target import rehearse
from evac.torch.world import World

log = logging.getLogger("evac")

# Kinds that the checkpointer or the client tells of by itself.
NOWHERE, AWAY = "nowhere", "away"
# Gradients are accumulated; found by this rank alone only once the layout is planned.
HALF = "half"
QUIET = frozenset({NOWHERE, AWAY})


@dataclass(frozen=True)
class Skipped:
    """Nothing was staged, and training goes on.

    Attributes:
        kind: Equal for what need not be logged twice.
    """

    kind: str
    reason: str


class Stager:
    """Knows the layout once it is planned, and the slots that were laid out for it.

    Args:
        claim: Takes an incarnation from the slots' store; called on rank 0 alone.
        freshness: Compares the weights of each stage with those of the one before.
        unfinished: Why this moment is in the middle of a step; "" where it is not.
    """

    def __init__(
        self,
        world: World,
        state: TrainingState,
        objects: RankObjects,
        identity: Identity,
        claim: Callable[[Slots], int],
        freshness: Freshness,
        unfinished: Callable[[], str],
    ) -> None:
        self._world = world
        self._state = state
        self._objects = objects
        self._identity = identity
        self._claim = claim
        self._freshness = freshness
        self._unfinished = unfinished
        # What a person should know of the last stage.
        self.remark = ""
        # Whether something of the last one has outgrown its layout: another one is to be planned.
        self.outgrown = False
        # Whether the last one planned, or was the first in its slot: the next ones take less.
        self.prepared = False
        self._incarnation = 0
        self._layout: Layout | None = None
        self._tail: Tail | None = None
        self._block = torch.empty(0, dtype=torch.uint8)
        self._used = 0
        self._reserved: tuple[Slots, int] | None = None
        self._images = Images()

    @property
    def planned(self) -> bool:
        """Whether a stage is copies alone; the same on all ranks."""
        return self._layout is not None

    def plan_anew(self, slots: Slots | None, step: int) -> Skipped | None:
        """The state has outgrown the layout: make another; where that fails the old one stays.

        A collective.
        """
        block, used = self._block, self._used
        # It is a shape that is planned: whose moment it is does not matter.
        if skipped := self._plan(slots, step, lambda: ""):
            self._block, self._used = block, used
            return skipped
        self._reserved = None
        return None

    def stage(self, slots: Slots | None, step: int) -> Skipped | None:
        """Stage *step*, or say why not. Collective only until the layout is planned."""
        self.prepared, self.outgrown = self._layout is None, False
        if self._layout is None or self._tail is None:
            if skipped := self._plan(slots, step, self._unfinished):
                return skipped
            assert self._layout is not None
            assert self._tail is not None
        elif reason := self._unfinished():
            return Skipped(HALF, reason)
        if slots is None:
            return Skipped(NOWHERE, "neither a daemon nor a store")
        if reason := slots.ready():
            return Skipped(AWAY, reason)
        if reason := self._reserve(slots, self._layout, self._tail):
            return Skipped(f"reserve:{reason}", reason)
        return self._write(slots, step, self._layout, self._tail)

    def close(self) -> None:
        """Nothing more is staged."""
        self._images.clear()

    def _write(self, slots: Slots, step: int, layout: Layout, behind: Tail) -> Skipped | None:
        packed, outgrown = self._pack(step), Outgrown(layout.sides)
        block = self._fitted(packed.block, layout, outgrown)
        if block is None:
            reason = (
                f"this rank's own state is {len(packed.block):,} bytes where "
                f"{self._block.nbytes:,} are set aside, and the end of the file is full"
            )
            self.outgrown = True
            return Skipped("block", reason)
        self._fill(block)
        flat = layouts.flatten(self._read(packed), layout.keys, layout.own)
        tensors = read_tensors(layout, flat)
        if isinstance(tensors, str):
            return self._differs(tensors)
        objects = read_objects(layout, flat, outgrown)
        if isinstance(objects, str):
            return self._differs(objects)
        slot = slots.acquire()
        if slot is None:
            return Skipped("full", "no slot is free: what was staged before is still under way")
        try:
            slot.begin(self._incarnation)
            self.prepared |= self._images.write(
                slot, layout, behind, tensors, objects, outgrown.pieces
            )
            names = self._state.parameter_names
            self.remark = self._freshness.staged(slot.memory, layout, names)
            header = behind.header(incarnation=self._incarnation, step=step)
            slot.complete(header)
        except BaseException:
            slots.release(slot)
            raise
        slots.staged(slot, header)
        if outgrown.names:
            self.outgrown = True
            text = "step %d is staged, and %s beside its place, which it has outgrown"
            log.info(text, step, ", ".join(outgrown.names))
        return None

    def _differs(self, how: str) -> Skipped:
        self.outgrown = True
        return Skipped(f"differs:{how}", f"the state has changed its shape: {how}")

    def _fitted(self, block: bytes, layout: Layout, outgrown: Outgrown) -> bytes | None:
        """What of *block* goes into its place, the rest of it put elsewhere; None where that is full."""
        name = rank_state.name(self._identity.rank)

        def put(rest: bytes) -> int | None:
            (item,) = (one for one in layout.tensors if one.name == name)
            return outgrown.put(name, item.offset, rest)

        return rank_state.fitted(block, self._block.nbytes, put)

    def _plan(
        self, slots: Slots | None, step: int, unfinished: Callable[[], str]
    ) -> Skipped | None:
        # All ranks go on, or none: who went on alone would wait for ever.
        try:
            reason, state = self._unready(slots, step, unfinished)
        except Exception as error:  # noqa: BLE001 - the other ranks wait for an answer, and get this one
            reason, state = f"{type(error).__name__}: {error}", {}
        reasons = self._world.gather(reason)
        for rank, reason in enumerate(reasons):
            if reason:
                where = f"rank {rank}: " if self._world.size > 1 else ""
                kind = f"unready:{reason}" if slots is not None else NOWHERE
                return Skipped(HALF if reason == WAITS else kind, where + reason)
        try:
            own = self._world.each("layout", self._own)
            layout = layouts.plan(self._world, state, own)
            rehearse(self._world, layout, self._state, self._objects.likenesses)
            behind = self._world.each("layout", lambda: tail(layout))
        except GenerationError as error:
            return Skipped(f"plan:{error}", f"no layout: {error}")
        self._incarnation = self._world.broadcast(self._incarnation)
        self._layout, self._tail = layout, behind
        return None

    def _unready(
        self, slots: Slots | None, step: int, unfinished: Callable[[], str]
    ) -> tuple[str, dict[str, Any]]:
        """Why this rank cannot plan, or the state to plan for."""
        if slots is None:
            return "neither evacd nor a store is there", {}
        if reason := slots.ready() or self._state.unready() or unfinished():
            return reason, {}
        packed = self._pack(step)
        self._block = torch.zeros(rank_state.capacity(len(packed.block)), dtype=torch.uint8)
        self._used = 0
        self._fill(packed.block)
        state = self._read(packed)
        self._state.check(state)
        if self._world.rank == 0 and not self._incarnation:
            self._incarnation = self._claim(slots)
        return "", state

    def _reserve(self, slots: Slots, layout: Layout, behind: Tail) -> str:
        reserved = (slots, slots.epoch)
        if self._reserved == reserved:
            return ""
        self._images.clear()
        if reason := slots.reserve(behind.slot_nbytes, layout, self._incarnation):
            return reason
        self._reserved = reserved
        return ""

    def _own(self) -> frozenset[tuple[str, ...]]:
        return self._state.own() | extra.own(self._objects.others)

    def _pack(self, step: int) -> Packed:
        me = self._identity
        return self._objects.pack(step=step, rank=me.rank, world=me.world)

    def _fill(self, data: bytes) -> None:
        block = self._block.numpy()
        block[: len(data)] = memoryview(data)
        block[len(data) : self._used] = 0
        self._used = len(data)

    def _read(self, packed: Packed) -> dict[str, Any]:
        block = {rank_state.name(self._identity.rank): self._block}
        return {**self._state.read(), extra.EXTRA: packed.tensors, **block}
