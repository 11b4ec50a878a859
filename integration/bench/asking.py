"""What the benches ask an evacd that they have started: its status, and until when."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evac.admin import read_status
from evac.errors import EvacError

LIMIT_SECONDS = 60.0


def status(socket: Path) -> dict[str, Any] | None:
    """None while it does not answer."""
    try:
        return read_status(socket, timeout=5.0)
    except EvacError:
        return None


def newest(socket: Path) -> list[int]:
    """The steps that its jobs have staged last, sorted; 0 for a job that has staged none."""
    units = (status(socket) or {"risk": {"units": []}})["risk"]["units"]
    return sorted(unit["newest_step"] or 0 for unit in units)


def until(
    true: Callable[[], object], *, seconds: float = LIMIT_SECONDS, pause: float = 0.01
) -> None:
    """Wait.

    Raises:
        TimeoutError: It did not come true.
    """
    ends = time.perf_counter() + seconds
    while not true():
        if time.perf_counter() > ends:
            raise TimeoutError(f"not within {seconds:.0f} s")
        time.sleep(pause)
