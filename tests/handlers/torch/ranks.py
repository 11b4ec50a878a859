"""Real ranks over gloo, as processes of their own."""

import multiprocessing
import os
import tempfile
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes


def run(world: int, act: Callable[..., None], *args: Any) -> None:
    """Call ``act(rank, *args)`` on every rank; fails where one of them does."""
    with tempfile.TemporaryDirectory() as folder:
        preload()
        given = (world, str(Path(folder) / "meet"), act, args)
        start_processes(_enter, given, nprocs=world, start_method="forkserver")  # type: ignore[no-untyped-call] # torch has no types here


def process(act: Callable[..., None], *args: Any) -> BaseProcess:
    """A process that runs ``act(*args)``, started."""
    preload()
    started = multiprocessing.get_context("forkserver").Process(target=act, args=args)
    started.start()
    return started


def preload() -> None:
    """Let one process import torch, once for all tests, from which the others are forked."""
    multiprocessing.set_forkserver_preload(["evac.torch", "torch._dynamo"])


def _enter(
    rank: int, world: int, meet: str, act: Callable[..., None], args: tuple[Any, ...]
) -> None:
    join(rank, world, meet)
    act(rank, *args)
    dist.destroy_process_group()


def join(rank: int, world: int, meet: str) -> None:
    """Form a process group over a file that all ranks can see."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=world)
