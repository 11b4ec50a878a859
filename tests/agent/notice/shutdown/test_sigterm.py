"""A SIGTERM is a notice only with a second sign."""

import asyncio
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evacd.facts import Confidence, Notice
from evacd.notice.shutdown import Signs, second_sign, signs, sigterm_notice
from evacd.notice.shutdown.sigterm import parse_scheduled
from tests.agent.busy import no_thread_left
from tests.agent.notice.hearing import MovedClock
from tests.agent.notice.shutdown.logind import FakeLogind, FakeSystemd, PrivateBus

SIGNS = st.builds(
    Signs,
    scheduled_mode=st.sampled_from(["", "poweroff", "dry-poweroff", "reboot", "x"]),
    scheduled_in_seconds=st.none() | st.floats(-1e6, 1e6),
    nologin=st.booleans(),
    system_state=st.sampled_from(["", "running", "degraded", "starting", "stopping"]),
    preparing=st.booleans(),
    node_shutting_down=st.booleans(),
)


@pytest.mark.parametrize(
    ("seen", "sign"),
    [
        (Signs(), None),
        (Signs(system_state="running"), None),
        (Signs(system_state="degraded"), None),
        (Signs(preparing=True), "logind prepares for shutdown"),
        (Signs(system_state="stopping"), "systemd is stopping the system"),
        (Signs(node_shutting_down=True), "the kubelet shuts the node down"),
        (Signs(scheduled_mode="poweroff"), "a poweroff is scheduled"),
        (Signs(scheduled_mode="reboot", scheduled_in_seconds=10.0), "a reboot is scheduled"),
        (Signs(scheduled_mode="reboot", scheduled_in_seconds=-5.0), "a reboot is scheduled"),
        (Signs(scheduled_mode="reboot", scheduled_in_seconds=3600.0), None),
        (Signs(scheduled_mode="dry-reboot", scheduled_in_seconds=0.0), None),
        (Signs(nologin=True), "logins are disabled by /run/nologin"),
        (Signs(nologin=True, system_state="running"), None),
        (Signs(nologin=True, system_state="starting"), None),
    ],
)
def test_what_counts_as_a_second_sign(seen: Signs, sign: str | None) -> None:
    assert second_sign(seen) == sign


@given(SIGNS)
def test_a_running_system_with_nothing_under_way_gives_no_sign(seen: Signs) -> None:
    under_way = seen.preparing or seen.node_shutting_down or seen.system_state == "stopping"
    due = seen.scheduled_mode in ("poweroff", "reboot")
    if not under_way and not due and (seen.system_state or not seen.nologin):
        assert second_sign(seen) is None
    if under_way:
        assert second_sign(seen) is not None


@given(st.text() | st.text(alphabet="MODEUSC=0123456789\n"))
def test_any_text_is_parsed_without_an_error(text: str) -> None:
    mode, at = parse_scheduled(text)

    assert len(mode) <= 40
    assert at is None or at >= 0


def test_the_notice_has_the_assumed_budget() -> None:
    assert sigterm_notice("it ends", now=5.0, budget_seconds=60.0) == Notice(
        source="shutdown",
        kind="sigterm",
        id="shutdown:sigterm",
        confidence=Confidence.STARTED,
        deadline=65.0,
        seen=5.0,
        detail="SIGTERM, and it ends",
    )
    assert sigterm_notice("it ends", now=5.0).deadline == 35.0


def schedule(run: Path, mode: str, at: datetime) -> None:
    (run / "systemd/shutdown").mkdir(parents=True)
    usec = round(at.timestamp() * 1e6)
    (run / "systemd/shutdown/scheduled").write_text(f"USEC={usec}\nWARN_WALL=1\nMODE={mode}\n")


async def test_files_are_seen_without_a_bus(tmp_path: Path, clock: MovedClock) -> None:
    schedule(tmp_path, "poweroff", datetime.fromtimestamp(1030, UTC))
    (tmp_path / "nologin").touch()

    seen = await signs(clock, run=tmp_path, address=f"unix:path={tmp_path}/none")

    assert seen == Signs(scheduled_mode="poweroff", scheduled_in_seconds=30.0, nologin=True)


async def test_signs_are_seen_where_all_threads_are_busy(tmp_path: Path, clock: MovedClock) -> None:
    """At a shutdown name services go first, and whoever waits for them holds a thread."""
    (tmp_path / "nologin").touch()

    async with no_thread_left():
        seen = await signs(clock, run=tmp_path, address=f"unix:path={tmp_path}/none")

    assert seen == Signs(nologin=True)


async def test_nothing_to_see_is_no_sign(tmp_path: Path, clock: MovedClock) -> None:
    seen = await signs(clock, run=tmp_path, address=f"unix:path={tmp_path}/none")

    assert seen == Signs()


@pytest.mark.parametrize(
    ("preparing", "state"), list(product((False, True), ("running", "stopping")))
)
async def test_both_managers_are_asked(
    tmp_path: Path,
    clock: MovedClock,
    bus: PrivateBus,
    logind: FakeLogind,
    systemd: FakeSystemd,
    preparing: bool,
    state: str,
) -> None:
    logind.preparing, systemd.state = preparing, state

    seen = await signs(clock, run=tmp_path, address=bus.address)

    assert seen == Signs(system_state=state, preparing=preparing)


async def test_one_manager_missing_leaves_the_other(
    tmp_path: Path, clock: MovedClock, bus: PrivateBus, systemd: FakeSystemd
) -> None:
    systemd.state = "stopping"

    seen = await signs(clock, run=tmp_path, address=bus.address, node_shutting_down=lambda: True)

    assert seen == Signs(system_state="stopping", node_shutting_down=True)


async def test_a_bus_that_hangs_does_not_hold_the_answer(tmp_path: Path, clock: MovedClock) -> None:
    (tmp_path / "nologin").touch()
    never = asyncio.Event()

    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await never.wait()
        writer.close()

    server = await asyncio.start_unix_server(hang, tmp_path / "bus")
    async with server:
        seen = await signs(
            clock, run=tmp_path, address=f"unix:path={tmp_path}/bus", limit_seconds=0.3
        )
        never.set()

    assert seen == Signs(nologin=True)
