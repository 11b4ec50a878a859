"""Where notices come from: one small file per source.

A source is told nothing and decides nothing: it answers what it saw, in the four words of
`Probe`. Everything that can go wrong with its transport is an `Unknown`; a source never
raises for it and never ends.
"""

from collections.abc import Callable
from typing import NoReturn, Protocol

from evacd.facts import Probe


class Source(Protocol):
    """One place that may announce the end of this machine."""

    @property
    def name(self) -> str:
        """Short and stable: ``gcp``. Notices carry it."""
        ...

    async def probe(self) -> Probe:
        """Ask once, now. Never blocks for longer than its own time-outs."""
        ...

    async def watch(self, tell: Callable[[Probe], None]) -> NoReturn:
        """Ask for ever, and tell every answer as it comes.

        A notice that stands is told again at each probe; whoever listens tells repeats apart
        by `Notice.id`. Backs off while the answers are `Unknown`. Ends only by cancellation.
        """
        ...


def patience_of(source: Source) -> float | None:
    """Seconds within which a source that lives says something, were it only that nobody answers.

    None for one that may be silent for long: it is woken, and does not ask.
    """
    return getattr(source, "patience", None)
