"""How often a key is asked for: on the loop's own clock, which `looptime` moves."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from evacd.facts import Probe, Quiet, Unknown
from evacd.notice.longpoll import LongPoll, Pace
from evacd.notice.metadata import Answer, Failed

pytestmark = pytest.mark.looptime


class LoopClock:
    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def utc(self) -> datetime:
        return datetime.fromtimestamp(self.monotonic(), UTC)


def judge(answer: Answer | Failed) -> Probe:
    return Unknown("gcp", answer.reason) if isinstance(answer, Failed) else Quiet("gcp")


async def asked_at(
    answer: Callable[[str], Answer | Failed],
    *,
    seconds: float,
    takes: Callable[[str], float] = lambda _: 0.0,
    jitter: float = 1.0,
) -> list[tuple[float, str]]:
    """When, and with which ETag, a key was asked for within so many seconds."""
    clock, asked = LoopClock(), list[tuple[float, str]]()

    async def ask(*, etag: str) -> Answer | Failed:
        asked.append((round(clock.monotonic(), 6), etag))
        await asyncio.sleep(takes(etag))
        return answer(etag)

    poll = LongPoll(ask, judge, clock, pace=Pace(), jitter=lambda: jitter)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(seconds):
            await poll.watch(lambda _: None)
    return asked


async def test_failures_back_off_to_five_seconds_and_no_further() -> None:
    asked = await asked_at(lambda _: Failed("down"), seconds=30.0)

    assert [at for at, _ in asked] == [0, 0.25, 0.75, 1.75, 3.75, 7.75, 12.75, 17.75, 22.75, 27.75]


async def test_jitter_only_shortens_a_pause_and_at_most_by_half() -> None:
    asked = await asked_at(lambda _: Failed("down"), seconds=2.0, jitter=0.0)

    assert [at for at, _ in asked] == [0, 0.125, 0.375, 0.875, 1.875]


async def test_a_service_that_never_holds_is_not_asked_in_a_spin() -> None:
    asked = await asked_at(lambda _: Answer(200, "FALSE", etag="7"), seconds=9.5)

    assert [at for at, _ in asked] == [0, 0, *range(1, 10)]


async def test_a_hanging_get_follows_the_last_without_a_pause() -> None:
    asked = await asked_at(
        lambda _: Answer(200, "FALSE", etag="7"),
        seconds=35.0,
        takes=lambda etag: 10.0 if etag else 0.0,
    )

    assert asked == [(0, ""), (0, "7"), (10, "7"), (20, "7"), (30, "7")]


async def test_without_an_etag_it_is_asked_once_a_second() -> None:
    asked = await asked_at(lambda _: Answer(200, "FALSE"), seconds=4.5)

    assert asked == [(0, ""), (1, ""), (2, ""), (3, ""), (4, "")]


async def test_hanging_is_tried_again_a_minute_after_it_kept_failing() -> None:
    asked = await asked_at(
        lambda etag: Failed("503") if etag else Answer(200, "FALSE", etag="7"), seconds=70.0
    )

    hung = [at for at, etag in asked if etag]
    assert hung[:3] == [0, 0.25, 0.5]
    assert 60.5 <= hung[3] < 62.0
    assert len([at for at, etag in asked if not etag and 1 <= at < 60]) == 59


async def test_one_plain_read_asks_once() -> None:
    async def ask(*, etag: str) -> Answer | Failed:
        assert etag == ""
        return Answer(200, "FALSE")

    assert await LongPoll(ask, judge, LoopClock(), pace=Pace(), jitter=lambda: 0.0).once() == Quiet(
        "gcp"
    )
