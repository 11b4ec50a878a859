"""A source that was asked for and cannot be had here: it says so, for ever."""

import asyncio
from collections.abc import Callable
from typing import NoReturn

from evacd.facts import Probe, Unknown

_AGAIN_SECONDS = 30.0


class AbsentSource:
    """Stands in its place, so that status, checks and metrics show it."""

    def __init__(self, name: str, reason: str, cure: str) -> None:
        self._unknown = Unknown(name, reason, cure)

    @property
    def name(self) -> str:
        """See `Source`."""
        return self._unknown.source

    async def probe(self) -> Probe:
        """See `Source`."""
        return self._unknown

    async def watch(self, tell: Callable[[Probe], None]) -> NoReturn:
        """See `Source`."""
        while True:
            tell(self._unknown)
            await asyncio.sleep(_AGAIN_SECONDS)
