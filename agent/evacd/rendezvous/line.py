"""One announcer's words, strictly in order for each job; no job waits for another.

A word that has become pointless before it was delivered is dropped: `staying` drops all that
is still on its way, and a `leaving` drops an older `leaving` or `staying`. What was dropped
in the middle of a try may have arrived all the same, or still arrive: that is what
`Departure.sequence` is for.
"""

from asyncio import Task, TaskGroup
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from evacd.rendezvous import Announcer, Departure, Word

log = structlog.get_logger()


def overtakes(newer: Word, older: Word) -> bool:
    """Whether *older*, if it is still undelivered, says nothing any more beside *newer*."""
    match newer:
        case Word.STAYING:
            return True
        case Word.LEAVING:
            return older in (Word.LEAVING, Word.STAYING)
        case _:
            return False


@dataclass
class _Line:
    """What one job is still to be told."""

    waiting: list[Departure] = field(default_factory=list)
    spoken: Departure | None = None
    task: Task[str | None] | None = None
    overtaken_by: Word | None = None


class Lines:
    """All jobs' lines to one announcer."""

    def __init__(
        self,
        announcer: Announcer,
        *,
        run: Callable[[Callable[[], Coroutine[Any, Any, None]]], None],
        tell: Callable[[str, str, Mapping[str, Any]], None],
    ) -> None:
        """Wire it up.

        Args:
            run: Runs work beside the flush.
            tell: Told the order's id, the event's name and its data.
        """
        self._announcer = announcer
        self._run = run
        self._tell = tell
        self._lines: dict[str, _Line] = {}
        self._ending = False

    def say(self, departure: Departure) -> None:
        """Announce it after all that its job was told before, or in its place."""
        if not self._announcer.concerns(departure):
            return
        job, word = departure.job, departure.word
        line = self._lines.get(job)
        begin = line is None
        line = self._lines.setdefault(job, _Line())
        gone = [each for each in line.waiting if overtakes(word, each.word)]
        line.waiting = [each for each in line.waiting if each not in gone] + [departure]
        for each in gone:
            self._dropped(each, word)
        if line.spoken and line.task and overtakes(word, line.spoken.word):
            line.overtaken_by = word
            line.task.cancel()
        if begin:
            self._run(lambda: self._work(job))

    def end_soon(self) -> None:
        """The daemon stops as soon as all is told: behind a word that failed no other is tried."""
        self._ending = True

    async def _work(self, job: str) -> None:
        line = self._lines[job]
        try:
            while line.waiting:
                told = await self._speak(line, line.waiting.pop(0))
                while line.waiting and self._ending and not told:
                    self._failed(line.waiting.pop(0), "nor was the one before it told")
        finally:
            del self._lines[job]

    async def _speak(self, line: _Line, departure: Departure) -> bool:
        line.spoken, line.overtaken_by = departure, None
        # A group of its own, so that this one try can be ended and the line goes on.
        async with TaskGroup() as tasks:
            line.task = tasks.create_task(self._try(departure))
        task, line.spoken, line.task = line.task, None, None
        if task.cancelled():
            self._dropped(departure, line.overtaken_by)
            return True
        wrong = task.result()
        if wrong is not None:
            self._failed(departure, wrong)
            return False
        self._tell(departure.order, "departure.announced", _facts(self._announcer, departure))
        return True

    async def _try(self, departure: Departure) -> str | None:
        try:
            return await self._announcer.announce(departure)
        except Exception as error:  # a bug of one announcer must not end its other words
            log.exception("departure.broke", by=self._announcer.name)
            return type(error).__name__

    def _dropped(self, departure: Departure, by: Word | None) -> None:
        self._failed(departure, f"overtaken by {by.value}" if by else "ended")

    def _failed(self, departure: Departure, reason: str) -> None:
        data = {**_facts(self._announcer, departure), "reason": reason}
        self._tell(departure.order, "departure.failed", data)


def _facts(announcer: Announcer, departure: Departure) -> dict[str, Any]:
    return {"name": announcer.name, "word": departure.word.value, "job": departure.job}
