"""Words about one job arrive in order; those of another never wait for them."""

import asyncio
from asyncio import TaskGroup
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evacd.rendezvous import Departure, Word
from evacd.rendezvous.line import Lines, overtakes


class Mailbox:
    """An announcer that takes its time over each job until it is let through."""

    name = "mailbox"

    def __init__(self, *, shut: bool = False, turns: int = 0) -> None:
        self.turns = turns
        self.opens: dict[str, asyncio.Event] = {}
        self.shut = shut
        self.trying = asyncio.Event()
        self.heard = asyncio.Event()
        self.got: list[Departure] = []

    def open(self, job: str) -> None:
        self._open(job).set()

    def concerns(self, departure: Departure) -> bool:
        return True

    async def announce(self, departure: Departure) -> str | None:
        self.trying.set()
        for _ in range(self.turns):
            await asyncio.sleep(0)
        if self.shut:
            await self._open(departure.job).wait()
        self.got.append(departure)
        self.heard.set()
        return None

    def _open(self, job: str) -> asyncio.Event:
        return self.opens.setdefault(job, asyncio.Event())

    @property
    def words(self) -> list[Word]:
        return [each.word for each in self.got]


class Scene:
    """The lines to one mailbox, and what was told of them."""

    def __init__(self, mailbox: Mailbox, tasks: TaskGroup) -> None:
        self.told: list[tuple[str, str, str]] = []
        self.tasks = tasks
        self.lines = Lines(mailbox, run=self._run, tell=self._tell)
        self._sequence = 0

    def say(self, word: Word, job: str = "alice/gpt", order: str = "o1") -> None:
        self._sequence += 1
        self.lines.say(Departure(word, "n", "b", order, 9.0, job, sequence=self._sequence))

    def _run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.tasks.create_task(work())

    def _tell(self, order: str, name: str, data: Mapping[str, Any]) -> None:
        self.told.append((name, data["word"], data.get("reason", "")))


@asynccontextmanager
async def at_rest(mailbox: Mailbox) -> AsyncIterator[Scene]:
    """A scene that is at rest when the block has ended."""
    async with TaskGroup() as tasks:
        yield Scene(mailbox, tasks)


async def test_words_about_a_job_arrive_in_order() -> None:
    mailbox = Mailbox(turns=5)
    async with at_rest(mailbox) as scene:
        for word in (Word.LEAVING, Word.LOST, Word.WRITTEN, Word.DURABLE):
            scene.say(word)

    assert mailbox.words == [Word.LEAVING, Word.LOST, Word.WRITTEN, Word.DURABLE]
    assert [name for name, _, _ in scene.told] == ["departure.announced"] * 4


async def test_staying_stops_a_leaving_that_is_still_retried() -> None:
    mailbox = Mailbox(shut=True)
    async with at_rest(mailbox) as scene:
        scene.say(Word.LEAVING)
        await mailbox.trying.wait()
        scene.say(Word.STAYING)
        mailbox.open("alice/gpt")

    assert mailbox.words == [Word.STAYING]
    assert scene.told == [
        ("departure.failed", "leaving", "overtaken by staying"),
        ("departure.announced", "staying", ""),
    ]


async def test_staying_drops_what_waits() -> None:
    mailbox = Mailbox(shut=True)
    async with at_rest(mailbox) as scene:
        scene.say(Word.LEAVING)
        scene.say(Word.DURABLE)
        scene.say(Word.STAYING)
        mailbox.open("alice/gpt")

    assert mailbox.words == [Word.STAYING]


async def test_an_amended_leaving_replaces_an_older_undelivered_one() -> None:
    mailbox = Mailbox(shut=True)
    async with at_rest(mailbox) as scene:
        scene.say(Word.LEAVING)
        await mailbox.trying.wait()
        scene.say(Word.LEAVING)
        scene.say(Word.LEAVING)
        mailbox.open("alice/gpt")

    assert [(each.word, each.sequence) for each in mailbox.got] == [(Word.LEAVING, 3)]


async def test_an_amended_leaving_comes_after_one_that_was_delivered() -> None:
    mailbox = Mailbox()
    async with at_rest(mailbox) as scene:
        scene.say(Word.LEAVING)
        await mailbox.trying.wait()
        scene.say(Word.LEAVING)

    assert mailbox.got[-1].sequence == 2


async def test_an_amended_leaving_drops_no_outcome() -> None:
    mailbox = Mailbox(shut=True)
    async with at_rest(mailbox) as scene:
        scene.say(Word.LEAVING)
        scene.say(Word.DURABLE)
        scene.say(Word.LEAVING)
        mailbox.open("alice/gpt")

    assert mailbox.words == [Word.DURABLE, Word.LEAVING]


async def test_a_jobs_slow_announcement_delays_no_other_job() -> None:
    mailbox = Mailbox(shut=True)
    mailbox.open("bob/eval")
    async with at_rest(mailbox) as scene:
        scene.say(Word.LEAVING, "alice/gpt")
        scene.say(Word.LEAVING, "bob/eval")
        await mailbox.heard.wait()
        assert [each.job for each in mailbox.got] == ["bob/eval"]
        mailbox.open("alice/gpt")


class Broken(Mailbox):
    """Its code fails on the first word."""

    def concerns(self, departure: Departure) -> bool:
        return True

    async def announce(self, departure: Departure) -> str | None:
        if departure.word is Word.LEAVING:
            raise RuntimeError("a bug")
        return await super().announce(departure)


async def test_a_bug_over_one_word_does_not_keep_back_the_next() -> None:
    mailbox = Broken()
    async with at_rest(mailbox) as scene:
        scene.say(Word.LEAVING)
        scene.say(Word.DURABLE)

    assert mailbox.words == [Word.DURABLE]
    assert scene.told[0] == ("departure.failed", "leaving", "RuntimeError")


class Dead(Mailbox):
    """Its store never answers; it has tried for as long as it may."""

    async def announce(self, departure: Departure) -> str | None:
        await super().announce(departure)
        return "no answer"


@pytest.mark.parametrize(
    ("ending", "tried"), [(False, ["leaving", "lost", "durable"]), (True, ["leaving"])]
)
async def test_a_daemon_that_stops_waits_for_a_dead_store_once_for_each_job(
    ending: bool, tried: list[str]
) -> None:
    mailbox = Dead(shut=True)
    async with at_rest(mailbox) as scene:
        for word in (Word.LEAVING, Word.LOST, Word.DURABLE):
            scene.say(word)
        await mailbox.trying.wait()
        if ending:
            scene.lines.end_soon()
        mailbox.open("alice/gpt")

    assert [word.value for word in mailbox.words] == tried
    assert [(name, word) for name, word, _ in scene.told] == [
        ("departure.failed", word) for word in ("leaving", "lost", "durable")
    ]


async def test_at_the_end_of_the_daemon_nothing_is_tried_on() -> None:
    mailbox = Mailbox(shut=True)
    stop = asyncio.Event()

    async def serve() -> None:
        async with at_rest(mailbox) as scene:
            scene.say(Word.LEAVING)
            await stop.wait()

    async with TaskGroup() as tasks:
        serving = tasks.create_task(serve())
        await mailbox.trying.wait()
        serving.cancel()

    assert serving.cancelled()
    assert mailbox.got == []


@pytest.mark.parametrize("word", list(Word))
def test_only_leaving_and_staying_overtake(word: Word) -> None:
    overtaken = {older for older in Word if overtakes(word, older)}

    assert overtaken == {
        Word.STAYING: set(Word),
        Word.LEAVING: {Word.LEAVING, Word.STAYING},
    }.get(word, set())


@given(
    st.lists(
        st.tuples(st.sampled_from(Word), st.sampled_from(["a/x", "b/y"]), st.integers(0, 6)),
        max_size=15,
    ),
    st.integers(0, 5),
)
def test_each_job_hears_a_rising_sequence_and_the_last_word(
    said: list[tuple[Word, str, int]], turns: int
) -> None:
    async def live() -> tuple[Mailbox, Scene]:
        mailbox = Mailbox(turns=turns)
        async with at_rest(mailbox) as scene:
            for word, job, pause in said:
                scene.say(word, job)
                for _ in range(pause):
                    await asyncio.sleep(0)
        return mailbox, scene

    mailbox, scene = asyncio.run(live())
    for job in ("a/x", "b/y"):
        sequences = [each.sequence for each in mailbox.got if each.job == job]
        assert sequences == sorted(set(sequences))
        last = [number for number, (_, by, _) in enumerate(said, 1) if by == job][-1:]
        assert sequences[-1:] == last
    assert len(scene.told) == len(said)
