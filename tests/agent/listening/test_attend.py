"""No bug in a source ends it, or any other."""

import asyncio
from collections.abc import Callable
from typing import NoReturn

import pytest
from structlog.testing import capture_logs

from evacd.clock import SystemClock
from evacd.facts import Probe, Quiet, Unknown
from evacd.listening.attend import Again, attend
from tests.agent.listening.scripted import Bug, Scripted
from tests.agent.notice.hearing import Hearing

AT_ONCE = Again(first=0.0, most=0.0)


class Attended:
    """`attend` on one source."""

    def __init__(self, source: Scripted) -> None:
        self.source = source
        self.heard = Hearing()
        self.crashes = 0

    def _crashed(self) -> None:
        self.crashes += 1

    async def run(self, tasks: asyncio.TaskGroup) -> "asyncio.Task[NoReturn]":
        return tasks.create_task(
            attend(self.source, self.heard.tell, self._crashed, SystemClock(), again=AT_ONCE)
        )


async def test_a_source_whose_code_fails_is_shown_and_begun_again() -> None:
    attended = Attended(Scripted("broken"))
    async with asyncio.TaskGroup() as tasks:
        task = await attended.run(tasks)
        with capture_logs() as logs:
            await attended.source.say(Quiet("broken"), Bug("oops"))
            at = await attended.heard.until(Unknown)
        await attended.source.say(Quiet("broken"))
        await attended.heard.until(Quiet, after=at)
        task.cancel()

    unknown = attended.heard.told[at]
    assert isinstance(unknown, Unknown)
    assert "Bug" in unknown.reason
    assert "report it" in unknown.cure
    assert (attended.crashes, attended.source.begun) == (1, 2)
    assert [entry["event"] for entry in logs] == ["source.failed"]


@pytest.mark.parametrize(
    "wrong",
    [Bug(), ExceptionGroup("", [Bug()]), None],
    ids=["raises", "raises a group", "ends"],
)
async def test_however_it_ends_it_is_begun_again(wrong: Exception | None) -> None:
    attended = Attended(Scripted("broken"))
    async with asyncio.TaskGroup() as tasks:
        task = await attended.run(tasks)
        for _ in range(3):
            await attended.source.say(wrong)
        await attended.source.say(Quiet("broken"))
        task.cancel()

    assert (attended.crashes, attended.source.begun) == (3, 4)


async def test_a_cancellation_that_nobody_asked_for_is_a_bug_as_well() -> None:
    attended = Attended(Scripted("broken"))

    class Cancels(Scripted):
        async def watch(self, tell: Callable[[Probe], None]) -> NoReturn:
            if self.begun < 2:
                self.begun += 1
                raise asyncio.CancelledError
            await super().watch(tell)

    attended.source = Cancels("broken")
    async with asyncio.TaskGroup() as tasks:
        task = await attended.run(tasks)
        await attended.source.say(Quiet("broken"))
        await attended.heard.until(Quiet)
        task.cancel()

    assert attended.crashes == 2


async def test_it_ends_when_it_is_cancelled() -> None:
    attended = Attended(Scripted("fine"))
    async with asyncio.TaskGroup() as tasks:
        task = await attended.run(tasks)
        await attended.source.say(Quiet("fine"))
        task.cancel()

    assert task.cancelled()
    assert attended.crashes == 0
