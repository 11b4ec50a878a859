"""A rehearsal as a small TOML file: what happens when, and what goes wrong.

::

    faults = ["slow=2,first=1"]     # from the start

    [[at]]
    seconds = 5
    action = "preempt"              # GET /evac-simulator lists them

    [[at]]
    seconds = 6.5
    faults = ["status=503,for=3"]   # in place of those in force; [] ends them all

Seconds count from the start of the simulator. What is not understood is refused.
"""

import asyncio
import math
import tomllib
from collections.abc import Callable, Collection
from dataclasses import dataclass

from evac.errors import ConfigError
from evacd.clock import Clock
from evacd.notice.simulate.faults import Fault, Faults, parse

_STEP = ("seconds", "action", "faults")


@dataclass(frozen=True)
class Step:
    """What happens at one moment.

    Attributes:
        seconds: From the start.
        action: Of the cloud's; "" for none.
        faults: In place of those in force; None leaves them.
    """

    seconds: float
    action: str = ""
    faults: tuple[Fault, ...] | None = None


@dataclass(frozen=True)
class Scenario:
    """A timeline.

    Attributes:
        steps: In order of time; what is written first comes first at the same moment.
        faults: From the start.
    """

    steps: tuple[Step, ...] = ()
    faults: tuple[Fault, ...] = ()


def read(text: str, *, where: str, actions: Collection[str]) -> Scenario:
    """Read a scenario.

    Args:
        where: The file, for errors.
        actions: What the cloud can do.

    Raises:
        ConfigError: Something is unknown or wrong; says what was expected.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(where, "scenario", f"TOML: {error}") from error
    for name in table:
        if name not in {"faults", "at"}:
            raise ConfigError(where, name, "faults or [[at]], and nothing else")
    entries = table.get("at", [])
    if not isinstance(entries, list):
        raise ConfigError(where, "at", "entries that begin with [[at]]")
    steps = [_step(entry, where, f"at[{n}]", actions) for n, entry in enumerate(entries, 1)]
    return Scenario(
        steps=tuple(sorted(steps, key=lambda step: step.seconds)),
        faults=_faults(table.get("faults", []), where, "faults"),
    )


def _step(entry: object, where: str, key: str, actions: Collection[str]) -> Step:
    if not isinstance(entry, dict):
        raise ConfigError(where, key, "an entry that begins with [[at]]")
    for name in entry:
        if name not in _STEP:
            raise ConfigError(where, f"{key}.{name}", f"{', '.join(_STEP)}, and nothing else")
    seconds = entry.get("seconds")
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        or not 0 <= seconds < math.inf
    ):
        raise ConfigError(where, f"{key}.seconds", f"a number >= 0, not {seconds!r}")
    action = entry.get("action", "")
    if not isinstance(action, str) or (action and action not in actions):
        expected = f"one of {', '.join(sorted(actions))}, not {action!r}"
        raise ConfigError(where, f"{key}.action", expected)
    faults = _faults(entry["faults"], where, f"{key}.faults") if "faults" in entry else None
    if not action and faults is None:
        raise ConfigError(where, key, "an action or faults beside the seconds")
    return Step(float(seconds), action, faults)


def _faults(lines: object, where: str, key: str) -> tuple[Fault, ...]:
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise ConfigError(where, key, 'a list such as ["status=503,first=3"]')
    found = []
    for line in lines:
        try:
            found.append(parse(line))
        except ValueError as error:
            raise ConfigError(where, key, str(error).removeprefix("expected ")) from error
    return tuple(found)


async def play(
    scenario: Scenario, faults: Faults, *, act: Callable[[str], None], clock: Clock
) -> None:
    """Let it happen, from now."""
    started = clock.monotonic()
    for fault in scenario.faults:
        faults.add(fault)
    for step in scenario.steps:
        await asyncio.sleep(max(0.0, started + step.seconds - clock.monotonic()))
        if step.faults is not None:
            faults.clear()
            for fault in step.faults:
                faults.add(fault)
        if step.action:
            act(step.action)
