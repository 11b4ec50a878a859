"""Who ended: noticed by pidfd, and heard out before anybody is told.

What a process sent before it died waits in the kernel, and a slot that it staged may still be
read. So a death is noticed first, then its last words are taken and what they began is ended, and
only then is it buried. EOF is no death: a forked child may keep a socket open, and for the same
reason no EOF is waited for. What such a child goes on to say on it is why there is a time limit.
"""

import asyncio
import os
from collections.abc import Callable

import structlog

from evacd.clock import Clock
from evacd.workloads.guard import start
from evacd.workloads.job import Workload
from evacd.workloads.peer import alive
from evacd.workloads.session import Session

log = structlog.get_logger()

_PAUSED_SECONDS = 0.02


class Deaths:
    """The processes of all workloads that live, or are not buried yet.

    Args:
        session: Where a workload is heard; None while it is not connected.
        inspection: Set as soon as a slot of it that is being read has been; None where none is.
        tasks: Owns who is being heard out.
        seconds: How long that may take.
        buried: Told of each death, once; unless the process is heard to have left before.
    """

    def __init__(
        self,
        session: Callable[[Workload], Session | None],
        inspection: Callable[[Workload], asyncio.Event | None],
        *,
        clock: Clock,
        tasks: asyncio.TaskGroup,
        seconds: float,
        buried: Callable[[Workload], None],
    ) -> None:
        self._session = session
        self._inspection = inspection
        self._clock = clock
        self._tasks = tasks
        self._seconds = seconds
        self._buried = buried
        self._loop = asyncio.get_running_loop()
        self._pidfds: dict[int, int] = {}
        self._dying: dict[int, asyncio.Event] = {}

    def watch(self, workload: Workload, pidfd: int) -> None:
        """Notice its end from now on; the pidfd is no more the caller's."""
        if workload.id in self._pidfds:
            os.close(pidfd)
            return
        self._pidfds[workload.id] = pidfd
        self._loop.add_reader(pidfd, self._ended, workload)

    def dying(self, workload: Workload) -> bool:
        """Its process has ended, and it is being heard out."""
        return workload.id in self._dying

    def forget(self, workload: Workload) -> None:
        """It left: its end is nobody's business any more."""
        self._unwatch(workload.id)
        over = self._dying.pop(workload.id, None)
        if over is not None:
            over.set()

    async def settled(self, workload: Workload) -> None:
        """Everything that it has said by now has been heard; if its process is dead, it is buried."""
        while (pidfd := self._pidfds.get(workload.id)) is not None:
            if not alive(pidfd):
                self._ended(workload)
                break
            await self._hear_out(workload)
            if self._pidfds.get(workload.id) == pidfd and alive(pidfd):
                return
        over = self._dying.get(workload.id)
        if over is not None:
            await over.wait()

    def close(self) -> None:
        """Watch nobody any more."""
        for workload in list(self._pidfds):
            self._unwatch(workload)

    def _ended(self, workload: Workload) -> None:
        self._unwatch(workload.id)
        self._dying[workload.id] = asyncio.Event()
        start(self._tasks, self._bury(workload))

    async def _bury(self, workload: Workload) -> None:
        if not await self._hear_out(workload):
            log.warning(
                "workload.unheard", unit=workload.unit, rank=workload.rank, seconds=self._seconds
            )
        over = self._dying.pop(workload.id, None)
        if over is not None:
            self._buried(workload)
            over.set()

    async def _hear_out(self, workload: Workload) -> bool:
        """Until nothing of it waits and no slot of it is being read; False where time ran out."""
        try:
            async with asyncio.timeout_at(self._clock.monotonic() + self._seconds):
                while True:
                    ended = self._inspection(workload)
                    if ended is not None:
                        await ended.wait()
                        continue
                    session = self._session(workload)
                    if session is None or not session.link.hear():
                        return True
                    # The others have their turn too; and while it is deaf nothing can come of asking.
                    await asyncio.sleep(_PAUSED_SECONDS if session.link.paused else 0)
        except TimeoutError:
            return False

    def _unwatch(self, workload: int) -> None:
        pidfd = self._pidfds.pop(workload, None)
        if pidfd is not None:
            self._loop.remove_reader(pidfd)
            os.close(pidfd)
