"""Sources that say what a test tells them to, in the order in which it does."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from evacd.facts import Notice, Probe, Quiet


class Bug(Exception):
    """What no source should raise."""


@dataclass
class Scripted:
    """Says what is put into it; an exception is raised in the midst of its watch."""

    name: str
    begun: int = 0
    degraded: str = ""
    _next: "asyncio.Queue[Probe | Exception | None]" = field(default_factory=asyncio.Queue)

    async def say(self, *what: Probe | Exception | None) -> None:
        """Have it said, and heard, before this returns; None ends its watch."""
        for each in what:
            self._next.put_nowait(each)
        await self._next.join()

    async def probe(self) -> Probe:
        return Quiet(self.name)

    async def watch(self, tell: Callable[[Probe], None]) -> NoReturn:
        self.begun += 1
        while True:
            what = await self._next.get()
            try:
                if what is None:
                    return  # type: ignore[misc]  # the mistake that a test is about
                if isinstance(what, Exception):
                    raise what
                tell(what)
            finally:
                self._next.task_done()


@dataclass
class Count:
    """What was counted."""

    probes: list[tuple[str, Probe]] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)

    def probed(self, source: str, probe: Probe) -> None:
        self.probes.append((source, probe))

    def noticed(self, notice: Notice) -> None:
        self.notices.append(notice)

    def crashed(self, source: str) -> None:
        self.crashes.append(source)
