"""What is done for one peer costs that peer alone, whatever goes wrong with it."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog

from evacd.workloads.session import Session

log = structlog.get_logger()


def start(
    tasks: asyncio.TaskGroup, work: Coroutine[Any, Any, object], session: Session | None = None
) -> None:
    """Let *work* run among *tasks*, which it never ends: a mistake is logged and costs *session*.

    An exception in a TaskGroup cancels all that is in it, and here that is everybody on board.
    """
    guard = guarded(work, session)
    try:
        tasks.create_task(guard)
    except RuntimeError:  # nothing new begins among those that are being ended, nor has to
        guard.close()
        work.close()


async def guarded(work: Coroutine[Any, Any, object], session: Session | None) -> None:
    """The same, for whoever waits for it."""
    try:
        await work
    except Exception as error:
        log.exception("workload.mishandled", pid=session.peer.pid if session else None)
        if session is not None:
            session.link.drop(f"evacd failed in an unforeseen way: {type(error).__name__}")
