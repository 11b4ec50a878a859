"""Gathers the signs of a shutdown, each from its own place, all within one time limit."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from evacd.apart import apart
from evacd.clock import Clock
from evacd.notice.shutdown.bus import Broken, Bus, Reply, connected
from evacd.notice.shutdown.logind import LOGIND, MANAGER, PATH
from evacd.notice.shutdown.sigterm import Signs, parse_scheduled

SYSTEMD = "org.freedesktop.systemd1"
SYSTEMD_PATH = "/org/freedesktop/systemd1"
SYSTEMD_MANAGER = "org.freedesktop.systemd1.Manager"
# Whoever is stopped has no more time than this for a question.
LIMIT_SECONDS = 1.0
_FILE_LIMIT = 16 * 1024


async def signs(
    clock: Clock,
    *,
    run: Path = Path("/run"),
    address: str | None = None,
    node_shutting_down: Callable[[], bool] = lambda: False,
    limit_seconds: float = LIMIT_SECONDS,
) -> Signs:
    """What can be seen within *limit_seconds*; what answers too late counts as not seen.

    Args:
        run: The host's /run; another place where a container has it mounted.
        address: Of the system bus; None is the usual one.
        node_shutting_down: What `NodeSource.shutting_down` last knew.
    """
    seen = _Seen(Signs(node_shutting_down=node_shutting_down()))

    async def files() -> None:
        text, nologin = await apart(partial(_read, run))
        mode, at = parse_scheduled(text)
        left = None if at is None else at - clock.utc().timestamp()
        seen.signs = replace(
            seen.signs, scheduled_mode=mode, scheduled_in_seconds=left, nologin=nologin
        )

    async def managers() -> None:
        async with connected(address) as bus:
            if isinstance(bus, Broken):
                return
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_ask_logind(bus, seen))
                tasks.create_task(_ask_systemd(bus, seen))

    try:
        async with asyncio.timeout(limit_seconds), asyncio.TaskGroup() as tasks:
            tasks.create_task(files())
            tasks.create_task(managers())
    except TimeoutError:
        return seen.signs
    return seen.signs


@dataclass
class _Seen:
    """Begins with nothing seen and is improved as answers come."""

    signs: Signs = field(default_factory=Signs)


async def _ask_logind(bus: Bus, seen: _Seen) -> None:
    match await bus.read(LOGIND, PATH, MANAGER, "PreparingForShutdown"):
        case Reply(body=[bool(preparing)]):
            seen.signs = replace(seen.signs, preparing=preparing)


async def _ask_systemd(bus: Bus, seen: _Seen) -> None:
    match await bus.read(SYSTEMD, SYSTEMD_PATH, SYSTEMD_MANAGER, "SystemState"):
        case Reply(body=[str(state)]):
            seen.signs = replace(seen.signs, system_state=state)


def _read(run: Path) -> tuple[str, bool]:
    try:
        with (run / "systemd/shutdown/scheduled").open("rb") as file:
            text = file.read(_FILE_LIMIT).decode("utf-8", "replace")
    except OSError:
        text = ""
    return text, (run / "nologin").exists()
