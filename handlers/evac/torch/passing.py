"""Bytes that only another node's memory has, from a rank there to one here, over the process group."""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from evac.commit import chunk_sums
from evac.manifest import CHUNK
from evac.torch.parting import Move
from evac.torch.world import World


def pass_on(
    world: World,
    moves: Sequence[Move],
    source: Callable[[str], memoryview],
    target: Callable[[str], memoryview],
) -> tuple[Move, ...]:
    """Make *moves*, which all ranks have alike; those that arrived damaged on any. Collective.

    Each rank does its part in the order of all, so that no two wait for each other.

    Args:
        source: The whole file, of a move that this rank sends.
        target: Where the whole file belongs, of one that it receives.
    """
    # Over the processor's memory, whatever training itself goes over.
    group = dist.new_group(backend="gloo")
    try:
        mine = [move for move in moves if world.rank in (move.sender, move.receiver)]
        for move in mine:
            if move.sender == world.rank:
                with _chunks(source(move.body), move) as data:
                    dist.send(torch.frombuffer(data, dtype=torch.uint8), move.receiver, group)
            else:
                with _chunks(target(move.body), move) as data:
                    dist.recv(torch.frombuffer(data, dtype=torch.uint8), move.sender, group)
        sums = {move: _sums(move, source) for move in mine if move.sender == world.rank}
        sent = {move: sums for one in world.gather(sums) for move, sums in one.items()}
        received = [move for move in mine if move.receiver == world.rank]
        damaged = [move for move in received if _sums(move, target) != sent[move]]
        return tuple(move for some in world.gather(damaged) for move in some)
    finally:
        dist.destroy_process_group(group)


def _sums(move: Move, where: Callable[[str], memoryview]) -> tuple[int, ...]:
    with _chunks(where(move.body), move) as data:
        return chunk_sums(data)


def _chunks(whole: memoryview, move: Move) -> memoryview:
    return whole[move.first * CHUNK : move.end * CHUNK]
