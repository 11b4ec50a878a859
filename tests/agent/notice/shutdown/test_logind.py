"""ShutdownSource against a private bus with a small, honest logind."""

from pathlib import Path

import pytest

from evacd.facts import Cancelled, Confidence, Notice, Noticed, Quiet, Unknown
from evacd.notice.longpoll import Pace
from evacd.notice.shutdown import ShutdownSource
from tests.agent.notice.hearing import MovedClock, raw_server, watching
from tests.agent.notice.shutdown.logind import FakeLogind, PrivateBus

FAST = Pace(poll=0.02, backoff_first=0.01, backoff_most=0.02)
DENIED = "org.freedesktop.DBus.Error.AccessDenied"


@pytest.fixture
def source(bus: PrivateBus, clock: MovedClock) -> ShutdownSource:
    return make(bus.address, clock)


def make(address: str, clock: MovedClock) -> ShutdownSource:
    return ShutdownSource(clock, address=address, pace=FAST, jitter=lambda: 0.0)


def notice(deadline: float, detail: str) -> Notice:
    return Notice(
        source="shutdown",
        kind="shutdown",
        id="shutdown:prepare",
        confidence=Confidence.STARTED,
        deadline=deadline,
        seen=1000.0,
        detail=detail,
    )


@pytest.mark.parametrize("delay", [5.0, 30.0, 120.0])
async def test_a_shutdown_is_told_with_the_effective_delay(
    source: ShutdownSource, logind: FakeLogind, delay: float
) -> None:
    logind.delay_seconds = delay
    async with watching(source) as hearing:
        await hearing.until(Quiet)

        logind.shut_down()
        at = await hearing.until(Noticed)

        detail = f"the system shuts down; delay {delay:g} s, held"
        assert hearing.told[at] == Noticed(notice(1000.0 + delay, detail))


async def test_a_machine_that_lasts_less_than_the_delay_sets_the_deadline(
    logind: FakeLogind, bus: PrivateBus, clock: MovedClock
) -> None:
    logind.delay_seconds = 120.0
    source = ShutdownSource(clock, address=bus.address, most_seconds=30.0, pace=FAST)
    async with watching(source) as hearing:
        await hearing.until(Quiet)

        logind.shut_down()
        at = await hearing.until(Noticed)

        told = hearing.told[at]
        assert isinstance(told, Noticed)
        assert told.notice.deadline == 1030.0


async def test_the_shutdown_waits_until_it_is_released(
    source: ShutdownSource, logind: FakeLogind
) -> None:
    async with watching(source) as hearing:
        await hearing.until(Quiet)
        await logind.until_held(1)
        lock = logind.held[0]
        assert (lock.what, lock.who, lock.mode) == ("shutdown", "evacd", "delay")

        logind.shut_down()
        await hearing.until(Noticed)
        assert logind.held == [lock]
        await source.release()

        assert await logind.until_down()
        await source.release()


async def test_a_release_before_any_shutdown_keeps_the_lock(
    source: ShutdownSource, logind: FakeLogind
) -> None:
    async with watching(source) as hearing:
        await hearing.until(Quiet)
        await logind.until_held(1)

        await source.release()

        assert source.locked
    await logind.until_held(0)


@pytest.mark.parametrize("released", [False, True], ids=["while held", "after release"])
async def test_a_shutdown_called_off_is_cancelled_once_and_locked_again(
    source: ShutdownSource, logind: FakeLogind, released: bool
) -> None:
    async with watching(source) as hearing:
        await hearing.until(Quiet)
        logind.shut_down()
        await hearing.until(Noticed)
        if released:
            await source.release()

        logind.call_off()
        at = await hearing.until(Cancelled)
        await logind.until_held(1, of=2)

        assert hearing.told[at:] == [
            Cancelled("shutdown", "shutdown:prepare", "the shutdown was called off")
        ]
        assert len(logind.locks) == 2
        logind.shut_down()
        await hearing.until(Noticed, after=at)


async def test_a_refused_lock_degrades_and_still_hears(
    source: ShutdownSource, logind: FakeLogind
) -> None:
    logind.refuse = DENIED
    async with watching(source) as hearing:
        await hearing.until(Quiet)
        assert "AccessDenied" in source.degraded
        assert not source.locked

        logind.shut_down()
        at = await hearing.until(Noticed)

        # Nothing waits for us: no time is promised.
        detail = "the system shuts down; delay 5 s, not held"
        assert hearing.told[at] == Noticed(notice(1000.0, detail))


async def test_a_shutdown_already_under_way_is_told_at_the_start(
    source: ShutdownSource, logind: FakeLogind
) -> None:
    logind.preparing = True
    async with watching(source) as hearing:
        at = await hearing.until(Noticed)

        assert at == 0
        assert isinstance(await source.probe(), Noticed)


async def test_a_signal_of_another_shape_is_no_notice(
    source: ShutdownSource, logind: FakeLogind
) -> None:
    async with watching(source) as hearing:
        await hearing.until(Quiet)

        logind.say("s", ["true"])
        logind.say("", [])
        logind.say("i", [1])
        logind.shut_down()
        at = await hearing.until(Noticed)

        assert hearing.told[:at] == [Quiet("shutdown")]


async def test_logind_that_restarts_is_unknown_and_then_locked_again(
    source: ShutdownSource, logind: FakeLogind
) -> None:
    async with watching(source) as hearing:
        await hearing.until(Quiet)

        await logind.die()
        at = await hearing.until(Unknown)
        logind.delay_seconds = 30.0
        await logind.start()
        at = await hearing.until(Quiet, after=at)
        logind.shut_down()
        at = await hearing.until(Noticed, after=at)

        told = hearing.told[at]
        assert isinstance(told, Noticed)
        assert told.notice.deadline == 1030.0
        assert len(logind.held) == 1


async def test_a_bus_that_restarts_is_unknown_and_then_heard_again(
    source: ShutdownSource, logind: FakeLogind, bus: PrivateBus
) -> None:
    async with watching(source) as hearing:
        await hearing.until(Quiet)

        await bus.stop()
        at = await hearing.until(Unknown)
        assert hearing.told[at] == Unknown(
            "shutdown",
            "the system bus went away",
            "is there a system bus? in a container mount /run/dbus/system_bus_socket; "
            "without systemd, leave the shutdown source out",
        )
        await logind.die()
        await bus.start()
        await logind.start()
        at = await hearing.until(Quiet, after=at)
        logind.shut_down()
        await hearing.until(Noticed, after=at)


async def test_a_bus_that_dies_in_a_shutdown_neither_clears_it_nor_lets_it_go(
    source: ShutdownSource, logind: FakeLogind, bus: PrivateBus
) -> None:
    async with watching(source) as hearing:
        await hearing.until(Quiet)
        logind.shut_down()
        at = await hearing.until(Noticed)

        await bus.stop()
        await hearing.until(Unknown, after=at)

        assert source.locked
        assert Cancelled not in map(type, hearing.told)
        await source.release()
        assert not source.locked


async def test_no_bus_is_unknown_with_a_cure(tmp_path: Path, clock: MovedClock) -> None:
    source = make(f"unix:path={tmp_path}/none", clock)
    async with watching(source) as hearing:
        await hearing.until(Unknown)
        at = await hearing.until(Unknown, after=1)

        told = hearing.told[at]
        assert isinstance(told, Unknown)
        assert told.reason == "no system bus: No such file or directory"
        assert "/run/dbus/system_bus_socket" in told.cure


async def test_no_logind_is_unknown_with_a_cure(source: ShutdownSource, bus: PrivateBus) -> None:
    told = await source.probe()

    assert isinstance(told, Unknown)
    assert told.reason.startswith("no logind: ServiceUnknown")
    assert "systemd-logind" in told.cure


@pytest.mark.parametrize("address", ["nonsense", "unix:path=", "tcp:host=127.0.0.1,port=1"])
async def test_a_wrong_address_is_unknown(clock: MovedClock, address: str) -> None:
    assert isinstance(await make(address, clock).probe(), Unknown)


async def test_something_that_is_no_bus_is_unknown(clock: MovedClock) -> None:
    async def talk(*_: object) -> None:
        return

    async with raw_server(talk) as url:
        port = url.rpartition(":")[2]
        source = make(f"tcp:host=127.0.0.1,port={port}", clock)
        assert isinstance(await source.probe(), Unknown)
