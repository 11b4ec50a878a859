"""How often a source is asked: on the loop's own clock, which `looptime` moves."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import pytest

from evacd.facts import Cancelled, Confidence, Notice, Noticed, Probe, Quiet, Unknown
from evacd.notice.polled import Polled, weightiest


class LoopClock:
    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def utc(self) -> datetime:
        return datetime.fromtimestamp(self.monotonic(), UTC)


def notice(confidence: Confidence, deadline: float | None = None, id: str = "1") -> Notice:
    return Notice("aws/spot", "terminate", id, confidence, deadline, seen=0.0)


STANDS = Noticed(notice(Confidence.CERTAIN))
GONE = Cancelled("aws/spot", "1")
DOWN = Unknown("aws/spot", "down")
CALM = Quiet("aws/spot")


async def asked_at(
    answers: Callable[[int], Sequence[Probe]],
    *,
    seconds: float,
    period: float = 1.0,
    takes: float = 0.0,
    jitter: float = 1.0,
) -> tuple[list[float], list[Probe]]:
    """When it was asked within so many seconds, and what was told."""
    clock, asked, told = LoopClock(), list[float](), list[Probe]()

    async def ask() -> tuple[Probe, ...]:
        asked.append(round(clock.monotonic(), 6))
        await asyncio.sleep(takes)
        return tuple(answers(len(asked)))

    polled = Polled(ask, period=period, clock=clock, jitter=lambda: jitter)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(seconds):
            await polled.watch(told.append)
    return asked, told


@pytest.mark.looptime
async def test_a_slow_answer_does_not_stretch_the_period() -> None:
    asked, told = await asked_at(lambda _: [CALM], seconds=3.5, takes=0.4)

    assert asked == [0, 1, 2, 3]
    assert told[:3] == [CALM] * 3


@pytest.mark.looptime
async def test_failures_back_off_to_five_seconds_and_no_further() -> None:
    asked, _ = await asked_at(lambda _: [DOWN], seconds=25.0)

    assert asked == [0, 1, 3, 7, 12, 17, 22]


@pytest.mark.looptime
async def test_jitter_never_makes_it_ask_faster_than_its_period() -> None:
    asked, _ = await asked_at(lambda _: [DOWN], seconds=8.0, jitter=0.0)

    assert asked == [0, 1, 2, 4, 6.5]


@pytest.mark.looptime
async def test_while_a_notice_stands_nothing_backs_off() -> None:
    asked, _ = await asked_at(lambda turn: [STANDS] if turn == 1 else [DOWN], seconds=5.5)

    assert asked == [0, 1, 2, 3, 4, 5]


@pytest.mark.looptime
async def test_after_a_cancel_failures_back_off_again() -> None:
    answers: dict[int, list[Probe]] = {1: [STANDS], 2: [GONE]}
    asked, told = await asked_at(lambda turn: answers.get(turn, [DOWN]), seconds=10.0)

    assert asked == [0, 1, 2, 3, 5, 9]
    assert told[:3] == [STANDS, GONE, DOWN]


@pytest.mark.looptime
async def test_a_period_beyond_the_back_off_stays() -> None:
    asked, _ = await asked_at(lambda _: [DOWN], seconds=70.0, period=30.0)

    assert asked == [0, 30, 60]


async def test_of_several_answers_a_probe_gives_the_one_that_matters_most() -> None:
    sooner = Noticed(notice(Confidence.CERTAIN, deadline=10.0))
    later = Noticed(notice(Confidence.CERTAIN, deadline=20.0))
    started = Noticed(notice(Confidence.STARTED))
    advised = Noticed(notice(Confidence.ADVISORY, deadline=1.0))

    assert weightiest((CALM, DOWN)) == DOWN
    assert weightiest((DOWN, GONE)) == GONE
    assert weightiest((GONE, advised)) == advised
    assert weightiest((advised, later, STANDS)) == later
    assert weightiest((later, sooner)) == sooner
    assert weightiest((sooner, started)) == started


@pytest.mark.parametrize("period", [0.0, -1.0, float("inf"), float("nan")])
def test_a_period_that_is_none_is_refused(period: float) -> None:
    async def ask() -> tuple[Probe, ...]:
        return (CALM,)

    with pytest.raises(ValueError, match="period"):
        Polled(ask, period=period, clock=LoopClock())
