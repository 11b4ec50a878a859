"""Where a job's owner may write in the stores, made before the job hears that it is on board.

Rank 0 of a training run claims its incarnation in the store by itself, as its own user, while the
root of a store on disk is the daemon's.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import structlog

from evac.errors import EvacError
from evac.store import Owner, Store

log = structlog.get_logger()

Prepare: TypeAlias = Callable[[str, Owner], Awaitable[None]]

# A store that hangs must not keep a workload off board: without its place it is still saved.
SECONDS = 2.0


def prepare_in(targets: Sequence[str], open_store: Callable[[str, Owner], Store]) -> Prepare:
    """What makes a place in every store; one that fails keeps no other from having its own.

    Args:
        targets: URLs.
        open_store: Gives the store behind a URL, whose folders will be the owner's.
    """

    async def prepare(prefix: str, owner: Owner) -> None:
        for url in targets:
            try:
                await open_store(url, owner).prepare(prefix)
            except EvacError as error:
                log.warning("place.failed", store=url, prefix=prefix, reason=str(error))

    return prepare


class Places:
    """Makes each place once at a time, however many ranks of a job wait for it.

    Args:
        tasks: Own the work; what hangs goes on there when nobody waits any more.
    """

    def __init__(self, prepare: Prepare, tasks: asyncio.TaskGroup) -> None:
        self._prepare = prepare
        self._tasks = tasks
        self._making: dict[tuple[str, Owner], asyncio.Task[None]] = {}

    async def ready(self, prefix: str, owner: Owner) -> None:
        """Returns when the place is there, has failed, or has taken too long; says so in the log."""
        key = (prefix, owner)
        task = self._making.get(key)
        if task is None:
            task = self._making[key] = self._tasks.create_task(self._make(prefix, owner))
        _, late = await asyncio.wait([task], timeout=SECONDS)
        if late:
            log.warning("place.late", prefix=prefix, seconds=SECONDS)

    async def _make(self, prefix: str, owner: Owner) -> None:
        try:
            await self._prepare(prefix, owner)
        except Exception:  # a mistake here must not end the board
            log.exception("place.failed", prefix=prefix)
        finally:
            del self._making[prefix, owner]
