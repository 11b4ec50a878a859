from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.agent.notice.hearing import MovedClock
from tests.agent.notice.shutdown.logind import HAS_DBUS, FakeLogind, FakeSystemd, PrivateBus


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[PrivateBus]:
    if not HAS_DBUS:
        pytest.skip("dbus-daemon is not installed (Debian: apt install dbus-daemon)")
    bus = PrivateBus(tmp_path)
    await bus.start()
    yield bus
    await bus.stop()


@pytest.fixture
async def logind(bus: PrivateBus) -> AsyncIterator[FakeLogind]:
    logind = FakeLogind(bus.address)
    await logind.start()
    yield logind
    await logind.die()


@pytest.fixture
async def systemd(bus: PrivateBus) -> AsyncIterator[FakeSystemd]:
    systemd = FakeSystemd(bus.address)
    await systemd.start()
    yield systemd
    await systemd.stop()
