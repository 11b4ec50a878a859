"""What a checkpointer did so far, and how often it will go on doing it."""

import math
from dataclasses import dataclass, replace

from evac.torch.pace import Pace


@dataclass(frozen=True)
class Stats:
    """What the checkpointer did so far.

    Attributes:
        staged: Generations staged.
        skipped: Due stages that staged nothing: no slot free, a state that changed its shape...
        failed: Stages and, without a daemon, commits that an error ended.
        last_stall_seconds: How long the last stage kept training waiting.
        last_reason: Why the last skipped or failed one was.
        unchanged: Stages whose weights were those of the stage before, though the optimizer had
            stepped: what is saved is not what trains.
        every_steps: From one stage to the next.
        interval_seconds: The same in time; 0 before it is known, and so are the next three.
        stall_seconds: C, what a stage costs.
        restart_seconds: R, what a restart costs.
        reclaim_seconds: M, between two reclaims of the job.
        net_consumer: That the job gets nothing done between reclaims, in numbers; else "".
    """

    staged: int = 0
    skipped: int = 0
    failed: int = 0
    last_stall_seconds: float = 0.0
    last_reason: str = ""
    unchanged: int = 0
    every_steps: int = 0
    interval_seconds: float = 0.0
    stall_seconds: float = 0.0
    restart_seconds: float = 0.0
    reclaim_seconds: float = 0.0
    net_consumer: str = ""


def after(before: Stats, step: int, took: float, *, skipped: str, failed: str) -> Stats:
    """One stage later, which kept training waiting for *took* seconds, whatever came of it."""
    reason = skipped or failed
    return replace(
        before,
        staged=before.staged + (not reason),
        skipped=before.skipped + bool(skipped),
        last_stall_seconds=took,
        last_reason=f"step {step}: {reason}" if reason else before.last_reason,
    )


def with_pace(stats: Stats, pace: Pace, *, now: float) -> Stats:
    """*stats*, with the interval and what it follows from, as far as they are known."""
    found = replace(stats, every_steps=pace.steps)
    costs, every = pace.costs(now), pace.every_seconds()
    if costs is None or not math.isfinite(every):
        return found
    return replace(
        found,
        interval_seconds=every,
        stall_seconds=costs.stall,
        restart_seconds=costs.restart,
        reclaim_seconds=costs.between,
        net_consumer=pace.verdict(now),
    )
