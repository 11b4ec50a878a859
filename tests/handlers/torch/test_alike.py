"""What goes wrong on one rank alone is an error on all of them, and nobody is left in a collective."""

import faulthandler
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata

from evac.errors import GenerationError
from evac.generation import Generation
from evac.manifest import FULL
from evac.torch.holdings import Candidate, Holding, Made
from evac.torch.layout import place, plan
from evac.torch.local_memory import LocalMemory
from evac.torch.looking import described, look_for
from evac.torch.world import World
from tests.handlers.torch import ranks
from tests.handlers.torch.training import Run

# Ranks that wait for each other are ended, with a trace of where.
_LIMIT = 120.0


class Refuses:
    """Cannot be written."""

    def __reduce__(self) -> str:
        raise ValueError("it cannot be written")


def unnamed() -> Any:
    """Cannot travel: its class is nowhere to be found."""

    class Key(str):
        __slots__ = ()

    return Key("key")


class Torn(LocalMemory):
    """Memory in which nothing can be looked up."""

    def __init__(self) -> None:
        super().__init__(None)

    def holdings(self, node: str) -> list[Holding]:
        raise OSError("torn")

    def metadata(self, made: Made) -> bytes:
        raise OSError("torn")


def fail() -> Any:
    raise OSError("no room")


# What one rank alone does, or brings, and what all are told of it.
DEEDS: dict[str, tuple[Callable[[], Any], str]] = {
    "it fails": (fail, "OSError: no room"),
    "it cannot be written": (Refuses, "it cannot be written"),
    "it cannot travel": (unnamed, "Key"),
}
HELD: dict[str, tuple[Callable[[], dict[Any, Any]], str]] = {
    "an object": (lambda: {"o": Refuses()}, "it cannot be written"),
    "a tensor": (lambda: {"odd": torch.eye(3).to_sparse()}, "sparse"),
}


def together(act: Callable[[], object], told: str, culprit: int) -> None:
    with pytest.raises(GenerationError, match=rf"rank {culprit}: .*{told}"):
        act()


def all_alike(rank: int, store: str) -> None:
    faulthandler.dump_traceback_later(_LIMIT, exit=True)
    world = World()
    for culprit in (0, 1):
        for deed, told in DEEDS.values():
            act = deed if rank == culprit else int
            together(lambda act=act: world.agree("it", act), told, culprit)  # type: ignore[misc] # binds the loop's variables
            if culprit == 0:
                together(lambda act=act: world.led("it", act), told, culprit)  # type: ignore[misc] # likewise
        together(lambda: world.each("it", fail if rank == culprit else int), "no room", culprit)  # noqa: B023 - called at once
        for bring, told in HELD.values():
            model: dict[Any, Any] = {"w": torch.ones(3)}
            if rank == culprit:
                model.update(bring())
            together(lambda model=model: plan(world, {"model": model}), told, culprit)  # type: ignore[misc] # likewise
        look_in_memory(world, Torn() if rank == culprit else LocalMemory(None), culprit)
    # What rank 0 alone makes of everybody's part.
    metadata = Metadata({}, planner_data={"key": (unnamed(),)}) if rank == 0 else None
    together(lambda: place(world, [], DefaultSavePlanner(), metadata), "Key", 0)
    # And after all that they are still in step.
    assert world.agree("it", lambda: rank) == [0, 1]
    assert world.each("it", lambda: rank) == rank
    assert world.led("it", lambda: rank) == 0
    assert plan(world, {"model": {"w": torch.ones(3)}}).name
    stage_after_one_could_not(rank, store)
    faulthandler.cancel_dump_traceback_later()


def look_in_memory(world: World, memory: LocalMemory, culprit: int) -> None:
    together(lambda: look_for(world, memory, [], "me/run", weights=False), "torn", culprit)
    looked = look_for(world, LocalMemory(None), [], "me/run", weights=False)
    it = Candidate(Made(Generation(1, 1), FULL, "", "", 2, "0" * 64), ())
    together(lambda: described(world, memory, it, looked, "me/run"), "torn", culprit)


def stage_after_one_could_not(rank: int, store: str) -> None:
    """A rank whose state cannot be planned for costs a stage, and not the run."""
    run = Run(rank=rank, ddp=True)
    with run.saver(store=store) as saver:
        run.train()
        if rank == 1:
            run.model.register_buffer("odd", torch.eye(3).to_sparse())
        assert not saver.step(1)
        assert "rank 1: " in saver.stats.last_reason
        if rank == 1:
            del run.model.odd
        assert saver.step(2)


def test_what_fails_on_one_rank_is_told_by_all(store: str) -> None:
    ranks.run(2, all_alike, store)


def test_a_world_of_one_needs_nothing_to_travel() -> None:
    world, key = World(), unnamed()
    assert world.agree("it", lambda: key) == [key]
    assert world.led("it", lambda: key) is key
    with pytest.raises(GenerationError, match="rank 0: OSError: no room"):
        world.each("it", fail)
