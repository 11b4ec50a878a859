"""Keeps one source listening, whatever becomes of it."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import structlog

from evacd.clock import Clock
from evacd.facts import Probe, Unknown
from evacd.notice import Source

log = structlog.get_logger()

_CURE = "this is a bug in evac: please report it with the log; the other sources go on"


@dataclass(frozen=True)
class Again:
    """How long a source that broke is left alone; all in seconds.

    Attributes:
        first: After its first failure; it doubles with each.
        most: No pause is longer: it may hide a notice for so long.
        forgiven: Whoever listened for so long begins anew.
    """

    first: float = 0.5
    most: float = 30.0
    forgiven: float = 300.0


async def attend(
    source: Source,
    tell: Callable[[Probe], None],
    crashed: Callable[[], None],
    clock: Clock,
    *,
    again: Again | None = None,
) -> NoReturn:
    """Let it watch for ever; where a bug ends that, say so and begin again.

    Args:
        tell: Gets all that it says, and an `Unknown` after each failure.
        crashed: Counts failures.
    """
    again = again or Again()
    failures = 0
    while True:
        began = clock.monotonic()
        wrong = await _watched(source, tell)
        listened = clock.monotonic() - began
        failures = 1 if listened >= again.forgiven else failures + 1
        pause = min(again.most, math.ldexp(again.first, min(failures - 1, 16)))
        crashed()
        tell(Unknown(source.name, f"its code failed: {wrong}; begun again", _CURE))
        await asyncio.sleep(pause)


async def _watched(source: Source, tell: Callable[[Probe], None]) -> str:
    """Until it fails, and how: what never should."""
    try:
        await source.watch(tell)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # Nobody cancelled us: something inside of it let its own cancellation out.
        log.warning("source.failed", source=source.name, reason="cancelled by itself")
        return "cancelled by itself"
    except Exception as error:  # one source's bug is not the others' end
        log.exception("source.failed", source=source.name)
        return type(error).__name__
    log.warning("source.failed", source=source.name, reason="it ended")
    return "it ended"
