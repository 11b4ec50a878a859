"""A shutdown that logind announces sixty times."""

from collections.abc import Callable

from evacd.facts import Cancelled, Noticed, Quiet
from evacd.notice.longpoll import Pace
from evacd.notice.shutdown import ShutdownSource
from tests.agent.notice.hearing import MovedClock, watching
from tests.agent.notice.shutdown.logind import FakeLogind, PrivateBus

FAST = Pace(poll=0.02, backoff_first=0.01, backoff_most=0.02)


async def test_a_shutdown_announced_sixty_times_is_one_notice(
    bus: PrivateBus,
    logind: FakeLogind,
    clock: MovedClock,
    record_property: Callable[[str, object], None],
) -> None:
    record_property("matrix", ("shutdown", "x60"))
    source = ShutdownSource(clock, address=bus.address, pace=FAST, jitter=lambda: 0.0)
    async with watching(source) as hearing:
        await hearing.until(Quiet)
        for _ in range(60):
            logind.shut_down()
        noticed = await hearing.until(Noticed)
        # Signals come in order: what comes behind them all is heard behind them all.
        logind.call_off()
        gone = await hearing.until(Cancelled, after=noticed)

    assert len(set(hearing.told[noticed:gone])) == 1
    assert sum(isinstance(probe, Cancelled) for probe in hearing.told) == 1
