"""Steps beside each other: each has its own time limit, and costs no other one anything."""

import asyncio
from asyncio import TaskGroup
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

import structlog

from evacd.cordon import Unanswered
from evacd.cordon.kubernetes.asking import Asking, Refused
from evacd.cordon.kubernetes.marks import Node

log = structlog.get_logger()

Step: TypeAlias = Callable[[Asking], Awaitable[None]]


class Undone(Exception):
    """It was done, and is not there."""


async def each(
    asks: Callable[[], Asking], steps: Mapping[str, Step], *, seconds: float
) -> str | None:
    """Do all of them; what went wrong, each by its name, or None.

    Args:
        asks: Makes what a step asks with: one for each, so that none says why another one failed.
        seconds: After which a step is given up.

    Returns:
        An `Unanswered` where a step had no answer.
    """
    wrong: dict[str, str] = {}

    async def one(name: str, step: Step) -> None:
        asking = asks()
        try:
            async with asyncio.timeout(seconds):
                await step(asking)
        except TimeoutError:
            why = f"not done within {seconds:g} s ({last_word(asking)})"
            wrong[name] = Unanswered(f"{name}: {why}")
        except (Refused, Undone) as error:
            wrong[name] = f"{name}: {error}"

    async with TaskGroup() as tasks:
        for name, step in steps.items():
            tasks.create_task(one(name, step))
    text = "; ".join(wrong[name] for name in steps if name in wrong)
    unanswered = any(isinstance(why, Unanswered) for why in wrong.values())
    return Unanswered(text) if unanswered else text or None


async def seen(
    asks: Callable[[], Asking], *, by: str, seconds: float, look_again_seconds: float
) -> Node:
    """The node, however long it takes until a server answers; may be cancelled.

    Args:
        by: Who asks, for the log: said once.
        seconds: Of one try.
        look_again_seconds: From one try to the next.
    """
    told = False
    while True:
        asking = asks()
        try:
            async with asyncio.timeout(seconds):
                return await asking.node()
        except TimeoutError:
            reason = last_word(asking)
        except Refused as refused:
            reason = str(refused)
        if not told:
            log.warning("cordon.unknown", by=by, reason=reason)
            told = True
        await asyncio.sleep(look_again_seconds)


def last_word(asking: Asking) -> str:
    """Why nothing came of it until now."""
    last = asking.last
    return f"{last.reason}: {last.cure}" if last else "no answer in time"
